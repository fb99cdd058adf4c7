"""What the end of a hold means, and how long a failed message waits.

Attempts count from 1 and are burnt by grants, not by extensions or give-backs. A group's `max_attempts` is the number
of deliveries: 17 is the first and 16 retries (requirements L7, L12).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from popserver.model.errors import BadRequest
from popserver.model.states import Event

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS

MAX_ATTEMPTS_DEFAULT = 17
# Requirement L5: 10 s, 30 s, 1…10 min by 1, 20 min, 30 min, 1 h, 2 h; the last one repeats.
RETRY_LADDER_MS: tuple[int, ...] = (
    10 * SECOND_MS,
    30 * SECOND_MS,
    *(minutes * MINUTE_MS for minutes in range(1, 11)),
    20 * MINUTE_MS,
    30 * MINUTE_MS,
    1 * HOUR_MS,
    2 * HOUR_MS,
)

# What a member may ask for in place of the ladder, by level from 1 on (requirement E15).
DELAY_LEVELS_MS: tuple[int, ...] = (
    *(seconds * SECOND_MS for seconds in (1, 5, 10, 30)),
    *(minutes * MINUTE_MS for minutes in range(1, 11)),
    20 * MINUTE_MS,
    30 * MINUTE_MS,
    1 * HOUR_MS,
    2 * HOUR_MS,
)

FIFO_INTERVAL_MS = 3 * SECOND_MS  # in place, the same for every attempt (requirement L6)
ORPHAN_DELAY_MS = 1 * SECOND_MS  # a gone client's holds become Ready after this (protocol 5.1, requirement L11)
PUSH_HOLD_MS_MAX = 3 * HOUR_MS  # a push hold lives as long as its client, at most this (requirement L15)
# A client unseen for so long is gone. Protocol 1.1: only after more than 30 s, which is how often some clients beat.
CLIENT_LAPSE_MS = 35 * SECOND_MS
# A member of a group that owns whole queues: its going moves queues about (requirement J1).
MEMBER_LAPSE_MS = 120 * SECOND_MS


class Holder(StrEnum):
    """Who holds a delivery; it decides what the end of the hold means."""

    PUSH = "PUSH"  # the hold lives with its client; a failure climbs the group's ladder
    SIMPLE = "SIMPLE"  # the invisible duration is the retry interval
    ORPHAN = "ORPHAN"  # the client is gone: Ready again, no ladder


class Exponential(NamedTuple):
    """Intervals that grow by a factor up to the longest (requirement L7)."""

    initial_ms: int = 5 * SECOND_MS
    longest_ms: int = 2 * HOUR_MS
    multiplier: float = 2.0


Intervals: TypeAlias = "tuple[int, ...] | Exponential"


class RetryPolicy(NamedTuple):
    """A group's answer to failure. `intervals_ms` is a ladder, whose last interval repeats, or exponential."""

    max_attempts: int = MAX_ATTEMPTS_DEFAULT
    intervals_ms: Intervals = RETRY_LADDER_MS
    fifo_interval_ms: int = FIFO_INTERVAL_MS


def interval_ms(policy: RetryPolicy, attempt: int, *, in_order: bool = False) -> int:
    """How long a push consumer's message waits after its `attempt`-th delivery failed (attempt ≥ 1).

    A message of a message group waits the same every time, for its group waits with it (requirement L6).
    """
    if in_order:
        return policy.fifo_interval_ms
    intervals = policy.intervals_ms
    if isinstance(intervals, Exponential):
        return _exponential_ms(intervals, attempt)
    return intervals[min(attempt, len(intervals)) - 1]


def _exponential_ms(of: Exponential, attempt: int) -> int:
    if of.multiplier == 1:
        return of.initial_ms
    # Compared by their logarithms first: the power of a high attempt is more than a float holds.
    if (attempt - 1) * math.log(of.multiplier) >= math.log(of.longest_ms / of.initial_ms):
        return of.longest_ms
    return min(of.longest_ms, round(of.initial_ms * of.multiplier ** (attempt - 1)))


def when_hold_ends(holder: Holder, attempt: int, policy: RetryPolicy) -> Event:
    """Which event it is when nobody answered in time."""
    if attempt >= policy.max_attempts:
        return Event.EXHAUST
    return Event.RETRY if holder is Holder.PUSH else Event.RELEASE


def when_visibility_changes(holder: Holder, attempt: int, policy: RetryPolicy) -> Event:
    """Which event a ChangeInvisibleDuration is: a push consumer failed, a simple one extends (requirement L14)."""
    if holder is Holder.SIMPLE:
        return Event.CHANGE_INVISIBLE
    # An orphaned hold was a push consumer's: that one speaks, though it was taken for gone.
    return Event.EXHAUST if attempt >= policy.max_attempts else Event.RETRY


def check_delay_level(delay_level: int) -> None:
    if delay_level > len(DELAY_LEVELS_MS):
        raise BadRequest(
            f"delay level {delay_level} is beyond the last, {len(DELAY_LEVELS_MS)}; use 0 for the group's intervals, or"
            " a negative one for a dead letter"
        )


def when_handed_back(failures: int, delay_level: int, policy: RetryPolicy, failures_max: int | None = None) -> Event:
    """Which event it is when a member hands back what has failed `failures` times before (requirements E15, E16).

    `failures_max` is the member's own limit; absent or negative it is the group's attempts less one.
    """
    if delay_level < 0:
        return Event.FORWARD_TO_DLQ
    limit = policy.max_attempts - 1 if failures_max is None or failures_max < 0 else failures_max
    return Event.EXHAUST if failures >= limit else Event.RETRY


def handed_back_interval_ms(failures: int, delay_level: int, policy: RetryPolicy) -> int:
    """How long it then waits: by the group's intervals (level 0), or by the delay table."""
    return DELAY_LEVELS_MS[delay_level - 1] if delay_level else interval_ms(policy, failures + 1)
