"""What a server counts while it works: numbers of messages, bytes, and how long things took.

The event loop counts; only commits are counted by the writer's thread. Each message is counted, so the caller adds to
the numbers itself instead of calling a function:

    histogram.counts[bisect_left(histogram.limits, value)] += 1
    histogram.total += value
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Generic, TypeVar

from popserver.model.topic import MessageType

# So many topics, or pairs of a group and a topic, have counts of their own. All others share one count.
COUNTED_MAX = 50_000
KIB, MIB = 1024, 1024 * 1024

# The limits of RocketMQ's histograms, so that its dashboards work.
CALL_MS = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
CREATE_MS = (10, 100, 1_000, 3_000, 5_000)
DECISION_S = (5, 60, 600, 3_600, 43_200, 86_400)
DELAY_S = (60, 600, 3_600, 43_200, 86_400, 259_200)
SIZE_BYTES = (KIB, 4 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB)
# Limits of PopMQ's own histograms.
TRANSACTION_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
TRANSACTION_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
DELIVERY_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000, 300_000, 3_600_000)

Key = TypeVar("Key")
Counted = TypeVar("Counted")
Made = TypeVar("Made")

now_s = perf_counter  # for measuring; it is not the time of day


class Histogram:
    """How many values were at most each of the limits, and the sum of all."""

    __slots__ = ("counts", "limits", "total")

    def __init__(self, limits: tuple[float, ...]) -> None:
        self.limits = limits
        self.counts = [0] * (len(limits) + 1)  # the last one: above all limits
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value. For code that does not run for each message."""
        self.counts[bisect_left(self.limits, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


@dataclass(slots=True, eq=False)
class Sent:
    """Messages of one type that producers sent to a topic."""

    sizes: Histogram = field(default_factory=partial(Histogram, SIZE_BYTES))  # of the bodies


@dataclass(slots=True, eq=False)
class Delivered:
    """Messages of a topic that were delivered to a group."""

    delays: Histogram = field(
        default_factory=partial(Histogram, DELIVERY_MS)
    )  # from storing to the first attempt, in ms
    bytes: int = 0  # of their bodies
    held: int = 0  # first attempts of bulk receives and pulls, whose delays are not known
    retries: int = 0
    retry_bytes: int = 0
    holds: int = 0  # deliveries that consumers have to ack: all but those of pulls
    acks: int = 0
    requeued: int = 0  # became READY again, because a hold or a retry interval ended


@dataclass(slots=True, eq=False)
class Ended:
    """The decisions about half messages of a topic. Repeated decisions do not count."""

    ages: Histogram = field(default_factory=partial(Histogram, DECISION_S))  # from storing to commit, in s
    rollbacks: int = 0


@dataclass(slots=True, eq=False)
class Timed:
    """Delayed messages of a topic. One of a user's transaction counts when it enters its queue."""

    delays: Histogram = field(default_factory=partial(Histogram, DELAY_S))  # from storing to the delivery time, in s
    entered: int = 0  # messages that entered their queues when they were due


class Created(Enum):
    """What is created, by a command or on first use."""

    TOPIC = "topic"
    GROUP = "group"


class Tallies(dict[Key, Counted], Generic[Key, Counted]):
    """Counts by key, made when they are first asked for. Beyond `COUNTED_MAX` all further keys share one."""

    def __init__(self, kind: Callable[[], Counted]) -> None:
        self._kind = kind
        self.others: Counted | None = None

    def __missing__(self, key: Key) -> Counted:
        if len(self) < COUNTED_MAX:
            made = self[key] = self._kind()
            return made
        if self.others is None:
            self.others = self._kind()
        return self.others


class Meters:
    """Everything that one server counts."""

    def __init__(self) -> None:
        self.sent: Tallies[tuple[int, MessageType], Sent] = Tallies(Sent)  # by topic id and type
        self.delivered: Tallies[tuple[int, int], Delivered] = Tallies(Delivered)  # by group id and topic id
        self.ended: Tallies[int, Ended] = Tallies(Ended)  # by topic id
        self.timed: Tallies[int, Timed] = Tallies(Timed)  # by topic id
        self.created = {kind: {ok: Histogram(CREATE_MS) for ok in (True, False)} for kind in Created}
        self.calls: dict[str, Tallies[int, Histogram]] = {}  # by method and status code, in ms
        self.transactions = Histogram(TRANSACTION_S)  # from its first request to the answers
        self.commits = Histogram(TRANSACTION_S)
        self.requests = Histogram(TRANSACTION_REQUESTS)  # of a transaction

    def calls_of(self, method: str) -> Tallies[int, Histogram]:
        """How long calls of a method took, in ms, by the code of their status; 0 for calls that their clients ended."""
        return self.calls.setdefault(method, Tallies(partial(Histogram, CALL_MS)))

    async def creating(self, kind: Created, answer: Awaitable[Made]) -> Made:
        """Wait for the answer, and count how long it took to create something, in ms."""
        began_s, is_ok = now_s(), False
        try:
            made = await answer
            is_ok = True
            return made
        finally:
            self.created[kind][is_ok].add((now_s() - began_s) * 1_000)
