"""How many messages a consumer may hold: the whole client, and of one queue.

The budget of a client counts messages and bytes of their bodies (requirements A3, C6). Before a poll is sent, it takes
a permit for what it asks for, so all polls together never bring more messages than fit. The size of a message is not
known before it arrives: a poll guesses it from earlier messages, and no poll is sent while the bytes are used up.

The limits of a queue (requirements C1 to C5) are checked before each pull, so the cache may exceed a limit by the
batch of one pull.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from popclient._arguments import Check, Options, option, whole
from popclient.message import MessageQueue

# A poll for a few costs as much as one for many; so a poll waits until this part of the budget is free.
PART_WORTH_A_POLL: Final = 4
PACE_SPAN: Final = 0.25  # seconds
MIB: Final = 1024 * 1024
OFF: Final = -1
FLOW_CONTROL_PAUSE: Final = 0.05  # seconds until the next look
WARN_EACH: Final = 1_000
COUNT_MAX: Final = 65_535
COUNT_OF_TOPIC_MAX: Final = 6_553_500
SIZE_MAX: Final = 1_024
SIZE_OF_TOPIC_MAX: Final = 102_400


class Cached(NamedTuple):
    """The messages that a push consumer has received and not settled. `bytes` counts bodies."""

    messages: int
    bytes: int


class Permit(NamedTuple):
    """What one poll may bring. `CacheBudget.release` gives it back."""

    messages: int
    bytes: int


class CacheBudget:
    """Counts messages that are held, and those that running polls may bring."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0
        self.bytes = 0
        self.settled = 0  # all so far
        self.asked_messages = 0
        self.asked_bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def acquire(self, wanted: int, message_bytes: int, polls: int) -> Permit:
        """Waits until the budget allows it; grants at most `wanted` messages of a guessed size.

        polls: how many polls share the budget. A poll on an empty topic keeps its permit, so it must leave enough for
            the others.
        """
        wanted = max(1, min(wanted, self.max_messages // polls))
        enough = max(1, min(wanted, self.max_messages // PART_WORTH_A_POLL))
        async with self._turn:  # in the order of asking
            while self._free_messages < enough or self._free_bytes <= 0:
                self._freed.clear()
                await self._freed.wait()
            most_bytes = self.max_bytes // (2 * polls)
            fitting = min(most_bytes, self._free_bytes) // max(message_bytes, 1)
            granted = max(1, min(wanted, self._free_messages, fitting))
            permit = Permit(granted, min(granted * message_bytes, most_bytes))
            self.asked_messages += permit.messages
            self.asked_bytes += permit.bytes
            return permit

    def take(self, size: int) -> None:
        """A message of that many bytes has arrived."""
        self.messages += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        """A message of that many bytes is settled."""
        self.messages -= 1
        self.settled += 1
        self.bytes -= size
        self._freed.set()

    def release(self, permit: Permit) -> None:
        """The poll has ended, and its messages were counted with `take`."""
        self.asked_messages -= permit.messages
        self.asked_bytes -= permit.bytes
        self._freed.set()

    @property
    def cached(self) -> Cached:
        return Cached(self.messages, self.bytes)

    @property
    def _free_messages(self) -> int:
        return self.max_messages - self.messages - self.asked_messages

    @property
    def _free_bytes(self) -> int:
        return self.max_bytes - self.bytes - self.asked_bytes


class RecentWork:
    """How many messages a consumer has worked off lately: in the last one to two spans of 0.25 s."""

    def __init__(self) -> None:
        self._before = self._mark = 0
        self._marked_at = -math.inf

    def count(self, worked_off: int, now: float) -> int:
        """The number of the last spans. worked_off: all messages so far. now: seconds."""
        age = now - self._marked_at
        if age >= PACE_SPAN:
            self._before = self._mark if age < 2 * PACE_SPAN else worked_off
            self._mark, self._marked_at = worked_off, now
        return worked_off - self._before


@dataclass(frozen=True, slots=True)
class CachedQueue:
    """What a client has cached of one queue, for flow control and for users.

    bytes: of bodies, as they came over the wire. first_offset, last_offset: without the messages that an orderly
    listener is working on; None if there are no others.
    """

    messages: int
    bytes: int
    first_offset: int | None
    last_offset: int | None

    @property
    def span(self) -> int:
        """From the first offset to the last; 0 if there are none."""
        if self.first_offset is None or self.last_offset is None:
            return 0
        return self.last_offset - self.first_offset


class Exceeded(StrEnum):
    """The limit because of which a queue is not pulled."""

    COUNT = "COUNT"
    SIZE = "SIZE"
    SPAN = "SPAN"
    UNFINISHED = "UNFINISHED"


def _of_topic(most: int) -> Check:
    return lambda name, given: given if given == OFF else whole(1, most)(name, given)


@dataclass(frozen=True, slots=True)
class QueueLimits(Options):
    """What may be cached of one queue. Sizes are in MiB, as in RocketMQ.

    A threshold of the topic that is not -1 replaces the one of the queue: it is divided among the queues that are
    owned.
    consume_concurrently_max_span: between the first and the last offset. Finished messages do not count, so while one
    message does not finish, the queue is pulled slowly.
    max_unfinished_span: between the first unfinished offset and the newest one that was pulled; -1: no limit. The queue
    is not pulled until that message is finished. Orderly consumers ignore both.
    """

    pull_threshold_for_queue: int = option(whole(1, COUNT_MAX), 1_000)
    pull_threshold_size_for_queue: int = option(whole(1, SIZE_MAX), 100)
    pull_threshold_for_topic: int = option(_of_topic(COUNT_OF_TOPIC_MAX), OFF)
    pull_threshold_size_for_topic: int = option(_of_topic(SIZE_OF_TOPIC_MAX), OFF)
    consume_concurrently_max_span: int = option(whole(1, COUNT_MAX), 2_000)
    max_unfinished_span: int = option(_of_topic(COUNT_MAX), OFF)

    def of_queue(self, owned_queues: int) -> QueueLimits:
        """These limits, with the topic's thresholds divided among so many of its queues; each gets at least 1."""
        if owned_queues < 1:
            return self
        return replace(
            self,
            pull_threshold_for_queue=min(
                _share(self.pull_threshold_for_topic, owned_queues, self.pull_threshold_for_queue), COUNT_MAX
            ),
            pull_threshold_size_for_queue=min(
                _share(self.pull_threshold_size_for_topic, owned_queues, self.pull_threshold_size_for_queue), SIZE_MAX
            ),
        )

    def exceeded(self, cached: CachedQueue, *, orderly: bool, unfinished_span: int = 0) -> Exceeded | None:
        """The limit that is exceeded; None if the queue may be pulled."""
        if cached.messages > self.pull_threshold_for_queue:
            return Exceeded.COUNT
        if cached.bytes > self.pull_threshold_size_for_queue * MIB:
            return Exceeded.SIZE
        if not orderly and cached.span > self.consume_concurrently_max_span:
            return Exceeded.SPAN
        if not orderly and OFF != self.max_unfinished_span < unfinished_span:
            return Exceeded.UNFINISHED
        return None

    def sentence(self, mq: MessageQueue, cached: CachedQueue, exceeded: Exceeded, times: int) -> str:
        """For the log: what is cached, which limit it passes, and how often so far."""
        limits: Mapping[Exceeded, str] = {
            Exceeded.COUNT: f"pull_threshold_for_queue {self.pull_threshold_for_queue}",
            Exceeded.SIZE: f"pull_threshold_size_for_queue {self.pull_threshold_size_for_queue} MiB",
            Exceeded.SPAN: f"consume_concurrently_max_span {self.consume_concurrently_max_span}",
            Exceeded.UNFINISHED: f"max_unfinished_span {self.max_unfinished_span}",
        }
        return (
            f"{mq} is not pulled for now: {cached.messages} messages, {cached.bytes} bytes, offsets"
            f" {cached.first_offset} to {cached.last_offset} are cached, beyond {limits[exceeded]};"
            f" {times} times so far; the listener is slower than the queue fills"
        )


class FlowTimes:
    """How often each limit was exceeded, and when to write it to the log (requirement C4)."""

    def __init__(self) -> None:
        self._times = dict.fromkeys(Exceeded, 0)

    def hit(self, exceeded: Exceeded) -> bool:
        """Counts one time. True for the 1st, the 1001st, the 2001st and so on."""
        self._times[exceeded] += 1
        return self._times[exceeded] % WARN_EACH == 1

    def times(self, exceeded: Exceeded) -> int:
        return self._times[exceeded]


def _share(threshold: int, queues: int, otherwise: int) -> int:
    return otherwise if threshold == OFF else max(1, threshold // queues)
