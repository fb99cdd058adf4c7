"""Dead letters (I8): a message comes back to the group that gave it up once for each redrive, and not by itself.

An answer says which messages were sent back, and it is right. Attempts are counted anew after a redrive, so the laws of
attempts and of stale handles do not hold here; what is stored, who holds it, and that an ack is final do.
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

    def plans(self, key: tuple[str, str]) -> set[str]:
        """The plans that may have sent it back. What one answer of a plan says counts for its other calls too."""
        may_have = {each.plan_id for each in self.redrives[key] if each.may_have_happened}
        answered = {each.plan_id for each in self.redrives[key] if each.outcome is Outcome.OK}
        return (may_have - answered) | {each.plan_id for each in self.redrives[key] if key[1] in each.sent_ids}


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
        plans = letters.plans(key)
        if firsts > 1 + len(plans):
            yield Violation("I8", f"{key[1]} began {firsts} times in {key[0]}, with {len(plans)} redrives")


def answers_are_right(history: History, seen: Seen, final: Final) -> Iterator[Violation]:
    """What was sent is no dead letter any more. What was not sent had been sent by another plan. A plan that is asked
    again says the same."""
    letters = DeadLetters(history)
    dead = {(row.group, row.message_id) for row in final.states if row.state == "DLQ"}
    for key, redrives in letters.redrives.items():
        answered = [each for each in redrives if each.outcome is Outcome.OK]
        sent = [each for each in answered if key[1] in each.sent_ids]
        if key in dead and sent and not _came_after(seen, key, max(each.invoked_ms for each in sent)):
            yield Violation("I8", f"{key[1]} was sent back to {key[0]}, as an answer says, and is a dead letter")
        for each in answered:
            if key[1] in each.sent_ids:
                continue
            plans = letters.plans(key)
            if each.plan_id in plans:
                yield Violation("I8", f"plan {each.plan_id} says once that {key[1]} was sent back, and once that not")
            elif not any(
                other.plan_id in plans and other.invoked_ms < each.completed_ms for other in letters.redrives[key]
            ):
                yield Violation("I8", f"plan {each.plan_id} did not send {key[1]} back, and no other plan had")


def dead_for_a_reason(history: History, seen: Seen, final: Final) -> Iterator[Violation]:
    """A dead letter was given up by somebody, or has had its last attempt."""
    letters = DeadLetters(history)
    for row in final.states:
        key = (row.group, row.message_id)
        given_up = any(each.may_have_happened for each in letters.forwards[key])
        if row.state == "DLQ" and not given_up and (row.attempt or 0) < final.max_attempts:
            yield Violation("I8", f"{key[1]} is a dead letter of {key[0]} after {row.attempt} attempts")


def _came_after(seen: Seen, key: tuple[str, str], at_ms: float) -> bool:
    """Whether it may have been received after that, and have died again."""
    lost = any(each.outcome is Outcome.UNKNOWN and each.completed_ms > at_ms for each in seen.receives[key[0]])
    return lost or any(grant.receive.completed_ms > at_ms for grant in seen.grants[key])


def _sent_back(letters: DeadLetters, key: tuple[str, str], forward: Forward, grant: Grant) -> bool:
    """Whether a redrive may have sent it back between the two."""
    plans = letters.plans(key)
    return any(
        redrive.may_have_happened
        and redrive.plan_id in plans
        and redrive.invoked_ms <= grant.receive.completed_ms
        # One that ended before the letter was there can have sent back an earlier one alone.
        and (redrive.completed_ms >= forward.invoked_ms or redrive.outcome is Outcome.UNKNOWN)
        for redrive in letters.redrives[key]
    )
