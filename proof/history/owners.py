"""Members of a group that share whole queues (I12): their listeners get what is stored, and progress waits for them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from proof.history.events import CommitOffset, Pull, QueueBatch, TakenOver
from proof.history.offsets import places_of
from tests.support.checker import Final, History, Outcome, Violation

Place = tuple[str, int, int]  # group, queue, offset


def batches_at_their_places(history: History, final: Final) -> Iterator[Violation]:
    """A batch has messages as they are stored, in the order of their offsets."""
    places = places_of(final)
    for call in _batches(history):
        reached = -1
        for each in call.messages:
            if each.offset <= reached:
                yield Violation("I12", f"a batch of queue {call.queue} has offset {each.offset} after {reached}")
            if places[call.queue].get(each.offset) != (each.message_id, each.digest):
                yield Violation(
                    "I12", f"a batch of queue {call.queue} has another message at {each.offset} than is stored"
                )
            reached = each.offset


def progress_waits(history: History, final: Final) -> Iterator[Violation]:
    """Nobody commits an offset before listeners have ended with all messages before it, so a kill skips none."""
    places, groups, done_ms = places_of(final), {call.group for call in _batches(history)}, _done_ms(history)
    for call in history.calls:
        if not isinstance(call, CommitOffset) or call.group not in groups:
            continue
        for offset in places[call.queue]:
            if offset < call.offset and done_ms[call.group, call.queue, offset] > call.invoked_ms:
                yield Violation(
                    "I12", f"{call.group} committed {call.offset} of queue {call.queue} before {offset} was consumed"
                )
                break


def all_taken_over(history: History, _final: Final) -> Iterator[Violation]:
    """Members that live take over the queues of those that were killed (I14)."""
    for call in history.calls:
        if isinstance(call, TakenOver) and call.outcome is not Outcome.OK:
            waited_s = (call.completed_ms - call.invoked_ms) / 1_000
            yield Violation("I14", f"no member of {call.group} worked on queues {call.missing} for {waited_s:.0f} s")


def nothing_skipped(history: History, final: Final) -> Iterator[Violation]:
    """In the end each message has come to a listener of the group, or was pulled by who finished its work (I1)."""
    groups, done_ms = {call.group for call in _batches(history)}, _done_ms(history)
    for group in sorted(groups) if final.drained else ():
        for row in final.stored:
            if done_ms[group, row.queue, row.offset] == math.inf:
                yield Violation("I1", f"{row.message_id} came to no listener of {group}")


def _done_ms(history: History) -> dict[Place, float]:
    """When a message was first consumed; infinite: never."""
    done: dict[Place, float] = defaultdict(lambda: math.inf)
    for call in history.calls:
        if isinstance(call, QueueBatch | Pull) and call.outcome is Outcome.OK:
            for each in call.messages:
                place = (call.group, call.queue, each.offset)
                done[place] = min(done[place], call.completed_ms)
    return done


def _batches(history: History) -> Iterator[QueueBatch]:
    return (call for call in history.calls if isinstance(call, QueueBatch))
