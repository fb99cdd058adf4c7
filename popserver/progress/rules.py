"""Where an operator moves a group's progress, and what that does to each message."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from popserver.inspection.why import MessageFacts
from popserver.model.errors import IllegalOffset
from popserver.model.names import Resource
from popserver.model.states import Event, State, sources
from popserver.model.topic import MessageQueue, Topic


class Edge(StrEnum):
    """An end of what a queue stores."""

    BEGINNING = "BEGINNING"  # its oldest message
    END = "END"  # beyond its newest


class Since(NamedTuple):
    """The first message that was stored then or later."""

    at_ms: int


Target: TypeAlias = Edge | Since | int


class Goal(NamedTuple):
    """One queue, and where the group is to go on in it."""

    topic: Topic
    queue: MessageQueue
    to: Target


class MovedOffset(NamedTuple):
    """What became of a group's progress in one queue; `from_offset` is -1 where there was none."""

    topic: Resource
    number: int
    from_offset: int
    to_offset: int


def check_offset(goal: Goal, offset: int, min_offset: int, end_offset: int) -> None:
    """Raise `IllegalOffset` for one that is not between the queue's ends, both included."""
    if not min_offset <= offset <= end_offset:
        raise IllegalOffset(
            f"offset {offset} is not in queue {goal.queue.number} of topic '{goal.topic.name}', which stores"
            f" {min_offset} to {end_offset}; reset to one of these, to BEGINNING or to END"
        )


def events(state: State, offset: int, to_offset: int) -> Sequence[Event]:
    """What happens, in turn, to a message at `offset` when progress goes to `to_offset`.

    From there on everything is READY. Before it everything has ended: a hold is ended first, then passed over.
    """
    if offset >= to_offset:
        return (Event.RESET,) if state in sources(Event.RESET) else ()
    if state in sources(Event.SKIP):
        return (Event.SKIP,)
    return () if state in {State.COMMIT, State.DLQ} else (Event.RESET, Event.SKIP)


# Why a message cannot be skipped, and what to do instead.


def skip_hint(found: MessageFacts) -> str:
    """What an operator may do about a message that cannot be skipped."""
    if found.state is None:
        return "give the group its progress with: popmq group reset"
    state = found.state.shown
    if state is State.INFLIGHT:
        return "wait for its holder, or for the end of its hold, and skip it then"
    if state is State.READY and found.head is not None:
        return f"skip {found.head.message_id} first"
    if state is State.READY:
        return "only the next one of its queue or message group can be skipped; for all before it: popmq group reset"
    return "there is nothing left to skip"
