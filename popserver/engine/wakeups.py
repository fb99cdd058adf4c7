"""Parked long polls and their wake-ups; and the notification of subscribers after a commit (`Effects`).

Each topic has a wake number that grows with each wake-up. A poll reads the number *before* it searches the database,
and parks only if the number is still the same. Otherwise a message became READY in between, and the poll would miss it.
A wake-up wakes one parked poll of each group. If this poll leaves messages behind, it wakes the next one (`pass_on`).
`Wakeups` remembers the wake number at which a group found nothing, so that a repeated poll parks without a search.
Every 5 s parked polls search all the same, so a lost wake-up delays a message by at most 5 s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from popserver.database.notifications import Invalidation
from popserver.engine.clock import Alarm, Clock
from popserver.engine.timers import DueTimer
from popserver.filters import Filter
from popserver.model.cache import LruCache
from popserver.model.names import Resource
from popserver.model.retry import SECOND_MS

# As a RocketMQ proxy allows (requirement A9). Further polls are answered at once.
PARKED_PER_TOPIC_AND_GROUP_MAX = 1_024
PARKED_MAX = 100_000
# How often parked polls search in case a wake-up was lost (requirement A5): one poll of each group and topic, at most
# so many polls at once. Groups and topics take turns.
BEAT_MS = 5_000
BEAT_POLLS_MAX = 64
WATCHED_MS = 60 * SECOND_MS  # how long a topic is watched after its last wait


# What wakes a poll: a topic, by its id, or a client's lite topics in it.
WakeKey = int | tuple[int, str]


class PollKey(NamedTuple):
    """The group and the topic of a poll; and its client, if the client gets only lite topics that it subscribes to."""

    group_id: int
    topic_id: int
    client_id: str = ""

    @property
    def wake_key(self) -> WakeKey:
        return (self.topic_id, self.client_id) if self.client_id else self.topic_id


class Woken(IntEnum):
    """Why a parked poll goes on."""

    ENDED = 0  # its time is over, its topic or group was changed, or the server is closing
    READY = 1  # the topic has messages
    AHEAD = 2  # the topic will have messages if the next transaction is committed
    BEAT = 3  # in case a wake-up was lost; there may be no message


_Queue = deque[asyncio.Future[Woken]]


class Wakeups:
    """Every parked poll of this server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.watched = WatchedTopics(clock)
        self._wakes = 0  # of all wake keys together, so that no key gets a number twice
        self._wake_numbers: dict[WakeKey, int] = {}
        self._wake_of_all = 0  # the wake number of keys that were not woken since `wake_all`
        self._parked: dict[WakeKey, dict[int, _Queue]] = {}
        self._in_turn: dict[tuple[WakeKey, int], _Queue] = {}  # the same queues, in the order of their turns on a beat
        # The wake number, and the time. A lost wake-up makes the entry wrong, so it is valid for one beat only.
        self._empty: LruCache[tuple[PollKey, Filter], tuple[int, int]] = LruCache()
        self._found_empty: dict[WakeKey, int] = {}  # the newest number at which any group found nothing
        self._count = 0
        self._beat: Alarm | None = None
        self._closed = False

    @property
    def parked(self) -> int:
        return self._count

    def wake_number(self, wake_key: WakeKey) -> int:
        return max(self._wake_numbers.get(wake_key, 0), self._wake_of_all)

    def found_empty(self, key: PollKey, wanted: Filter, wake_number: int) -> None:
        """Remember that the group found no message for its filter `wanted` at this wake number.

        A key with a client is remembered only if it has been woken, so that invented client ids take no memory.
        """
        if not self.watched.hears_of(key.topic_id):
            return
        if key.client_id and key.wake_key not in self._wake_numbers:
            return
        self._empty.put((key, wanted), (wake_number, self._clock.now_ms()), wanted.memory)
        self._found_empty[key.wake_key] = max(wake_number, self._found_empty.get(key.wake_key, 0))

    def is_known_empty(self, key: PollKey, wanted: Filter) -> bool:
        number = self.wake_number(key.wake_key)
        if self._found_empty.get(key.wake_key) != number:
            return False
        found_at, at_ms = self._empty.get((key, wanted)) or (None, 0)
        return found_at == number and self._clock.now_ms() - at_ms < BEAT_MS

    def has_capacity(self, key: PollKey) -> bool:
        queue = self._parked.get(key.wake_key, {}).get(key.group_id, ())
        return len(queue) < PARKED_PER_TOPIC_AND_GROUP_MAX and self._count < PARKED_MAX

    async def park(self, key: PollKey, wake_number: int, until_ms: int) -> Woken:
        """Wait for a wake-up after `wake_number`, at most until `until_ms`. Returns why the wait is over."""
        if self._closed:
            return Woken.ENDED
        if self.wake_number(key.wake_key) != wake_number:
            return Woken.READY
        poll: asyncio.Future[Woken] = asyncio.get_running_loop().create_future()
        queue = self._parked.setdefault(key.wake_key, {}).setdefault(key.group_id, deque())
        self._in_turn.setdefault((key.wake_key, key.group_id), queue)
        queue.append(poll)
        self._count += 1
        if self._beat is None:
            self._beat = self._clock.call_at(self._clock.now_ms() + BEAT_MS, self._wake_on_beat)
        alarm = self._clock.call_at_deadline(until_ms, lambda: _time_out(poll))
        try:
            with self.watched.at(key.topic_id):
                return await poll
        except asyncio.CancelledError:
            # This poll may have been woken just before its client left: wake the next poll instead.
            if poll.done() and not poll.cancelled() and poll.result():
                self.pass_on(key, poll.result())
            raise
        finally:
            alarm.cancel()
            self._leave(key, queue, poll)

    def wake(self, wake_key: WakeKey, woken: Woken = Woken.READY) -> None:
        """Wake one poll of each group: the key has messages to deliver, or will soon have some (`AHEAD`)."""
        self._wakes += 1
        self._wake_numbers[wake_key] = self._wakes
        for queue in list(self._parked.get(wake_key, {}).values()):
            _wake_next(queue, woken)

    def wake_all(self) -> None:
        """Wake one poll of each group and topic, because notifications of other servers may be lost."""
        self._wakes += 1
        self._wake_of_all = self._wakes
        for groups in list(self._parked.values()):
            for queue in list(groups.values()):
                _wake_next(queue, Woken.READY)

    def forget(self, wake_key: WakeKey) -> None:
        """Wake the key's polls and remove its wake number: its topic was deleted, or its client has left."""
        self.wake(wake_key)
        del self._wake_numbers[wake_key]
        self._found_empty.pop(wake_key, None)

    def has_parked(self, wake_key: WakeKey) -> bool:
        """Whether a poll waits for the key."""
        return wake_key in self._parked

    def end(self, key: PollKey) -> None:
        """End the parked polls of a group for the key without messages."""
        for poll in list(self._parked.get(key.wake_key, {}).get(key.group_id, ())):
            _end_wait(poll, Woken.ENDED)

    def _wake_on_beat(self) -> None:
        """Wake one poll of each group and topic, at most `BEAT_POLLS_MAX` of them, in turn."""
        self._beat = None
        for turn in list(islice(self._in_turn, BEAT_POLLS_MAX)):
            queue = self._in_turn[turn] = self._in_turn.pop(turn)
            _wake_next(queue, Woken.BEAT)
        if self._count and not self._closed:
            self._beat = self._clock.call_at(self._clock.now_ms() + BEAT_MS, self._wake_on_beat)

    def pass_on(self, key: PollKey, woken: Woken = Woken.READY) -> None:
        """Wake the group's next poll, because one of its polls left messages behind."""
        queue = self._parked.get(key.wake_key, {}).get(key.group_id)
        if queue:
            _wake_next(queue, woken)

    def close(self) -> None:
        """End every parked poll without messages, and park no more polls."""
        self._closed = True
        if self._beat is not None:
            self._beat.cancel()
        for groups in list(self._parked.values()):
            for queue in list(groups.values()):
                for poll in list(queue):
                    _end_wait(poll, Woken.ENDED)

    def _leave(self, key: PollKey, queue: _Queue, poll: asyncio.Future[Woken]) -> None:
        self._count -= 1
        if poll in queue:
            queue.remove(poll)
        if not queue and self._parked.get(key.wake_key, {}).get(key.group_id) is queue:
            del self._parked[key.wake_key][key.group_id], self._in_turn[key.wake_key, key.group_id]
            if not self._parked[key.wake_key]:
                del self._parked[key.wake_key]


