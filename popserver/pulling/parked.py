"""Pulls that wait for their queue to grow.

Each pull waits at its queue's end offset. A wake-up of the topic causes one read of the ends of all its queues, no
matter how many pulls wait and how often the topic is woken meanwhile. Only pulls whose queue has grown are woken.

A pull notes its topic's wake-up number before it reads. If the number has changed when it starts to wait, the ends are
read once more; otherwise it could miss a message that came in between. And on a beat they are read in any case.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from popserver.engine.clock import Alarm, Clock
from popserver.engine.wakeups import BEAT_MS, PARKED_MAX, PARKED_PER_TOPIC_AND_GROUP_MAX, PollKey, WatchedTopics
from popserver.model.errors import PopError

# The end of every queue of a topic, by queue id.
Ends = Mapping[int, int]


@dataclass(slots=True, eq=False)
class ParkedPull:
    key: PollKey
    offset: int
    woken: asyncio.Future[bool]


@dataclass(slots=True)
class ParkedQueue:
    """The pulls that wait at one queue, the longest wait first; those before `known_end` have been woken."""

    known_end: int
    pulls: dict[ParkedPull, None] = field(default_factory=dict)

    def set_end(self, end_offset: int) -> None:
        """The queue ends at `end_offset` now: wake the pulls that wait before it."""
        if end_offset <= self.known_end:
            return
        self.known_end = end_offset
        for each in self.pulls:
            if each.offset < end_offset:
                _end_wait(each, woken=True)

    def end_all(self, *, woken: bool) -> None:
        for each in self.pulls:
            _end_wait(each, woken=woken)


class ParkedPulls:
    """All waiting pulls of this server."""

    def __init__(
        self,
        clock: Clock,
        wake_number: Callable[[int], int],
        ends_of: Callable[[int], Awaitable[Ends]],
        watched: WatchedTopics,
        beat_ms: int = BEAT_MS,
    ) -> None:
        """`wake_number` and `ends_of` take a topic id and return its number of wake-ups and the ends of its queues.

        Every `beat_ms` the ends are read whether or not there was a wake-up.
        """
        self._beat_ms = beat_ms
        self._clock = clock
        self._wake_number = wake_number
        self._ends_of = ends_of
        self._watched = watched
        self.topics: dict[int, dict[int, ParkedQueue]] = {}
        self._counts: Counter[PollKey] = Counter()
        self.count = 0  # pulls that wait
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._woken_meanwhile: set[int] = set()
        self._beat: Alarm | None = None
        self._closed = False

    def has_capacity(self, key: PollKey) -> bool:
        return self._counts[key] < PARKED_PER_TOPIC_AND_GROUP_MAX and self.count < PARKED_MAX

    async def park(self, key: PollKey, queue_id: int, offset: int, wake_number: int, until_ms: int) -> bool:
        """Wait until the queue has grown beyond `offset`. False if `until_ms` came first or the server closes."""
        if self._closed:
            return False
        queue = self.topics.setdefault(key.topic_id, {}).setdefault(queue_id, ParkedQueue(offset))
        if queue.known_end > offset:
            return True
        parked = ParkedPull(key, offset, asyncio.get_running_loop().create_future())
        queue.pulls[parked] = None
        self._counts[key] += 1
        self.count += 1
        if self._wake_number(key.topic_id) != wake_number:
            self.wake(key.topic_id)
        if self._beat is None:
            self._beat = self._clock.call_at(self._clock.now_ms() + self._beat_ms, self._wake_on_beat)
        alarm = self._clock.call_at_deadline(until_ms, lambda: _end_wait(parked, woken=False))
        try:
            with self._watched.at(key.topic_id):
                return await parked.woken
        finally:
            alarm.cancel()
            self._remove(key, queue_id, parked)

    def wake(self, topic_id: int, *, is_notified: bool = True) -> None:
        """A queue of the topic may have grown. `is_notified`: by a notification; else a failed read ends no wait."""
        if topic_id not in self.topics or self._closed:
            return
        if topic_id in self._tasks:
            if is_notified:
                self._woken_meanwhile.add(topic_id)
        else:
            self._tasks[topic_id] = asyncio.get_running_loop().create_task(
                self._update_ends(topic_id, is_notified=is_notified)
            )

    def end(self, key: PollKey) -> None:
        """End the waits of a group in a topic, because one of both was changed or deleted."""
        for queue in self.topics.get(key.topic_id, {}).values():
            for each in queue.pulls:
                if each.key == key:
                    _end_wait(each, woken=True)

    def _wake_on_beat(self) -> None:
        """Read the ends of all topics with pulls, because a wake-up may have been lost (requirement A5)."""
        self._beat = None
        if self.topics and not self._closed:
            for topic_id in list(self.topics):
                self.wake(topic_id, is_notified=False)
            self._beat = self._clock.call_at(self._clock.now_ms() + self._beat_ms, self._wake_on_beat)

    def wake_all(self) -> None:
        """Any queue may have grown: wake-ups from other servers may have been missed."""
        for topic_id in list(self.topics):
            self.wake(topic_id)

    async def idle(self) -> None:
        """Wait until no read of a topic's ends is running."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    def close(self) -> None:
        """Answer all waiting pulls empty, and let no further pull wait."""
        self._closed = True
        if self._beat is not None:
            self._beat.cancel()
        for queues in self.topics.values():
            for queue in queues.values():
                queue.end_all(woken=False)

    async def _update_ends(self, topic_id: int, *, is_notified: bool) -> None:
        try:
            await self._read_ends(topic_id, is_notified=is_notified)
            while topic_id in self._woken_meanwhile and topic_id in self.topics:
                self._woken_meanwhile.discard(topic_id)
                await self._read_ends(topic_id, is_notified=True)
        finally:
            self._woken_meanwhile.discard(topic_id)
            del self._tasks[topic_id]

    async def _read_ends(self, topic_id: int, *, is_notified: bool) -> None:
        try:
            ends = await self._ends_of(topic_id)
        except PopError:
            if not is_notified:
                return  # the next beat reads again
            # The pulls read for themselves and report the error to their callers.
            ends = {}
        for queue_id, queue in self.topics.get(topic_id, {}).items():
            if queue_id in ends:
                queue.set_end(ends[queue_id])
            else:
                queue.end_all(woken=True)

    def _remove(self, key: PollKey, queue_id: int, parked: ParkedPull) -> None:
        self._counts[key] -= 1
        self.count -= 1
        if not self._counts[key]:
            del self._counts[key]
        queues = self.topics[key.topic_id]
        del queues[queue_id].pulls[parked]
        if not queues[queue_id].pulls:
            del queues[queue_id]
        if not queues:
            del self.topics[key.topic_id]


def _end_wait(parked: ParkedPull, *, woken: bool) -> None:
    if not parked.woken.done():
        parked.woken.set_result(woken)
