"""Pulls that wait for their queue to grow.

Each pull waits at its queue's end offset. A wake-up of the topic causes one read of the ends of all its queues, no
matter how many pulls wait and how often the topic is woken meanwhile. Only pulls whose queue has grown are woken.

A pull notes its topic's wake-up number before it reads. If the number has changed when it starts to wait, the ends are
read once more; otherwise it could miss a message that came in between.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from popserver.engine.clock import Clock
from popserver.engine.wakeups import PARKED_MAX, PARKED_PER_TOPIC_AND_GROUP_MAX, PollKey
from popserver.model.errors import PopError

# The end of every queue of a topic, by queue id.
Ends = Mapping[int, int]


@dataclass(slots=True, eq=False)
class ParkedPull:
    offset: int
    woken: asyncio.Future[bool]


@dataclass(slots=True)
class ParkedQueue:
    """The pulls that wait at one queue; those with an offset before `told_offset` have been woken."""

    told_offset: int
    pulls: set[ParkedPull] = field(default_factory=set)

    def tell(self, end_offset: int) -> None:
        """The queue ends at `end_offset` now: wake the pulls that wait before it."""
        if end_offset <= self.told_offset:
            return
        self.told_offset = end_offset
        for each in self.pulls:
            if each.offset < end_offset:
                _end_wait(each, rung=True)

    def tell_all(self, *, rung: bool) -> None:
        for each in self.pulls:
            _end_wait(each, rung=rung)


class ParkedPulls:
    """All waiting pulls of this server."""

    def __init__(
        self, clock: Clock, wake_number: Callable[[int], int], ends_of: Callable[[int], Awaitable[Ends]]
    ) -> None:
        """`ring_number` and `ends_of` take a topic id and return its number of wake-ups and the ends of its queues."""
        self._clock = clock
        self._ring_number = wake_number
        self._ends_of = ends_of
        self.topics: dict[int, dict[int, ParkedQueue]] = {}
        self._seats: Counter[PollKey] = Counter()
        self._looks: dict[int, asyncio.Task[None]] = {}
        self._rung_meanwhile: set[int] = set()
        self._closed = False

    @property
    def count(self) -> int:
        return self._seats.total()

    def has_room(self, key: PollKey) -> bool:
        return self._seats[key] < PARKED_PER_TOPIC_AND_GROUP_MAX and self.count < PARKED_MAX

    async def park(self, key: PollKey, queue_id: int, offset: int, wake_number: int, until_ms: int) -> bool:
        """Wait until the queue has grown beyond `offset`. False if `until_ms` came first or the server closes."""
        if self._closed:
            return False
        lane = self.topics.setdefault(key.topic_id, {}).setdefault(queue_id, ParkedQueue(offset))
        if lane.told_offset > offset:
            return True
        parked = ParkedPull(offset, asyncio.get_running_loop().create_future())
        lane.pulls.add(parked)
        self._seats[key] += 1
        if self._ring_number(key.topic_id) != wake_number:
            self.wake(key.topic_id)
        alarm = self._clock.call_when_patience_ends(until_ms, lambda: _end_wait(parked, rung=False))
        try:
            return await parked.woken
        finally:
            alarm.cancel()
            self._leave(key, queue_id, parked)

    def wake(self, topic_id: int) -> None:
        """A queue of the topic may have grown."""
        if topic_id not in self.topics or self._closed:
            return
        if topic_id in self._looks:
            self._rung_meanwhile.add(topic_id)
        else:
            self._looks[topic_id] = asyncio.get_running_loop().create_task(self._look(topic_id))

    def wake_all(self) -> None:
        """Any queue may have grown: wake-ups from other servers may have been missed."""
        for topic_id in list(self.topics):
            self.wake(topic_id)

    async def idle(self) -> None:
        """Wait until no read of a topic's ends is running."""
        while self._looks:
            await asyncio.gather(*self._looks.values(), return_exceptions=True)

    def close(self) -> None:
        """Answer all waiting pulls empty, and let no further pull wait."""
        self._closed = True
        for lanes in self.topics.values():
            for lane in lanes.values():
                lane.tell_all(rung=False)

    async def _look(self, topic_id: int) -> None:
        try:
            await self._tell_ends(topic_id)
            while topic_id in self._rung_meanwhile and topic_id in self.topics:
                self._rung_meanwhile.discard(topic_id)
                await self._tell_ends(topic_id)
        finally:
            self._rung_meanwhile.discard(topic_id)
            del self._looks[topic_id]

    async def _tell_ends(self, topic_id: int) -> None:
        try:
            ends = await self._ends_of(topic_id)
        except PopError:
            # The pulls read for themselves and report the error to their callers.
            ends = {}
        for queue_id, lane in self.topics.get(topic_id, {}).items():
            if queue_id in ends:
                lane.tell(ends[queue_id])
            else:
                lane.tell_all(rung=True)

    def _leave(self, key: PollKey, queue_id: int, parked: ParkedPull) -> None:
        self._seats[key] -= 1
        if not self._seats[key]:
            del self._seats[key]
        lanes = self.topics[key.topic_id]
        lanes[queue_id].pulls.remove(parked)
        if not lanes[queue_id].pulls:
            del lanes[queue_id]
        if not lanes:
            del self.topics[key.topic_id]


def _end_wait(parked: ParkedPull, *, rung: bool) -> None:
    if not parked.woken.done():
        parked.woken.set_result(rung)
