"""A PopMQ server as a side of a mirror."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime

from popclient._producer.core import MESSAGES_PER_REQUEST
from popclient._queues.subscription import RETRY_PREFIX
from popclient._session.convert import Outbound
from popclient.admin.facts import ScheduledMessage
from popclient.admin.redrive_facts import ImportedDeath
from popclient.aio.admin.admin import Admin
from popclient.config import ClientConfig
from popclient.errors import NotFound, PopError
from popclient.message import MessageView
from popclient.mirror.outgoing import in_requests
from popclient.mirror.routes import GroupFacts, Handover, Kind, TopicFacts
from popclient.mirror.side import DeadMessage, Side

IMPORTED_MAX = 500
DELAY, EARLIEST = "DELAY", "EARLIEST"
READER_ATTEMPTS = 1_000  # of the mirror's own group: the most that there are


class PopMQSide(Side):
    """Asked and given by popmq.v1.Admin; it stores a message id once."""

    kind = Kind.POPMQ
    stores_once = True
    poll_s = 1.0
    can_make = True
    holds_whole_groups = False

    def __init__(self, config: ClientConfig, admin: Admin) -> None:
        super().__init__(config)
        self.admin = admin

    async def close(self) -> None:
        await self.admin.close()
        await super().close()

    async def topic(self, name: str) -> TopicFacts | None:
        try:
            found = await self.admin.get_topic(name)
        except NotFound:
            return None
        return TopicFacts(name, found.accept_message_types, found.queue_count)

    async def group(self, name: str) -> GroupFacts | None:
        try:
            found = await self.admin.get_group(name)
        except NotFound:
            return None
        return GroupFacts(name, found.max_attempts, found.retry_intervals, found.retry_backoff)

    async def make_topic(self, topic: TopicFacts) -> None:
        accepts = tuple(each for each in topic.accepts if each != "MIXED")
        await self.admin.create_topic(topic.name, queue_count=topic.queues, accept_message_types=accepts)

    async def make_group(self, group: GroupFacts, topics: Sequence[str]) -> None:
        del topics  # PopMQ makes what it needs at the first import
        retries = group.retry_backoff or group.retry_intervals
        await self.admin.create_group(group.name, max_attempts=group.max_attempts, retry_intervals=retries)

    async def make_reader(self, group: str, topics: Sequence[str]) -> None:
        del topics  # it begins at the first message of every topic
        await self.admin.create_group(group, max_attempts=READER_ATTEMPTS, consume_from=EARLIEST)

    async def begin_at_first(self, group: str, topic: str) -> None:
        """Groups do unless they begin at the end (`consume_from` LATEST)."""
        found = await self.admin.get_group(group)
        if found.consume_from != EARLIEST and not any(each.topic == topic for each in found.lag):
            await self.admin.reset_offsets(group, topic, "BEGINNING", force=True)

    async def close_topic(self, name: str, because: str) -> None:
        await self.admin.close_topic(name, because)

    async def open_topic(self, name: str) -> None:
        await self.admin.open_topic(name)

    async def hold_back(self, group: str, topic: str) -> None:
        await self.admin.pause_group(group, topic=topic)

    async def let_go(self, group: str, topic: str) -> None:
        await self.admin.resume_group(group, topic=topic)

    async def stored(self, topic: str) -> int | None:
        try:
            return sum(each.max_offset for each in (await self.admin.get_topic(topic)).queues)
        except NotFound:
            return 0

    async def waits(self, topic: str) -> bool:
        async for _ in self.admin.scheduled(topic):
            return True
        return False

    def topics_of_imports(self, group: str, topics: Sequence[str]) -> list[str]:
        return [RETRY_PREFIX + group] if topics else []

    async def consumers(self, group: str) -> int | None:
        try:
            return len((await self.admin.get_group(group)).consumers)
        except NotFound:
            return 0

    def how_to_make(self, facts: TopicFacts | GroupFacts) -> str:
        return f"popmq {'topic' if isinstance(facts, TopicFacts) else 'group'} create {facts.name}"

    async def lag(self, handover: Handover, group: str) -> int | None:
        try:
            found = await self.admin.get_group(group)
        except NotFound:
            return 0
        of_topic = [each for each in found.lag if each.topic == handover.topic]
        if not of_topic and found.consume_from == EARLIEST:  # it has not received from the topic yet
            return (await self.admin.get_topic(handover.topic)).message_count
        return sum(each.ready + each.inflight + each.waiting_retry for each in of_topic)

    async def is_done(self, handover: Handover, group: str) -> bool:
        return await self.lag(handover, group) == 0

    async def scheduled(self, topic: str) -> AsyncIterator[ScheduledMessage]:
        async for each in self.admin.scheduled(topic):
            if each.kind == DELAY:
                yield each

    async def unschedule(self, topic: str, message_ids: Sequence[str]) -> set[str]:
        return set(await self.admin.cancel_scheduled(topic, message_ids))

    async def dead_letters(self, group: str, after: int) -> AsyncIterator[DeadMessage]:
        async for each in self.admin.dead_letters(group, after_id=after):
            if each.message is not None and not each.redrive_state:
                at_ms = int(each.dead_at.timestamp() * 1_000)
                yield DeadMessage(each.message, each.topic, each.delivery_attempt, each.reason, at_ms, each.id)

    async def write_to_group(self, handover: Handover, views: Sequence[MessageView]) -> list[bool | PopError]:
        assert handover.group is not None, "a whole topic goes to the topic"
        # RocketMQ may have an id several times; the second one is a repetition of the first.
        firsts = list({view.message_id: view for view in reversed(views)}.values())
        stored: dict[str, bool | PopError] = {}
        for part in in_requests(firsts, _sizes(firsts), IMPORTED_MAX):
            outcomes = await self.admin.import_messages(handover.group, handover.topic, part)
            stored |= zip((view.message_id for view in part), outcomes, strict=True)
        seen: set[str] = set()
        found: list[bool | PopError] = []
        for view in views:
            outcome = stored[view.message_id]
            found.append(True if view.message_id in seen and isinstance(outcome, bool) else outcome)
            seen.add(view.message_id)
        return found

    async def send(self, given: Sequence[Outbound | PopError]) -> list[bool | PopError]:
        """Sends messages in their order, many in a request, which is one transaction of the server."""
        ready = [each for each in given if not isinstance(each, PopError)]
        core, results, failure = self._producer._core, list[bool | PopError](), None
        await self._producer.start()
        for part in in_requests(ready, [each.body_size for each in ready], MESSAGES_PER_REQUEST):
            try:
                sent = [failure] * len(part) if failure else await core._exchange(part)
            except PopError as error:
                sent = [failure := error] * len(part)
            for each, result in zip(part, sent, strict=True):
                results.append(result if isinstance(result, PopError) else await self._committed(each, result))
        found = iter(results)
        return [each if isinstance(each, PopError) else next(found) for each in given]

    async def write_dead(self, group: str, letters: Sequence[DeadMessage]) -> list[bool | PopError]:
        """One that the group has already, by its own or by an import, is not stored again."""
        there = [await self._has_letter(group, each.message.message_id) for each in letters]
        given = [each for each, is_there in zip(letters, there, strict=True) if not is_there]
        stored: dict[str, bool | PopError] = {}
        for topic in dict.fromkeys(each.topic for each in given):
            of_topic = [_death(each) for each in given if each.topic == topic]
            for part in in_requests(of_topic, _sizes(each.message for each in of_topic), IMPORTED_MAX):
                outcomes = await self.admin.import_messages(group, topic, part)
                stored |= zip((each.message.message_id for each in part), outcomes, strict=True)
        return [stored.get(each.message.message_id, True) for each in letters]

    async def _has_letter(self, group: str, message_id: str) -> bool:
        try:
            await self.admin.get_dead_letter(group, message_id)
        except NotFound:
            return False
        return True


def _sizes(views: Iterable[MessageView]) -> list[int]:
    return [len(each.stored_body) for each in views]


def _death(letter: DeadMessage) -> ImportedDeath:
    dead_at = datetime.fromtimestamp(letter.dead_at_ms / 1_000, UTC) if letter.dead_at_ms else None
    return ImportedDeath(letter.message, letter.delivery_attempt, letter.reason, dead_at)
