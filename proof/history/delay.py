"""Delayed messages (I10): nobody gets one before it is due."""

from __future__ import annotations

from collections.abc import Iterator

from proof.history.events import DelayedSend
from tests.support.checker import CLOCK_SLACK_MS, Final, Seen, Violation


def not_early(seen: Seen, _final: Final) -> Iterator[Violation]:
    for (group, message_id), grants in seen.grants.items():
        due = [send.due_ms for send in seen.sends[message_id] if isinstance(send, DelayedSend)]
        if not due or not grants:
            continue
        came_ms = min(grant.receive.completed_ms for grant in grants)
        if came_ms < min(due) - CLOCK_SLACK_MS:
            yield Violation("I10", f"{message_id} came to {group} {min(due) - came_ms:.0f} ms before it was due")
