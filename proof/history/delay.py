"""Delayed messages (I10): nobody gets one before it is due by the system clock, which may be set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from proof.history.events import ClockStep, DelayedSend
from tests.support.checker import CLOCK_SLACK_MS, Final, History, Seen, Violation


def not_early(history: History, seen: Seen, _final: Final) -> Iterator[Violation]:
    steps = sorted((each for each in history.calls if isinstance(each, ClockStep)), key=lambda each: each.completed_ms)
    for (group, message_id), grants in seen.grants.items():
        due = [send.due_ms for send in seen.sends[message_id] if isinstance(send, DelayedSend)]
        if not due or not grants:
            continue
        came_ms = _latest_ms(steps, min(grant.receive.completed_ms for grant in grants))
        if came_ms < min(due) - CLOCK_SLACK_MS:
            yield Violation("I10", f"{message_id} came to {group} {min(due) - came_ms:.0f} ms before it was due")


def _latest_ms(steps: Sequence[ClockStep], at_ms: float) -> float:
    """The latest time that the system clock has shown until then."""
    ahead_ms, latest_ms = 0.0, float("-inf")
    for each in steps:
        if each.completed_ms > at_ms:
            break
        latest_ms = max(latest_ms, each.invoked_ms + ahead_ms)
        ahead_ms += each.by_ms
    return max(latest_ms, at_ms + ahead_ms)
