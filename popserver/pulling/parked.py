"""Pulls that wait for their queue to grow.

Each is parked at its queue, at the offset that is the queue's end. A ring leads to one look at the ends of all the
topic's queues, however many are parked there and however often it is rung meanwhile; only those whose queue has grown
are woken, and the others cost nothing.

A pull notes its topic's ring number before it looks. Was the topic rung since, the ends are looked at once more: else
it might sleep beside a message that came between its look and its parking.
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
    """The pulls parked at one queue; whoever waited before `told_offset` has been woken."""

    told_offset: int
    pulls: set[ParkedPull] = field(default_factory=set)

    def tell(self, end_offset: int) -> None:
        """The queue ends there now."""
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
    """Every parked pull of this server."""

    def __init__(
        self, clock: Clock, wake_number: Callable[[int], int], ends_of: Callable[[int], Awaitable[Ends]]
    ) -> None:
        """`ring_number` and `ends_of` say of a topic, by its id, how often it was rung and where its queues end."""
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
        """Wait until the queue has grown beyond `offset`; False when `until_ms` came first or the server is closing."""
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
        """Nobody knows what has grown: rings of other servers may have been missed."""
        for topic_id in list(self.topics):
            self.wake(topic_id)

    async def idle(self) -> None:
        """Return when no look at a topic's ends is on its way."""
        while self._looks:
            await asyncio.gather(*self._looks.values(), return_exceptions=True)

    def close(self) -> None:
        """Answer every parked pull empty, and park none any more."""
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
            # They look for themselves, and say what is wrong to those who wait.
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
