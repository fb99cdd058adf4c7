"""The messages of one assigned queue that are fetched and not finished (requirements D1 to D11).

The queue may be committed up to its smallest unfinished offset. So one message that is never finished holds the
progress back, and after a restart all messages behind it are delivered again.

Safe in threads: the puller puts, the listener's threads remove, and a sweep looks for messages that take too long. Time
is always an argument, in seconds of a monotonic clock.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from typing import Final

from popclient._engine.flow import CachedQueue
from popclient.message import MessageView


class OffsetMap:
    """Messages by offset, in the order of their offsets. Not safe in threads: its owner locks.

    A sorted list and a dict: pulls bring offsets in order, so a new one is nearly always added at the end. Flow control
    allows a few thousand; to move them when one is taken out costs less than a tree would.
    """

    __slots__ = ("_messages", "_offsets")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._messages: dict[int, MessageView] = {}

    def put(self, message: MessageView) -> bool:
        """Adds it. False, without a change, if there is one with that offset."""
        offset = message.queue_offset
        if offset in self._messages:
            return False
        self._messages[offset] = message
        if not self._offsets or offset > self._offsets[-1]:
            self._offsets.append(offset)
        else:
            insort(self._offsets, offset)
        return True

    def pop(self, offset: int) -> MessageView | None:
        message = self._messages.pop(offset, None)
        if message is not None:
            del self._offsets[bisect_left(self._offsets, offset)]
        return message

    def pop_first(self, most: int) -> list[MessageView]:
        """Up to `most` messages of the smallest offsets, in order."""
        taken, self._offsets = self._offsets[:most], self._offsets[most:]
        return [self._messages.pop(offset) for offset in taken]

    def clear(self) -> None:
        self._offsets.clear()
        self._messages.clear()

    @property
    def first_offset(self) -> int | None:
        return self._offsets[0] if self._offsets else None

    @property
    def last_offset(self) -> int | None:
        return self._offsets[-1] if self._offsets else None

    def get(self, offset: int) -> MessageView | None:
        return self._messages.get(offset)

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: object) -> bool:
        return offset in self._messages

    def in_order(self) -> list[MessageView]:
        return [self._messages[offset] for offset in self._offsets]


# The server frees an unrenewed lock after 60 s; its holder stops consuming well before (requirements D8, F3).
LOCK_EXPIRED_AFTER: Final = 30.0
# What `remove` and `commit` return if nothing can be committed.
NOTHING_CACHED: Final = -1


class ProcessQueue:
    """Made when the queue is assigned, and `dropped` for ever when it is taken away.

    dropped: no message of it is pulled, consumed or committed any more (requirement D6). It takes and returns no
        messages and has no offset to commit; the new owner of the queue gets the messages again.
    given_up_timestamp: the time of the first try to give it up; None before.
    try_unlock_times: how often it could not be given up because its listener was running (requirement F6).
    generation: of the topic of its messages; 0 until it is known.
    """

    def __init__(self, now: float) -> None:
        self.dropped = False
        self.generation = 0
        self.given_up_timestamp: float | None = None
        self.try_unlock_times = 0
        self.last_pull_timestamp = now
        self.last_consume_timestamp = now
        self.last_lock_timestamp = now
        self._locked = False
        self._mutex = threading.Lock()
        self._waiting = OffsetMap()  # concurrent: all unfinished messages; orderly: those without a listener
        self._taken = OffsetMap()  # orderly: the batch that the listener has
        self._dispatched = False
        self._highest = NOTHING_CACHED
        self._bytes = 0
        self._started: dict[int, float] = {}
        self._claimed: set[int] = set()

    # ---- What is held ----

    def put(self, messages: Iterable[MessageView]) -> bool:
        """Adds what was pulled, without offsets that are here already (requirement D11).

        True if the orderly listener must be started: there are messages for it, and it does not run (requirement D3).
        """
        with self._mutex:
            if self.dropped:
                return False
            for message in messages:
                if message.queue_offset not in self._taken and self._waiting.put(message):
                    self._highest = max(self._highest, message.queue_offset)
                    self._bytes += size_of(message)
            starts = len(self._waiting) > 0 and not self._dispatched
            self._dispatched = self._dispatched or starts
            return starts

    def remove(self, messages: Iterable[MessageView], now: float) -> int:
        """Takes out finished messages. Returns the offset that may be committed (requirement D4).

        That is the smallest offset left, the highest ever put plus 1 if none is left, -1 if nothing was there before.
        """
        with self._mutex:
            self.last_consume_timestamp = now
            if not self._waiting:
                return NOTHING_CACHED
            for message in messages:
                if (removed := self._waiting.pop(message.queue_offset)) is not None:
                    self._forget(removed)
            if self.dropped:
                return NOTHING_CACHED
            first = self._waiting.first_offset
            return self._highest + 1 if first is None else first

    def clear(self) -> None:
        """Forgets all messages."""
        with self._mutex:
            self._waiting.clear()
            self._taken.clear()
            self._started.clear()
            self._claimed.clear()
            self._dispatched = False
            self._bytes = 0

    @property
    def cached(self) -> CachedQueue:
        with self._mutex:
            messages = len(self._waiting) + len(self._taken)
            return CachedQueue(messages, self._bytes, self._waiting.first_offset, self._waiting.last_offset)

    @property
    def unfinished_span(self) -> int:
        """How far the newest offset that was ever here is from the first one that is not finished."""
        with self._mutex:
            first = self._waiting.first_offset
            return 0 if first is None else self._highest - first

    @property
    def is_empty(self) -> bool:
        """Whether there are no messages, neither waiting nor with the listener."""
        with self._mutex:
            return not self._waiting and not self._taken

    # ---- Concurrent consumption: who decides about a message ----

    def start(self, messages: Iterable[MessageView], now: float) -> None:
        """The listener gets them now (requirement E6)."""
        with self._mutex:
            for message in messages:
                if message.queue_offset in self._waiting:
                    self._started[message.queue_offset] = now

    def expired(self, now: float, consume_timeout: float, most: int) -> list[MessageView]:
        """Claims up to `most` of the first messages that a listener has had for longer than `consume_timeout` seconds.

        The search ends at the first other message, as in RocketMQ: messages behind it do not hold the progress back.
        """
        with self._mutex:
            if self.dropped:
                return []
            late: list[MessageView] = []
            for message in self._waiting.in_order():
                offset = message.queue_offset
                if offset in self._claimed:
                    continue
                if len(late) >= most or now - self._started.get(offset, now) <= consume_timeout:
                    break
                late.append(message)
            self._claimed.update(message.queue_offset for message in late)
            return late

    def claim(self, messages: Iterable[MessageView]) -> list[MessageView]:
        """Claims the messages that are here and not claimed. The caller decides about them.

        The listener's result and the sweep of late messages both claim before they act, so only one of them hands a
        message back, and a late success makes no second copy (requirement D10).
        """
        with self._mutex:
            if self.dropped:
                return []
            mine = [
                message
                for message in messages
                if message.queue_offset in self._waiting and message.queue_offset not in self._claimed
            ]
            self._claimed.update(message.queue_offset for message in mine)
            return mine

    def disclaim(self, messages: Iterable[MessageView]) -> None:
        """The decision could not be carried out: they stay, and may be claimed again.

        They also stay started: if the listener has ended meanwhile and does not get them again, only the next sweep
        can take them out.
        """
        with self._mutex:
            self._claimed.difference_update(message.queue_offset for message in messages)

    # ---- Orderly consumption: one batch at a time is with the listener (requirement D9) ----

    def take(self, most: int, now: float) -> list[MessageView]:
        """The next batch for the listener, in order. If it is empty, the run ends, and the next `put` starts one."""
        with self._mutex:
            self.last_consume_timestamp = now
            batch = [] if self.dropped else self._waiting.pop_first(most)
            for message in batch:
                self._taken.put(message)
            if not batch:
                self._dispatched = False
            return batch

    def commit(self) -> int:
        """The batch is finished. Returns the offset to commit: its last offset plus 1; -1 if there is no batch."""
        with self._mutex:
            last = self._taken.last_offset
            if last is None:
                return NOTHING_CACHED
            for message in self._taken.in_order():
                self._forget(message)
            self._taken.clear()
            return NOTHING_CACHED if self.dropped else last + 1

    def rollback(self) -> None:
        """The listener will get the whole batch again, from its first message on."""
        with self._mutex:
            self._take_back(self._taken.in_order())

    def consume_again(self, messages: Sequence[MessageView]) -> None:
        """The listener will get these messages of the batch again. The others stay in the batch."""
        with self._mutex:
            self._take_back(messages)

    # ---- Beats ----

    def pulled(self, now: float) -> None:
        self.last_pull_timestamp = now

    def is_pull_expired(self, now: float, after: float) -> bool:
        """Whether nothing was pulled for `after` seconds: its pulls have stopped, and rebalancing starts it anew."""
        return now - self.last_pull_timestamp > after

    def lock(self, now: float) -> None:
        """The server has granted or renewed the queue's lock. `now` is the time of the request."""
        self.last_lock_timestamp = now
        self._locked = True

    def unlock(self) -> None:
        self._locked = False

    @property
    def locked(self) -> bool:
        """Whether the lock was granted and not lost. It may have expired; `has_lock` checks that too."""
        return self._locked

    def is_lock_expired(self, now: float) -> bool:
        return now - self.last_lock_timestamp > LOCK_EXPIRED_AFTER

    def has_lock(self, now: float) -> bool:
        """For orderly consumers: whether the lock was granted, and recently enough."""
        return self._locked and not self.is_lock_expired(now)

    def may_consume(self, now: float) -> bool:
        return not self.dropped and self.has_lock(now)

    # ---- Within the mutex ----

    def _forget(self, message: MessageView) -> None:
        self._bytes -= size_of(message)
        self._started.pop(message.queue_offset, None)
        self._claimed.discard(message.queue_offset)

    def _take_back(self, messages: Iterable[MessageView]) -> None:
        for message in messages:
            if (taken := self._taken.pop(message.queue_offset)) is not None:
                self._waiting.put(taken)

    def __repr__(self) -> str:
        cached = self.cached
        return (
            f"<ProcessQueue {cached.messages} messages {cached.bytes} bytes"
            f" offsets={cached.first_offset}..{cached.last_offset}"
            f" dropped={self.dropped} locked={self.locked}>"
        )


def size_of(message: MessageView) -> int:
    """Bytes of its body, as it came over the wire."""
    return len(message._wire.body)
