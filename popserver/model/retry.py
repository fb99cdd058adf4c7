"""What happens when a hold ends, and how long a failed message waits.

Each delivery is one attempt, counted from 1. Extending a hold or giving a message back does not count. A group's
`max_attempts` is the number of deliveries: 17 means the first delivery and 16 retries (requirements L7, L12).
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
_FROM_A_MINUTE_MS = tuple(minutes * MINUTE_MS for minutes in (*range(1, 11), 20, 30, 60, 120))
# Requirement L5: 10 s, 30 s, 1…10 min by 1, 20 min, 30 min, 1 h, 2 h; the last one repeats.
RETRY_LADDER_MS: tuple[int, ...] = (10 * SECOND_MS, 30 * SECOND_MS, *_FROM_A_MINUTE_MS)
# RocketMQ's delay levels, from 1 on, which a member may choose instead of the ladder (requirement E15).
DELAY_LEVELS_MS: tuple[int, ...] = (*(seconds * SECOND_MS for seconds in (1, 5, 10, 30)), *_FROM_A_MINUTE_MS)

FIFO_INTERVAL_MS = 3 * SECOND_MS  # for messages of a message group, the same for every attempt (requirement L6)
ORPHAN_DELAY_MS = 1 * SECOND_MS  # then the messages of a gone client are READY (protocol 5.1, requirement L11)
SUSPENDED = "its consumer suspended the lite topic"  # the reason of a retry that is no failure
PUSH_HOLD_MS_MAX = 3 * HOUR_MS  # a push consumer's hold lasts while the client lives, at most this (requirement L15)
# A client without a heartbeat for this long is gone. More than 30 s, because some clients send one every 30 s
# (protocol 1.1).
CLIENT_LAPSE_MS = 35 * SECOND_MS
# The same for members of groups that own whole queues. Longer, because each change moves queues (requirement J1).
MEMBER_LAPSE_MS = 120 * SECOND_MS


class Holder(StrEnum):
    """What kind of consumer holds a delivery. It decides what happens when the hold ends."""

    PUSH = "PUSH"  # the hold lasts while its client lives; a failure waits for the group's retry interval
    SIMPLE = "SIMPLE"  # the invisible duration is the retry interval
    ORPHAN = "ORPHAN"  # the client is gone: READY again without a retry interval


class Exponential(NamedTuple):
    """Intervals that grow by a factor, up to the longest (requirement L7)."""

    initial_ms: int = 5 * SECOND_MS
    longest_ms: int = 2 * HOUR_MS
    multiplier: float = 2.0


Intervals: TypeAlias = "tuple[int, ...] | Exponential"


class RetryPolicy(NamedTuple):
    """How a group retries failed messages. `intervals_ms` is a ladder, whose last interval repeats, or exponential."""

    max_attempts: int = MAX_ATTEMPTS_DEFAULT
    intervals_ms: Intervals = RETRY_LADDER_MS
    fifo_interval_ms: int = FIFO_INTERVAL_MS


def interval_ms(policy: RetryPolicy, attempt: int, *, in_order: bool = False) -> int:
    """How long a push consumer's message waits after its `attempt`-th delivery failed, in ms (attempt ≥ 1).

    A message of a message group always waits the same time, because its group waits too (requirement L6).
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
    # Compared by logarithms first, because the power of a high attempt is too large for a float.
    if (attempt - 1) * math.log(of.multiplier) >= math.log(of.longest_ms / of.initial_ms):
        return of.longest_ms
    return min(of.longest_ms, round(of.initial_ms * of.multiplier ** (attempt - 1)))


def when_hold_ends(holder: Holder, attempt: int, policy: RetryPolicy) -> Event:
    """The event when a hold ends without an answer."""
    if attempt >= policy.max_attempts:
        return Event.EXHAUST
    return Event.RETRY if holder is Holder.PUSH else Event.RELEASE


def when_visibility_changes(holder: Holder, attempt: int, policy: RetryPolicy) -> Event:
    """The event of a ChangeInvisibleDuration: a push consumer failed, a simple consumer extends (requirement L14)."""
    if holder is Holder.SIMPLE:
        return Event.CHANGE_INVISIBLE
    # An orphaned hold belongs to a push consumer, which is back.
    return Event.EXHAUST if attempt >= policy.max_attempts else Event.RETRY


def check_delay_level(delay_level: int) -> None:
    if delay_level > len(DELAY_LEVELS_MS):
        raise BadRequest(
            f"delay level {delay_level} is above the highest, {len(DELAY_LEVELS_MS)}; use 0 for the group's intervals,"
            " or a negative level for a dead letter"
        )


def when_handed_back(failures: int, delay_level: int, policy: RetryPolicy, failures_max: int | None = None) -> Event:
    """The event when a member sends back a message that has failed `failures` times before (requirements E15, E16).

    `failures_max` is the member's own limit. If it is None or negative, the limit is the group's `max_attempts` less 1.
    """
    if delay_level < 0:
        return Event.FORWARD_TO_DLQ
    limit = policy.max_attempts - 1 if failures_max is None or failures_max < 0 else failures_max
    return Event.EXHAUST if failures >= limit else Event.RETRY


def handed_back_interval_ms(failures: int, delay_level: int, policy: RetryPolicy) -> int:
    """How long a message that was sent back waits, in ms: the group's interval (level 0), or the delay level's."""
    return DELAY_LEVELS_MS[delay_level - 1] if delay_level else interval_ms(policy, failures + 1)
