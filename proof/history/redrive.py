"""Dead letters (I8): a message comes back to the group that gave it up once for each redrive, and not by itself.

Attempts are counted anew after a redrive, so the laws of attempts and of stale handles do not hold here; what is
stored, who holds it, and that an ack is final do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from proof.history.events import Forward, Redrive
from tests.support.checker import Final, Grant, History, Outcome, Seen, Violation


class DeadLetters:
    """What the history says of dead letters, by group and message."""

    def __init__(self, history: History) -> None:
        self.forwards: dict[tuple[str, str], list[Forward]] = defaultdict(list)
        self.redrives: dict[tuple[str, str], list[Redrive]] = defaultdict(list)
        for call in history.calls:
            if isinstance(call, Forward):
                self.forwards[call.group, call.message_id].append(call)
            elif isinstance(call, Redrive):
                for message_id in call.message_ids:
                    self.redrives[call.group, message_id].append(call)

    def plans(self, key: tuple[str, str]) -> int:
        """How many plans may have sent it back; repeated calls of one plan are one."""
        return len({each.plan_id for each in self.redrives[key] if each.may_have_happened})


def back_only_by_redrive(history: History, seen: Seen, _final: Final) -> Iterator[Violation]:
    letters = DeadLetters(history)
    for key, forwards in letters.forwards.items():
        for forward in forwards:
            if forward.outcome is not Outcome.OK:
                continue
            for grant in seen.grants[key]:
                if grant.receive.invoked_ms > forward.completed_ms and not _sent_back(letters, key, forward, grant):
                    yield Violation("I8", f"{key[1]} came to {key[0]} again after it was given up, without a redrive")


def once_for_each_redrive(history: History, seen: Seen, _final: Final) -> Iterator[Violation]:
    """Each life begins with one first attempt."""
    letters = DeadLetters(history)
    for key, grants in seen.grants.items():
        firsts = sum(grant.delivered.attempt == 1 for grant in grants)
        if firsts > 1 + letters.plans(key):
            yield Violation("I8", f"{key[1]} began {firsts} times in {key[0]}, with {letters.plans(key)} redrives")


def dead_for_a_reason(history: History, seen: Seen, final: Final) -> Iterator[Violation]:
    """A dead letter was given up by somebody, or has had its last attempt."""
    letters = DeadLetters(history)
    for row in final.states:
        key = (row.group, row.message_id)
        given_up = any(each.may_have_happened for each in letters.forwards[key])
        if row.state == "DLQ" and not given_up and (row.attempt or 0) < final.max_attempts:
            yield Violation("I8", f"{key[1]} is a dead letter of {key[0]} after {row.attempt} attempts")


def _sent_back(letters: DeadLetters, key: tuple[str, str], forward: Forward, grant: Grant) -> bool:
    """Whether a redrive may have sent it back between the two."""
    return any(
        redrive.may_have_happened
        and redrive.invoked_ms <= grant.receive.completed_ms
        # One that ended before the letter was there can have sent back an earlier one alone.
        and (redrive.completed_ms >= forward.invoked_ms or redrive.outcome is Outcome.UNKNOWN)
        for redrive in letters.redrives[key]
    )
