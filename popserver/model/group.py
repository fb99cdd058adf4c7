"""Consumer groups. A group owns its progress, delivery attempts and dead letters."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from popserver.model.errors import BadRequest
from popserver.model.names import Resource
from popserver.model.retry import HOUR_MS, Exponential, Intervals, RetryPolicy
from popserver.model.states import Event
from popserver.model.times import span

MAX_ATTEMPTS_MAX = 1_000
INTERVALS_MAX = 64
INTERVAL_MS_MAX = 12 * HOUR_MS
MULTIPLIER_MAX = 100


class ConsumeFrom(StrEnum):
    """Where a group begins in a topic that it has not consumed before; fixed when the group is created."""

    EARLIEST = "EARLIEST"
    LATEST = "LATEST"


class HistoryLevel(StrEnum):
    """Which events of a group are written to its history: those in `kept`."""

    kept: tuple[Event, ...]

    NONE = "none"
    ERRORS = "errors"
    ALL = "all"


class Mode(StrEnum):
    """How a group consumes: message by message (POP), or whole queues (PULL). Fixed at its first use."""

    POP = "POP"
    PULL = "PULL"


class Model(StrEnum):
    """Whether the members of a group divide the messages, or each gets all of them (requirements G1, G2)."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class LiteModel(StrEnum):
    """Which lite topics the clients of a group get (docs/design/0021).

    SHARED: those that they subscribe to; several clients may share one. EXCLUSIVE: one client at a time has a lite
    topic, the last that subscribed to it. WILDCARD: all.
    """

    SHARED = "SHARED"
    EXCLUSIVE = "EXCLUSIVE"
    WILDCARD = "WILDCARD"


class Group(NamedTuple):
    """A consumer group. `lite` is None for a group of ordinary consumers."""

    group_id: int
    name: Resource
    retry: RetryPolicy
    consume_from: ConsumeFrom
    history: HistoryLevel
    mode: Mode | None
    created_at_ms: int
    lite: LiteModel | None = None

    @property
    def chooses(self) -> bool:
        """Whether its clients get only the lite topics that they subscribe to."""
        return self.lite in CHOOSING


# The models in which clients subscribe to lite topics by name.
CHOOSING = (LiteModel.SHARED, LiteModel.EXCLUSIVE)


class NewGroup(NamedTuple):
    """The properties of a group that is created."""

    name: Resource
    retry: RetryPolicy = RetryPolicy()
    consume_from: ConsumeFrom = ConsumeFrom.EARLIEST
    history: HistoryLevel = HistoryLevel.ERRORS
    lite: LiteModel | None = None


def check_max_attempts(max_attempts: int) -> None:
    if not 1 <= max_attempts <= MAX_ATTEMPTS_MAX:
        raise BadRequest(f"max attempts is 1 to {MAX_ATTEMPTS_MAX} deliveries, not {max_attempts}")


def check_intervals(intervals_ms: Intervals) -> None:
    """Check a retry ladder or exponential intervals. Raises `BadRequest`."""
    if isinstance(intervals_ms, Exponential):
        _check_exponential(intervals_ms)
        return
    if not 1 <= len(intervals_ms) <= INTERVALS_MAX:
        raise BadRequest(f"a retry ladder has 1 to {INTERVALS_MAX} intervals, not {len(intervals_ms)}")
    for interval in intervals_ms:
        check_interval(interval)


def _check_exponential(of: Exponential) -> None:
    if not 1 <= of.initial_ms <= of.longest_ms <= INTERVAL_MS_MAX:
        raise BadRequest(
            f"exponential intervals grow from an initial one of at least 1 ms to a longest of at most"
            f" {INTERVAL_MS_MAX // HOUR_MS} h, not from {of.initial_ms} ms to {of.longest_ms} ms"
        )
    if not 1 <= of.multiplier <= MULTIPLIER_MAX:
        raise BadRequest(f"the multiplier of exponential intervals is 1 to {MULTIPLIER_MAX}, not {of.multiplier}")


def check_interval(interval_ms: int) -> None:
    if not 0 <= interval_ms <= INTERVAL_MS_MAX:
        given = f"{interval_ms} ms" if interval_ms < 0 else span(interval_ms)
        raise BadRequest(f"a retry interval is 0 s to {INTERVAL_MS_MAX // HOUR_MS} h, not {given}")


HistoryLevel.NONE.kept = ()
_FAILURES = Event.RELEASE, Event.RETRY, Event.EXHAUST, Event.FORWARD_TO_DLQ
HistoryLevel.ERRORS.kept = (*_FAILURES, Event.REDRIVE, Event.RESET, Event.SKIP)
HistoryLevel.ALL.kept = tuple(Event)
