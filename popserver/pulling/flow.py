"""Pulls: a pull is answered at once if there are messages. Otherwise it may wait for new ones.

A waiting pull skips messages that its filter refuses. It is answered when there is a message for it, or when its time
is over, with the offset that it has reached.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from popserver.catalog import queue_offsets
from popserver.catalog.flow import Catalog
from popserver.catalog.paused import PausedGroups
from popserver.clients.waits import Waits
from popserver.database.notifications import GROUP
from popserver.engine.clock import Clock
from popserver.engine.meters import Delivered, Tallies
from popserver.engine.reader import SLOW_QUERY_MS, LogLimit, Reader
from popserver.engine.undelivered import Undelivered
from popserver.engine.wakeups import BEAT_MS, PollKey, Wakeups
from popserver.filters import Filter
from popserver.filters.memory import Filters
from popserver.model.errors import TooManyRequests, TopicNotFound
from popserver.model.group import Group, Mode
from popserver.model.message import StoredMessage
from popserver.model.names import Resource, check_topic
from popserver.model.topic import Topic, queue_numbered
from popserver.pulling.batches import PullBatcher
from popserver.pulling.offsets import Offsets
from popserver.pulling.parked import ParkedPulls
from popserver.pulling.read import QueueRead
from popserver.pulling.rules import BATCH_BYTES_MAX, BATCH_SIZE_MAX, Pulled, PullStatus, QueueOffset

SHORT_POLL_MS = 1_000  # as RocketMQ without long polling (requirement A5)

log = structlog.get_logger("popserver.pulls")


class PullRequest(NamedTuple):
    """A member's pull of one queue. It may wait until `until_ms` (server time).

    `commit_offset` is the group's progress, committed along with the pull for the count `resets`; None commits nothing.
    `generation` is the generation of the topic that both offsets belong to (`Topic.generation`); 0 if unknown.
    `max_bytes` limits the bytes of bodies, 1 to 256 KiB; a single message may be larger.
    """

    group: Resource
    topic: Resource
    queue_number: int
    offset: int
    batch_size: int
    wanted: Filter
    until_ms: int
    commit_offset: int | None = None
    resets: int | None = None
    generation: int = 0
    max_bytes: int = BATCH_BYTES_MAX


class Pulls:
    """All pulls of this server, waiting or not."""

    def __init__(
        self,
        reader: Reader,
        catalog: Catalog,
        offsets: Offsets,
        clock: Clock,
        wakeups: Wakeups,
        filters: Filters,
        undelivered: Undelivered,
        paused: PausedGroups,
        delivered: Tallies[tuple[int, int], Delivered],
        waits: Waits,
        *,
        long_polling: bool = True,
    ) -> None:
        """`delivered`: the server's counts by group id and topic id, which pulls add to.

        Without `long_polling` a pull waits no longer than a second, and no wake-up ends its wait.
        """
        self._waits = waits
        self._long_polling = long_polling
        self._delivered = delivered
        self._reader = reader
        self._catalog = catalog
        self._offsets = offsets
        self._clock = clock
        self._wakeups = wakeups
        self._filters = filters
        self._undelivered = undelivered
        self._paused = paused
        self._log_limit = LogLimit()
        self._batcher = PullBatcher(reader)
        self._parked_at: dict[Resource, Counter[int]] = {}  # which topics (ids) of a name have waiting pulls
        self._new_topics = 0
        beat_ms = BEAT_MS if long_polling else SHORT_POLL_MS
        self.parked = ParkedPulls(clock, wakeups.wake_number, self._ends_of, wakeups.watched, beat_ms)
        waits.on_end(self.parked.end)

    async def pull(self, request: PullRequest) -> Pulled:
        """Up to `batch_size` (at most 160) messages for the pull, and where to continue.

        Does not use or change the group's progress, and works in both modes. Raises `TopicNotFound`, `BadRequest` for a
        queue that the topic does not have, `TooManyRequests` if it would have to wait and too many pulls wait already.
        """
        check_topic(request.topic)  # first, because a refused pull creates no group
        since = self._waits.changes
        group = await self._catalog.group(request.group)
        topic = await self._catalog.topic(request.topic, request.generation)
        if request.generation not in (0, topic.generation):
            return await self._recreated(topic, request.queue_number)
        queue = queue_numbered(topic, request.queue_number)
        unsure_of = None if request.generation else group.group_id
        batch_size = min(request.batch_size, BATCH_SIZE_MAX)
        queue_read = QueueRead(topic, queue, request.offset, batch_size, request.wanted, unsure_of, request.max_bytes)
        with self._filters.held(request.wanted):
            until_ms = request.until_ms
            if not self._long_polling:
                until_ms = min(until_ms, self._clock.now_ms() + SHORT_POLL_MS)
            held = self._read_or_park(group, queue_read, until_ms, since)
            if request.commit_offset is None:
                return await held
            along = self._offsets.commit_with_pull(
                group, QueueOffset(topic, queue, request.commit_offset, request.resets)
            )
            pulled, _ = await asyncio.gather(held, along)
            return pulled

    def on_new_topic(self, name: Resource) -> None:
        """A topic was created: pulls that wait for an earlier topic of this name read again."""
        self._new_topics += 1
        for topic_id in self._parked_at.get(name, ()):
            self.parked.wake(topic_id)

    async def _recreated(self, topic: Topic, queue_number: int) -> Pulled:
        """The answer to a pull with offsets of an earlier topic of this name. The new topic may have fewer queues."""
        ends = await self._reader.look_up(lambda conn: queue_offsets.ends_of_topic(conn, topic.topic_id))
        begin, end = next(((each.min_offset, each.end_offset) for each in ends if each.number == queue_number), (0, 0))
        return Pulled(PullStatus.RECREATED, [], begin, begin, end, topic.generation)

    async def _read_or_park(self, group: Group, request: QueueRead, until_ms: int, since: int) -> Pulled:
        key, asked_offset = PollKey(group.group_id, request.topic.topic_id), request.offset
        # Without the topic: if it is deleted, a new topic of its name ends the wait (`on_new_topic`).
        of_group = (GROUP, group.name)
        is_woken = False
        while True:
            wake_number, new_topics = self._wakeups.wake_number(key.topic_id), self._new_topics
            try:
                await self._undelivered.wait(until_ms)
                pulled = await self._read(group, request)
            except TopicNotFound:
                if not is_woken:
                    raise
                self._catalog.forget_topic(request.topic.name)
                if (topic := await self._catalog.known_topic(request.topic.name)) is None:
                    raise
                return await self._recreated(topic, request.queue.number)
            if self._paused.covers(key.group_id, key.topic_id) and pulled.status is not PullStatus.OFFSET_ILLEGAL:
                pulled = pulled._replace(messages=[])
                with self._waits.at(key, of_group):
                    is_resumed = await self._paused.wait(group, until_ms)
                if is_resumed:
                    continue
                break
            if pulled.messages:
                self._count(key, pulled.messages)
            if pulled.status in _IS_AN_ANSWER or not (is_woken or pulled.status is PullStatus.NO_NEW_MSG):
                return pulled
            request = request._replace(offset=pulled.next_offset)
            if self._clock.now_ms() >= until_ms:
                break
            if pulled.next_offset < pulled.end_offset:
                continue
            if not self.parked.has_capacity(key):
                raise TooManyRequests(
                    f"{self.parked.count} pulls are waiting, too many for group '{group.name}' on topic"
                    f" '{request.topic.name}'; use fewer consumers, or pull again later"
                )
            with self._waits.at(key, of_group):
                is_woken = (
                    self._new_topics != new_topics
                    or self._waits.has_changed(since, of_group)
                    or await self._park(key, request, wake_number, until_ms)
                )
            # A change of the group ends the wait, unless it only got its mode, perhaps by this pull's member.
            if not is_woken or self._waits.has_changed(since):
                break
            seen = self._waits.changes
            if self._waits.has_changed(since, of_group) and not await self._is_still(group):
                break
            since = seen
        status = PullStatus.NO_MATCHED_MSG if request.offset > asked_offset else PullStatus.NO_NEW_MSG
        return pulled._replace(status=status, next_offset=request.offset)

    async def _is_still(self, group: Group) -> bool:
        """Whether the group still exists, and is not one that consumes message by message."""
        now = await self._catalog.known_group(group.name)
        return now is not None and now.group_id == group.group_id and now.mode is not Mode.POP

    def _count(self, key: PollKey, messages: Sequence[StoredMessage]) -> None:
        """Count messages that are sent now. Which of them are retries is unknown."""
        now_ms, counted = self._clock.now_ms(), self._delivered[key.group_id, key.topic_id]
        delays, limits = counted.delays.counts, counted.delays.limits
        for each in messages:
            delay_ms = now_ms - each.stored_at_ms
            delays[bisect_left(limits, delay_ms)] += 1
            counted.delays.total += delay_ms
            counted.bytes += len(each.message.body)

    async def _park(self, key: PollKey, request: QueueRead, wake_number: int, until_ms: int) -> bool:
        name = request.topic.name
        of_name = self._parked_at.setdefault(name, Counter())
        of_name[key.topic_id] += 1
        try:
            return await self.parked.park(key, request.queue.queue_id, request.offset, wake_number, until_ms)
        finally:
            of_name[key.topic_id] -= 1
            if not of_name[key.topic_id]:
                del of_name[key.topic_id]
            if not of_name and self._parked_at.get(name) is of_name:
                del self._parked_at[name]

    async def _read(self, group: Group, request: QueueRead) -> Pulled:
        started_ms = self._clock.now_ms()
        pulled = await self._batcher.read(request)
        cost_ms = self._clock.now_ms() - started_ms
        if cost_ms > SLOW_QUERY_MS and (suppressed := self._log_limit.dropped(self._clock.now_ms())) is not None:
            log.warning(
                "a pull was slow",
                cost_ms=cost_ms,
                group=str(group.name),
                topic=str(request.topic.name),
                suppressed=suppressed,
            )
        return pulled

    async def _ends_of(self, topic_id: int) -> dict[int, int]:
        ends = await self._reader.look_up(lambda conn: queue_offsets.ends_of_topic(conn, topic_id))
        return {each.queue_id: each.end_offset for each in ends}


_IS_AN_ANSWER = frozenset({PullStatus.FOUND, PullStatus.OFFSET_ILLEGAL})