def _time_out(poll: asyncio.Future[Woken]) -> None:
    _end_wait(poll, Woken.ENDED)


def _wake_next(queue: _Queue, woken: Woken) -> None:
    while queue:
        if _end_wait(queue.popleft(), woken):
            return


def _end_wait(poll: asyncio.Future[Woken], woken: Woken) -> bool:
    if poll.done():
        return False
    poll.set_result(woken)
    return True


class WatchedTopics:
    """The topics in which receives or pulls of this server wait, or waited within the last minute.

    Other servers notify this one of messages in these topics only (`cluster.wants`). `is_shared`: other servers run.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waits: dict[int, int] = {}  # by topic id: how many wait now
        self._left_ms: dict[int, int] = {}  # by topic id: when the last of them ended
        self.is_shared = False
        self.on_new: Callable[[], None] = lambda: None  # a topic is watched from now on

    @contextmanager
    def at(self, topic_id: int) -> Iterator[None]:
        """A poll waits in this topic."""
        is_new = topic_id not in self
        self._waits[topic_id] = self._waits.get(topic_id, 0) + 1
        if is_new:
            self.on_new()
        try:
            yield
        finally:
            self._waits[topic_id] -= 1
            if not self._waits[topic_id]:
                del self._waits[topic_id]
                self._left_ms[topic_id] = self._clock.now_ms()

    def __contains__(self, topic_id: int) -> bool:
        return topic_id in self._waits or topic_id in self._left_ms

    def hears_of(self, topic_id: int) -> bool:
        """Whether this server is notified of each new message of the topic."""
        return not self.is_shared or topic_id in self

    def topics(self) -> frozenset[int]:
        return frozenset(self._waits).union(self._left_ms)

    def forget_old(self) -> None:
        """Watch no more what nobody has waited for in the last minute."""
        until_ms = self._clock.now_ms() - WATCHED_MS
        self._left_ms = {topic_id: left_ms for topic_id, left_ms in self._left_ms.items() if left_ms > until_ms}


class Effects:
    """Notifies subscribers of what committed transactions changed. Subscribers are called in the event loop."""

    def __init__(self) -> None:
        self._ready: list[tuple[Callable[[int], None], Container[int] | None]] = []
        self._lite: tuple[Callable[[int, Collection[int] | None], None], Container[int]] = _no_lite_topics, ()
        self._due: dict[str, DueTimer] = {}
        self._invalidated: dict[str, Callable[[Resource], None]] = {}

    def on_ready(self, callback: Callable[[int], None], among: Container[int] | None = None) -> None:
        """`callback` gets the id of each topic that has messages to deliver, or of those in `among` only."""
        self._ready.append((callback, among))

    def on_ready_lite(self, callback: Callable[[int, Collection[int] | None], None], among: Container[int]) -> None:
        """`callback` gets the id of a topic in `among`, and the hashes of its lite topics that have messages to
        deliver; None: perhaps all of them."""
        self._lite = callback, among

    def on_due(self, kind: str, timer: DueTimer) -> None:
        """`timer` is set to an earlier time when a transaction reports an earlier due time of this kind."""
        self._due[kind] = timer

    def on_invalidated(self, kind: str, callback: Callable[[Resource], None]) -> None:
        """`callback` gets the name of each topic or group whose data of this kind changed."""
        self._invalidated[kind] = callback

    def ready(self, topics: Mapping[int, Collection[int] | None]) -> None:
        """Notify of topics that have messages to deliver. Each id's value: the hashes of the lite topics that have
        some; None: the whole topic."""
        of_lite_topics, with_clients = self._lite
        for topic_id, hashes in topics.items():
            for callback, among in self._ready:
                if among is None or topic_id in among:
                    callback(topic_id)
            if topic_id in with_clients:
                of_lite_topics(topic_id, hashes)

    def due(self, times: Mapping[str, int]) -> None:
        for kind, at_ms in times.items():
            timer = self._due.get(kind)
            if timer is not None and (timer.due_ms is None or at_ms < timer.due_ms):
                timer.expect(at_ms)

    def invalidations(self, changed: Iterable[Invalidation]) -> None:
        for kind, namespace, name in changed:
            if kind in self._invalidated:
                self._invalidated[kind](Resource(namespace, name))


def _no_lite_topics(_topic_id: int, _hashes: Collection[int] | None) -> None:
    """No client has subscribed to lite topics."""
