"""Pulls: answered at once where something is to be said; held, where that is wished for, while there is nothing new.

A pull that is held moves on by itself over what its filter does not want, and is answered when there is something it
wants, or when its time is over: then with the offset it has come to.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import NamedTuple

import structlog

from popserver.broker.catalog import Catalog
from popserver.broker.clock import Clock
from popserver.broker.filters import Filters
from popserver.broker.looks import Looks
from popserver.broker.offsets import Offsets
from popserver.broker.parked_pulls import ParkedPulls
from popserver.broker.polls import SLOW_LOOK_MS
from popserver.broker.reader import Reader
from popserver.broker.undelivered import Undelivered
from popserver.broker.wakeups import Seat, Wakeups
from popserver.domain.brake import Brake
from popserver.domain.errors import TooManyRequests, TopicNotFound
from popserver.domain.filtering import Filter
from popserver.domain.group import Group
from popserver.domain.names import Resource
from popserver.domain.offsets import QueueOffset, queue_numbered
from popserver.domain.pulling import BATCH_BYTES_MAX, BATCH_SIZE_MAX, Pulled, PullStatus
from popserver.domain.topic import Topic
from popserver.store import pulling

log = structlog.get_logger("popserver.pulls")


class Pull(NamedTuple):
    """What a member asks of one queue. `until_ms` is how long it may be held.

    `commit_offset` is the group's progress, which rides along, on the count of `resets`; None for nothing.
    `generation` is that of the topic to which both offsets belong (`Topic.generation`); 0 where it is not known.
    `max_bytes` is of bodies, 1 to 256 KiB; a single message may be larger.
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
    """Every pull of this server, parked or not."""

    def __init__(
        self,
        reader: Reader,
        catalog: Catalog,
        offsets: Offsets,
        clock: Clock,
        wakeups: Wakeups,
        filters: Filters,
        undelivered: Undelivered,
    ) -> None:
        self._reader = reader
        self._catalog = catalog
        self._offsets = offsets
        self._clock = clock
        self._wakeups = wakeups
        self._filters = filters
        self._undelivered = undelivered
        self._brake = Brake()
        self._looks = Looks(reader)
        self._held: dict[Resource, Counter[int]] = {}  # which topics of a name have pulls parked
        self._topics_made = 0
        self.parked = ParkedPulls(clock, wakeups.ring_number, self._ends_of)

    async def pull(self, wish: Pull) -> Pulled:
        """What is there for the pull, up to `batch_size` (at most 160) messages.

        Neither needs nor changes the group's progress, whatever the group's mode. Raises `TopicNotFound`, `BadRequest`
        for a queue that the topic does not have, `TooManyRequests` where it would be held and too many are.
        """
        group, topic = await self._catalog.group(wish.group), await self._catalog.topic(wish.topic, wish.generation)
        if wish.generation not in (0, topic.generation):
            return await self._made_anew(topic, wish.queue_number)
        place = queue_numbered(topic, wish.queue_number)
        unsure_of = None if wish.generation else group.group_id
        batch_size = min(wish.batch_size, BATCH_SIZE_MAX)
        request = pulling.Pull(topic, place, wish.offset, batch_size, wish.wanted, unsure_of, wish.max_bytes)
        with self._filters.held(wish.wanted):
            held = self._look_or_park(group, request, wish.until_ms)
            if wish.commit_offset is None:
                return await held
            along = self._offsets.ride_along(group, QueueOffset(topic, place, wish.commit_offset, wish.resets))
            pulled, _ = await asyncio.gather(held, along)
            return pulled

    def topic_was_made(self, name: Resource) -> None:
        """Pulls that are held at an earlier topic of its name, or are about to be, look again."""
        self._topics_made += 1
        for topic_id in self._held.get(name, ()):
            self.parked.ring(topic_id)

    async def _made_anew(self, topic: Topic, queue_number: int) -> Pulled:
        """The answer to a pull that knows an earlier topic of that name. This one may have fewer queues."""
        ends = await self._reader.read(lambda conn: pulling.ends_of_topic(conn, topic.topic_id))
        begin, end = next(((each.min_offset, each.end_offset) for each in ends if each.number == queue_number), (0, 0))
        return Pulled(PullStatus.MADE_ANEW, [], begin, begin, end, topic.generation)

    async def _look_or_park(self, group: Group, request: pulling.Pull, until_ms: int) -> Pulled:
        seat, asked_offset = Seat(group.group_id, request.topic.topic_id), request.offset
        is_woken = False
        while True:
            ring_number, topics_made = self._wakeups.ring_number(seat.topic_id), self._topics_made
            try:
                await self._undelivered.wait(until_ms)
                pulled = await self._look(group, request)
            except TopicNotFound:
                if not is_woken:
                    raise
                self._catalog.forget_topic(request.topic.name)
                if (topic := await self._catalog.known_topic(request.topic.name)) is None:
                    raise
                return await self._made_anew(topic, request.queue.number)
            if pulled.status in _IS_AN_ANSWER or not (is_woken or pulled.status is PullStatus.NO_NEW_MSG):
                return pulled
            request = request._replace(offset=pulled.next_offset)
            if self._clock.now_ms() >= until_ms:
                break
            if pulled.next_offset < pulled.end_offset:
                continue
            self._check_room(seat, group, request)
            is_woken = self._topics_made != topics_made or await self._park(seat, request, ring_number, until_ms)
            if not is_woken:
                break
        status = PullStatus.NO_MATCHED_MSG if request.offset > asked_offset else PullStatus.NO_NEW_MSG
        return pulled._replace(status=status, next_offset=request.offset)

    async def _park(self, seat: Seat, request: pulling.Pull, ring_number: int, until_ms: int) -> bool:
        name = request.topic.name
        of_name = self._held.setdefault(name, Counter())
        of_name[seat.topic_id] += 1
        try:
            return await self.parked.park(seat, request.queue.queue_id, request.offset, ring_number, until_ms)
        finally:
            of_name[seat.topic_id] -= 1
            if not of_name[seat.topic_id]:
                del of_name[seat.topic_id]
            if not of_name and self._held.get(name) is of_name:
                del self._held[name]

    async def _look(self, group: Group, request: pulling.Pull) -> Pulled:
        started_ms = self._clock.now_ms()
        pulled = await self._looks.look(request)
        cost_ms = self._clock.now_ms() - started_ms
        if cost_ms > SLOW_LOOK_MS and (untold := self._brake.untold(self._clock.now_ms())) is not None:
            log.warning(
                "a pull's look took long",
                cost_ms=cost_ms,
                group=str(group.name),
                topic=str(request.topic.name),
                untold=untold,
            )
        return pulled

    async def _ends_of(self, topic_id: int) -> dict[int, int]:
        ends = await self._reader.read(lambda conn: pulling.ends_of_topic(conn, topic_id))
        return {each.queue_id: each.end_offset for each in ends}

    def _check_room(self, seat: Seat, group: Group, request: pulling.Pull) -> None:
        if not self.parked.has_room(seat):
            raise TooManyRequests(
                f"{self.parked.count} pulls are waiting, too many for group '{group.name}' on topic"
                f" '{request.topic.name}'; use fewer consumers, or pull again later"
            )


_IS_AN_ANSWER = frozenset({PullStatus.FOUND, PullStatus.OFFSET_ILLEGAL})
