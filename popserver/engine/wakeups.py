"""Parked long polls, and how they are woken.

Each topic has a wake number that grows with each wake-up. A poll reads the number *before* it asks the store, and parks
only if the number is still the same. Otherwise a message became READY in between, and the poll would miss it. A wake-up
wakes one parked poll of each group. If that poll leaves messages behind, it wakes the next one (`pass_on`). The room
remembers that a group found nothing at a wake number, so that a repeated poll parks without asking the store.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import IntEnum
from typing import NamedTuple

from popserver.engine.clock import Clock
from popserver.filters import Filter
from popserver.model.cache import LruCache

# As a RocketMQ proxy allows (requirement A9). Further polls are answered at once.
PARKED_PER_TOPIC_AND_GROUP_MAX = 1_024
PARKED_MAX = 100_000


class PollKey(NamedTuple):
    """The group and the topic of a poll."""

    group_id: int
    topic_id: int


class Woken(IntEnum):
    """Why a parked poll goes on."""

    NOT = 0  # its time is over, or the server is closing
    READY = 1  # the topic has messages
    AHEAD = 2  # the topic will have messages if the next transaction is committed


class Wakeups:
    """Every parked poll of this server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wake_numbers: dict[int, int] = {}
        self._wakes_of_all = 0
        self._parked: dict[int, dict[int, deque[asyncio.Future[Woken]]]] = {}
        self._empty: LruCache[tuple[PollKey, Filter], int] = LruCache()
        self._found_empty: dict[int, int] = {}  # by topic id: the newest number at which any group found nothing
        self._count = 0
        self._closed = False

    @property
    def parked(self) -> int:
        return self._count

    def wake_number(self, topic_id: int) -> int:
        return self._wake_numbers.get(topic_id, 0) + self._wakes_of_all

    def found_empty(self, key: PollKey, wanted: Filter, wake_number: int) -> None:
        """Remember that the group found no message for its filter `wanted` at this wake number."""
        self._empty.put((key, wanted), wake_number, wanted.memory)
        self._found_empty[key.topic_id] = max(wake_number, self._found_empty.get(key.topic_id, 0))

    def is_known_empty(self, key: PollKey, wanted: Filter) -> bool:
        number = self.wake_number(key.topic_id)
        return self._found_empty.get(key.topic_id) == number and self._empty.get((key, wanted)) == number

    def has_room(self, key: PollKey) -> bool:
        queue = self._parked.get(key.topic_id, {}).get(key.group_id, ())
        return len(queue) < PARKED_PER_TOPIC_AND_GROUP_MAX and self._count < PARKED_MAX

    async def park(self, key: PollKey, wake_number: int, until_ms: int) -> Woken:
        """Wait for a wake-up after `wake_number`. `NOT` if `until_ms` came first or the server is closing."""
        if self._closed:
            return Woken.NOT
        if self.wake_number(key.topic_id) != wake_number:
            return Woken.READY
        poll: asyncio.Future[Woken] = asyncio.get_running_loop().create_future()
        queue = self._parked.setdefault(key.topic_id, {}).setdefault(key.group_id, deque())
        queue.append(poll)
        self._count += 1
        alarm = self._clock.call_when_patience_ends(until_ms, lambda: _time_out(poll))
        try:
            return await poll
        except asyncio.CancelledError:
            # A wake-up may have chosen this poll just before its client left: wake the next poll.
            if poll.done() and not poll.cancelled() and poll.result():
                self.pass_on(key, poll.result())
            raise
        finally:
            alarm.cancel()
            self._leave(key, queue, poll)

    def wake(self, topic_id: int, woken: Woken = Woken.READY) -> None:
        """The topic has messages to deliver, or soon (`AHEAD`): wake one poll of each group."""
        self._wake_numbers[topic_id] = self._wake_numbers.get(topic_id, 0) + 1
        for queue in list(self._parked.get(topic_id, {}).values()):
            _wake_next(queue, woken)

    def wake_all(self) -> None:
        """Wake one poll of each group and topic: notifications of other servers may have been missed."""
        self._wakes_of_all += 1
        for groups in list(self._parked.values()):
            for queue in list(groups.values()):
                _wake_next(queue, Woken.READY)

    def pass_on(self, key: PollKey, woken: Woken = Woken.READY) -> None:
        """A poll left messages behind: wake the group's next poll."""
        queue = self._parked.get(key.topic_id, {}).get(key.group_id)
        if queue:
            _wake_next(queue, woken)

    def close(self) -> None:
        """End every parked poll without messages, and park no more polls."""
        self._closed = True
        for groups in list(self._parked.values()):
            for queue in list(groups.values()):
                for poll in list(queue):
                    _end_wait(poll, Woken.NOT)

    def _leave(self, key: PollKey, queue: deque[asyncio.Future[Woken]], poll: asyncio.Future[Woken]) -> None:
        self._count -= 1
        if poll in queue:
            queue.remove(poll)
        if not queue and self._parked.get(key.topic_id, {}).get(key.group_id) is queue:
            del self._parked[key.topic_id][key.group_id]
            if not self._parked[key.topic_id]:
                del self._parked[key.topic_id]


def _time_out(poll: asyncio.Future[Woken]) -> None:
    _end_wait(poll, Woken.NOT)


def _wake_next(queue: deque[asyncio.Future[Woken]], woken: Woken) -> None:
    while queue:
        if _end_wait(queue.popleft(), woken):
            return


def _end_wait(poll: asyncio.Future[Woken], woken: Woken) -> bool:
    if poll.done():
        return False
    poll.set_result(woken)
    return True
