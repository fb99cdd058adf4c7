"""Readers of whole ranges, as Spark is one (I12): the sink has each message once, and progress follows the sink."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from proof.history.events import CommitOffset, Sunk
from proof.history.offsets import places_of
from tests.support.checker import Final, History, Violation


def once_in_the_sink(history: History, final: Final) -> Iterator[Violation]:
    """The batches of a queue follow each other without a gap, and hold what is stored at their offsets."""
    stored = places_of(final)
    for (group, queue), batches in _by_queue(history).items():
        reached = 0
        for batch in batches:
            if batch.offset != reached:
                yield Violation("I12", f"the sink of {group} has queue {queue} from {batch.offset} after {reached}")
            reached = batch.end_offset
            there = {each.offset: (each.message_id, each.digest) for each in batch.messages}
            places = range(batch.offset, batch.end_offset)
            if len(there) != len(batch.messages) or there != {at: stored[queue].get(at) for at in places}:
                yield Violation("I12", f"the sink of {group} has other messages of queue {queue} than {places}")
        left = sum(offset >= reached for offset in stored[queue])
        if final.drained and left:
            yield Violation("I1", f"the sink of {group} lacks {left} messages of queue {queue}")


def progress_follows(history: History, _final: Final) -> Iterator[Violation]:
    """A group commits an offset only after its sink has the messages before it."""
    sunk = _by_queue(history)
    for call in history.calls:
        if not isinstance(call, CommitOffset) or (call.group, call.queue) not in sunk:
            continue
        before = [each.end_offset for each in sunk[call.group, call.queue] if each.completed_ms <= call.invoked_ms]
        if call.offset > max(before, default=0):
            yield Violation("I12", f"{call.group} committed {call.offset} of queue {call.queue} before its sink had it")


def _by_queue(history: History) -> dict[tuple[str, int], list[Sunk]]:
    found: dict[tuple[str, int], list[Sunk]] = defaultdict(list)
    for call in history.calls:
        if isinstance(call, Sunk):
            found[call.group, call.queue].append(call)
    return found
