"""What the end of a hold means, and how long a failed message waits.

Attempts count from 1 and are burnt by grants, not by extensions or give-backs. A group's `max_attempts` is the number
of deliveries: 17 is the first and 16 retries (mission rows L7, L12).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from popserver.domain.delivery import Event

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS

MAX_ATTEMPTS_DEFAULT = 17
# Mission row L5: 10 s, 30 s, 1…10 min by 1, 20 min, 30 min, 1 h, 2 h; the last one repeats.
RETRY_LADDER_MS: tuple[int, ...] = (
    10 * SECOND_MS,
    30 * SECOND_MS,
    *(minutes * MINUTE_MS for minutes in range(1, 11)),
    20 * MINUTE_MS,
    30 * MINUTE_MS,
    1 * HOUR_MS,
    2 * HOUR_MS,
)

FIFO_INTERVAL_MS = 3 * SECOND_MS  # in place, the same for every attempt (mission row L6)
ORPHAN_DELAY_MS = 1 * SECOND_MS  # a gone client's holds become Ready after this (contract 5.1, mission row L11)
PUSH_HOLD_MS_MAX = 3 * HOUR_MS  # a push hold lives as long as its client, at most this (mission row L15)
# A client unseen for so long is gone. Contract 1.1: only after more than 30 s, which is how often some clients beat.
CLIENT_LAPSE_MS = 35 * SECOND_MS
# A member of a group that owns whole queues: its going moves queues about (mission row J1).
MEMBER_LAPSE_MS = 120 * SECOND_MS


class Holder(StrEnum):
    """Who holds a delivery; it decides what the end of the hold means."""

    PUSH = "PUSH"  # the hold lives with its client; a failure climbs the group's ladder
    SIMPLE = "SIMPLE"  # the invisible duration is the retry interval
    ORPHAN = "ORPHAN"  # the client is gone: Ready again, no ladder


class RetryPolicy(NamedTuple):
    """A group's answer to failure."""

    max_attempts: int = MAX_ATTEMPTS_DEFAULT
    intervals_ms: Sequence[int] = RETRY_LADDER_MS
    fifo_interval_ms: int = FIFO_INTERVAL_MS


def interval_ms(policy: RetryPolicy, attempt: int, *, in_order: bool = False) -> int:
    """How long a push consumer's message waits after its `attempt`-th delivery failed (attempt ≥ 1).

    A message of a message group waits the same every time, for its group waits with it (mission row L6).
    """
    if in_order:
        return policy.fifo_interval_ms
    return policy.intervals_ms[min(attempt, len(policy.intervals_ms)) - 1]


def when_hold_ends(holder: Holder, attempt: int, policy: RetryPolicy) -> Event:
    """Which event it is when nobody answered in time."""
    if attempt >= policy.max_attempts:
        return Event.EXHAUST
    return Event.RETRY if holder is Holder.PUSH else Event.RELEASE


def when_visibility_changes(holder: Holder, attempt: int, policy: RetryPolicy) -> Event:
    """Which event a ChangeInvisibleDuration is: a push consumer failed, a simple one extends (mission row L14)."""
    if holder is Holder.SIMPLE:
        return Event.CHANGE_INVISIBLE
    # An orphaned hold was a push consumer's: that one speaks, though it was taken for gone.
    return Event.EXHAUST if attempt >= policy.max_attempts else Event.RETRY
