"""Groups that read whole queues (I12): progress goes back only by a reset, and a pull leaves nothing out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeVar

from proof.history.events import CommitOffset, Pull, ReadOffset
from tests.support.checker import Final, History, Outcome, Violation

C = TypeVar("C", CommitOffset, ReadOffset)


def nothing_left_out(history: History, final: Final) -> Iterator[Violation]:
    """A pull that was answered OK has all that is stored between its offset and the next one."""
    places = places_of(final)
    for call in _pulls(history):
        if call.outcome is not Outcome.OK:
            continue
        got = {each.offset for each in call.messages}
        for offset in range(call.offset, call.next_offset):
            if offset in places[call.queue] and offset not in got:
                yield Violation("I12", f"a pull of queue {call.queue} from {call.offset} left out offset {offset}")


def at_their_places(history: History, final: Final) -> Iterator[Violation]:
    """What a pull has brought, although its answer may have broken off: from its offset on, in order, each once, at its
    place and as it is stored."""
    places = places_of(final)
    for call in _pulls(history):
        reached, pull = call.offset - 1, f"a pull of queue {call.queue} from {call.offset}"
        for each in call.messages:
            if each.offset <= reached:
                yield Violation("I12", f"{pull} has offset {each.offset} after {reached}")
            if call.outcome is Outcome.OK and each.offset >= call.next_offset:
                yield Violation("I12", f"{pull} has offset {each.offset}, and goes on at {call.next_offset}")
            if places[call.queue].get(each.offset) != (each.message_id, each.digest):
                yield Violation("I12", f"{pull} has another message at {each.offset} than is stored")
            reached = each.offset


def never_back(history: History, _final: Final) -> Iterator[Violation]:
    """A read that begins after a commit was answered OK tells at least that offset, and none that nobody committed."""
    for key, commits in _by_queue(history, CommitOffset).items():
        for read in _by_queue(history, ReadOffset)[key]:
            if read.outcome is not Outcome.OK:
                continue
            floor = max((each.offset for each in commits if _is_sure_before(each, read)), default=-1)
            begun = {each.offset for each in commits if each.may_have_happened and each.invoked_ms < read.completed_ms}
            if read.offset < floor:
                yield Violation(
                    "I12", f"progress of {key[0]} in queue {key[1]} went back from {floor} to {read.offset}"
                )
            if read.offset > 0 and read.offset not in begun:
                yield Violation(
                    "I12", f"progress of {key[0]} in queue {key[1]} is {read.offset}, which nobody committed"
                )


def places_of(final: Final) -> dict[int, dict[int, tuple[str, str]]]:
    """Message id and content by queue and offset."""
    places: dict[int, dict[int, tuple[str, str]]] = defaultdict(dict)
    for row in final.stored:
        places[row.queue][row.offset] = (row.message_id, row.digest)
    return places


def _pulls(history: History) -> Iterator[Pull]:
    return (call for call in history.calls if isinstance(call, Pull))


def _is_sure_before(commit: CommitOffset, read: ReadOffset) -> bool:
    return commit.outcome is Outcome.OK and commit.completed_ms < read.invoked_ms


def _by_queue(history: History, kind: type[C]) -> dict[tuple[str, int], list[C]]:
    found: dict[tuple[str, int], list[C]] = defaultdict(list)
    for call in history.calls:
        if isinstance(call, kind):
            found[call.group, call.queue].append(call)
    return found
