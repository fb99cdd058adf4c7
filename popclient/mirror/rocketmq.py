"""A RocketMQ cluster as a side of a mirror: its proxy, and for topics, groups and backlogs its name server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from popclient._queues.subscription import DEAD_LETTER_PREFIX, RETRY_PREFIX
from popclient._session.convert import Outbound
from popclient.admin.facts import ScheduledMessage
from popclient.aio.simple_consumer import SimpleConsumer
from popclient.config import ClientConfig
from popclient.errors import NotFound, PopError
from popclient.message import MessageView
from popclient.mirror.outgoing import to_dead_letter_topic, to_retry_topic
from popclient.mirror.routes import GroupFacts, Handover, Kind, TopicFacts, Way
from popclient.mirror.side import DeadMessage, Side
from popclient.remoting import Permission, RefusedByBroker, RocketMQAdmin

ATTEMPTS: Final = 17  # of a group whose settings are not known: RocketMQ's default
READER_ATTEMPTS: Final = 1_000_000  # of a mirror's own group: a dead letter that it reads keeps its count of attempts
MIXED: Final = "MIXED"  # the type of a topic that takes every message; brokers refuse such a topic by default
HOLD_S: Final = 60
WAIT_S: Final = 5
PROXIES_NOTICE_S: Final = 30.0  # a proxy looks up its routes again within 20 s
LOOKS: Final = 3  # in this time
# Properties of a dead letter. RocketMQ refuses its own names from clients.
ORIGIN_TOPIC, REASON, ATTEMPT = "popmq.dead-topic", "popmq.dead-reason", "popmq.dead-attempt"


class RocketMQSide(Side):
    """It stores what it is given, also a second time; doubles are possible after a crash."""

    kind = Kind.ROCKETMQ
    stores_once = False
    poll_s = 5.0  # it has no shorter polls
    holds_whole_groups = True

    def __init__(self, config: ClientConfig, admin: RocketMQAdmin | None, reader: str) -> None:
        """reader: the group by which the mirror reads for itself."""
        super().__init__(config)
        self.admin = admin
        self.reader = reader
        self._attempts: dict[str, int] = {}

    async def close(self) -> None:
        if self.admin is not None:
            await self.admin.close()
        await super().close()

    @property
    def can_make(self) -> bool:
        return self.admin is not None

    async def topic(self, name: str) -> TopicFacts | None:
        if self.admin is None:
            return await self.route(name)
        found = (await self.admin.topics()).get(name)
        if found is None:
            return None
        accepts = () if found.accepts == "UNSPECIFIED" else (found.accepts,)
        return TopicFacts(name, accepts, found.queues)

    async def group(self, name: str) -> GroupFacts | None:
        found = None if self.admin is None else (await self.admin.groups()).get(name)
        if found is None:
            return None
        self._attempts[name] = found.max_attempts
        return GroupFacts(name, found.max_attempts, found.retry_intervals, found.retry_backoff, found.in_order)

    async def make_topic(self, topic: TopicFacts) -> None:
        assert self.admin is not None, "the caller has asked can_make"
        accepts = _accepts(topic)
        try:
            await self.admin.create_topic(topic.name, accepts=accepts, queues=max(1, topic.queues))
        except RefusedByBroker as refusal:
            if accepts != MIXED:
                raise
            only_normal = self.how_to_make(topic._replace(accepts=("NORMAL",)))
            raise PopError(
                f"{refusal.sentence.rstrip('.')}; topic {topic.name} takes several types of messages: set"
                f" enableMixedMessageType=true at the brokers, or make it for the type that it has: {only_normal}"
            ) from None

    async def make_group(self, group: GroupFacts, topics: Sequence[str]) -> None:
        assert self.admin is not None, "the caller has asked can_make"
        if await self.group(group.name) is None:
            await self.admin.create_group(
                group.name,
                max_attempts=group.max_attempts,
                retries=group.retry_backoff or group.retry_intervals,
                in_order=bool(group.in_order),
            )
            for topic in topics:
                await self.admin.set_start(group.name, topic)
        for topic in topics:
            await self.admin.create_retry_topic(group.name, topic)
        letters = DEAD_LETTER_PREFIX + group.name
        if letters not in await self.admin.topics(internal=True):
            await self.admin.create_topic(letters, queues=1)

    async def make_reader(self, group: str, topics: Sequence[str]) -> None:
        assert self.admin is not None, "the caller has asked can_make"
        if await self.group(group) is None:
            await self.admin.create_group(group, max_attempts=READER_ATTEMPTS)
            for topic in topics:
                await self.admin.set_start(group, topic)

    async def begin_at_first(self, group: str, topic: str) -> None:
        await self._asked().set_start(group, topic)

    async def close_topic(self, name: str, because: str) -> None:
        """Its producers read that the topic is not writable.

        A proxy looks up a route anew after a call for the topic that found it old: so the known one is called.
        """
        del because
        await self._asked().set_topic_permission(name, Permission.READ)
        for _ in range(LOOKS):
            await asyncio.sleep(PROXIES_NOTICE_S / LOOKS)
            await self.route(name)

    async def open_topic(self, name: str) -> None:
        await self._asked().set_topic_permission(name, Permission.READ | Permission.WRITE)

    async def hold_back(self, group: str, topic: str) -> None:
        await self._asked().set_group_enabled(group, enabled=False)

    async def let_go(self, group: str, topic: str) -> None:
        await self._asked().set_group_enabled(group, enabled=True)

    async def brokers(self) -> list[str]:
        return [] if self.admin is None else sorted(await self.admin.masters())

    async def waits(self, topic: str) -> bool:
        return self.admin is not None and await self.admin.delayed(topic) > 0

    async def stored(self, topic: str) -> int | None:
        return None if self.admin is None else await self.admin.stored(topic)

    def topics_of_imports(self, group: str, topics: Sequence[str]) -> list[str]:
        return [_retry_topic(group, each) for each in topics]

    async def consumers(self, group: str) -> int | None:
        return None if self.admin is None else len(await self.admin.connections(group))

    def _asked(self) -> RocketMQAdmin:
        if self.admin is None:
            raise PopError(f"{self.where} is administered at its name server; plan again with its name server")
        return self.admin

    def how_to_make(self, facts: TopicFacts | GroupFacts) -> str:
        if isinstance(facts, TopicFacts):
            return f"mqadmin updateTopic -c CLUSTER -t {facts.name} -a +message.type={_accepts(facts)}"
        order = " -o true" if facts.in_order else ""
        return f"mqadmin updateSubGroup -c CLUSTER -g {facts.name} -r {facts.max_attempts - 1}{order}"

    async def lag(self, handover: Handover, group: str) -> int | None:
        if self.admin is None:
            return None
        try:
            found = await self.admin.backlog(group, handover.topic)
        except NotFound:
            return 0
        return found.ready + found.retrying

    async def is_done(self, handover: Handover, group: str) -> bool:
        if self.admin is None:
            return True
        try:
            found = await self.admin.backlog(group, handover.topic)
        except NotFound:
            return True
        # In a topic with message groups alone, what is held counts as ready.
        return found.ready + found.retrying == 0 if handover.way is Way.TOPIC else found.is_empty

    async def scheduled(self, topic: str) -> AsyncIterator[ScheduledMessage]:
        """RocketMQ does not list them: each is handed over when it is due."""
        return
        yield

    async def unschedule(self, topic: str, message_ids: Sequence[str]) -> set[str]:
        """It finds none, for the same reason."""
        del topic, message_ids
        return set()

    async def dead_letters(self, group: str, after: int) -> AsyncIterator[DeadMessage]:
        """Received by the mirror's own group, and acked when the caller asks for the next one."""
        topic = DEAD_LETTER_PREFIX + group
        if await self.route(topic) is None:
            return
        reader = f"{self.reader}-{group}"
        if self.admin is not None:
            await self.make_reader(reader, [topic])
        async with SimpleConsumer(
            self.config, reader, topic, invisible_duration=HOLD_S, await_duration=WAIT_S
        ) as consumer:
            while views := await consumer.receive():
                for view in views:
                    yield _dead(view)
                    await consumer.ack(view)

    async def write_to_group(self, handover: Handover, views: Sequence[MessageView]) -> list[bool | PopError]:
        assert handover.group is not None, "a whole topic goes to the topic"
        retry_topic = _retry_topic(handover.group, handover.topic)
        attempts = self._attempts.get(handover.group, ATTEMPTS)
        given: list[Outbound | PopError] = []
        for view in views:
            try:
                given.append(to_retry_topic(view, retry_topic, attempts, self.config.namespace))
            except PopError as refusal:
                given.append(refusal)
        return await self.send(given)

    async def write_dead(self, group: str, letters: Sequence[DeadMessage]) -> list[bool | PopError]:
        topic = DEAD_LETTER_PREFIX + group
        return await self.send(
            [
                to_dead_letter_topic(
                    each.message,
                    topic,
                    {ORIGIN_TOPIC: each.topic, REASON: each.reason or "-", ATTEMPT: str(each.delivery_attempt)},
                    self.config.namespace,
                )
                for each in letters
            ]
        )


def _accepts(topic: TopicFacts) -> str:
    """The type of a topic here: one, or all."""
    return topic.accepts[0] if len(topic.accepts) == 1 else MIXED if topic.accepts else "NORMAL"


def _retry_topic(group: str, topic: str) -> str:
    return f"{RETRY_PREFIX}{group}_{topic}"


def _dead(view: MessageView) -> DeadMessage:
    properties = view.properties
    attempt = properties.get(ATTEMPT, "")
    stored = view.store_timestamp
    return DeadMessage(
        view,
        properties.get(ORIGIN_TOPIC, ""),  # of one that a mirror brought; the proxy does not say it of its own
        int(attempt) if attempt.isdecimal() else max(1, view.delivery_attempt - 1),
        properties.get(REASON, ""),
        0 if stored is None else int(stored.timestamp() * 1_000),
        0,
    )
