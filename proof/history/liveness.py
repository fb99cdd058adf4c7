"""I14: when an accident is over, calls succeed again, and what is stored reaches those who poll."""

from __future__ import annotations

from collections.abc import Iterator

from proof.history.events import Accident
from tests.support.checker import Final, History, Outcome, Violation

# Far above what a start or a failover takes, because machines that run proofs are busy.
AGAIN_WITHIN_MS = 60_000.0


def goes_on(history: History, _final: Final) -> Iterator[Violation]:
    """Within a minute after an accident some call is OK, if calls were made for so long."""
    calls = [call for call in history.calls if not isinstance(call, Accident)]
    ends_ms = max((call.completed_ms for call in calls), default=0.0)
    succeeded = sorted(call.completed_ms for call in calls if call.outcome is Outcome.OK)
    for accident in history.calls:
        if not isinstance(accident, Accident):
            continue
        over_ms = accident.completed_ms
        if over_ms + AGAIN_WITHIN_MS > ends_ms:
            continue
        if not any(over_ms <= at_ms <= over_ms + AGAIN_WITHIN_MS for at_ms in succeeded):
            yield Violation("I14", f"no call was OK in the {AGAIN_WITHIN_MS / 1_000:.0f} s after: {accident.name}")


def all_consumed(_history: History, final: Final) -> Iterator[Violation]:
    """Consumers polled until nothing was left, or gave up waiting for the rest."""
    if not final.drained:
        left = sum(row.state not in {"COMMIT", "DLQ"} for row in final.states)
        yield Violation("I14", f"{left} messages did not reach the consumers that polled in the end")
