"""I14: when an accident is over, calls succeed again, what is stored reaches those who poll, and new messages soon."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import TypeGuard

from proof.history.events import Accident, ClockStep, DelayedSend, EndTransaction, ProgramEnded, Pull, Quiet
from tests.support.checker import Call, Final, History, Outcome, Receive, Send, Violation

# Far above what a start or a failover takes, because machines that run proofs are busy.
AGAIN_WITHIN_MS = 60_000.0
# The reliability report's bar for what is ready while nothing fails.
SOON_MS = 2_000.0


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


def programs_live_on(history: History, _final: Final) -> Iterator[Violation]:
    """Clients outlive servers, databases and networks that fail."""
    for call in history.calls:
        if isinstance(call, ProgramEnded):
            yield Violation("I14", f"a program of {call.kind} ended without a kill: {call.why}")


def soon_delivered(history: History, _final: Final) -> Iterator[Violation]:
    """What is sent while nothing fails comes within two seconds to each group that polls. A busy machine may be late
    once, so of several tries one is enough."""
    starts = sorted(call.invoked_ms for call in history.calls if isinstance(call, Quiet))
    late: list[Violation] = []
    for start_ms, end_ms in pairwise([*starts, float("inf")]):
        ready = _ready_ms(history, start_ms, end_ms)
        late = [*_late(history, ready)] if ready else late
        if ready and not late:
            return
    yield from late


def _late(history: History, ready: dict[str, float]) -> Iterator[Violation]:
    calls: dict[str, list[Receive | Pull]] = defaultdict(list)
    first_ms = min(ready.values())
    for call in history.calls:
        if isinstance(call, Receive | Pull) and call.completed_ms > first_ms - SOON_MS:
            calls[call.group].append(call)
    for group in sorted(calls):
        for message_id, ready_ms in ready.items():
            bar_ms = ready_ms + SOON_MS
            polls = any(each.invoked_ms < bar_ms < each.completed_ms for each in calls[group])
            came_ms = min(map(_came_ms, calls[group], repeat(message_id)))
            if polls and came_ms > bar_ms:
                late = f"{came_ms - ready_ms:.0f} ms later"
                yield Violation("I14", f"{message_id} was ready and came to {group}, which polled, {late}")


def _came_ms(call: Receive | Pull, message_id: str) -> float:
    got = call.deliveries if isinstance(call, Receive) else call.messages
    return call.completed_ms if any(each.message_id == message_id for each in got) else float("inf")


def _ready_ms(history: History, from_ms: float, to_ms: float) -> dict[str, float]:
    """From when the messages can be received that were sent or committed in that time, and not before."""
    ahead_ms = sum(call.by_ms for call in history.calls if isinstance(call, ClockStep))
    earlier = {
        call.message_id
        for call in history.calls
        if call.invoked_ms < from_ms and call.may_have_happened and _makes_ready(call)
    }
    return {
        call.message_id: max(call.completed_ms, call.due_ms - ahead_ms if isinstance(call, DelayedSend) else 0.0)
        for call in history.calls
        if from_ms <= call.invoked_ms < to_ms and call.outcome is Outcome.OK and _makes_ready(call)
        if call.message_id not in earlier
    }


def _makes_ready(call: Call) -> TypeGuard[Send | EndTransaction]:
    return isinstance(call, Send) or (isinstance(call, EndTransaction) and call.commits)
