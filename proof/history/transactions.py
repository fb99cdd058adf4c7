"""Half messages: they become messages when they are committed, and never when they are rolled back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from proof.history.events import EndTransaction, HalfSend
from tests.support.checker import Final, History, Outcome, Send, Violation


def as_sends(history: History) -> History:
    """The same history with a send for each transaction that may have been committed: OK if it surely was."""
    decisions: dict[str, list[EndTransaction]] = defaultdict(list)
    for call in history.calls:
        if isinstance(call, EndTransaction):
            decisions[call.message_id].append(call)
    plain = History([call for call in history.calls if not isinstance(call, HalfSend | EndTransaction)])
    for call in history.calls:
        if isinstance(call, HalfSend):
            for decision in decisions[call.message_id]:
                outcome = decision.outcome if decision.commits else Outcome.REFUSED
                plain.add(Send(outcome, decision.invoked_ms, decision.completed_ms, call.message_id, call.digest))
    return plain


def one_decision(history: History, final: Final) -> Iterator[Violation]:
    """What was rolled back is not there, and nothing is both committed and rolled back."""
    stored = {row.message_id for row in final.stored}
    decided: dict[str, set[bool]] = defaultdict(set)
    for call in history.calls:
        if isinstance(call, EndTransaction) and call.outcome is Outcome.OK:
            decided[call.message_id].add(call.commits)
    for message_id, decisions in decided.items():
        if len(decisions) > 1:
            yield Violation("I1", f"{message_id} was committed OK and rolled back OK")
        elif decisions == {False} and message_id in stored:
            yield Violation("I2", f"{message_id} was rolled back and is stored")
