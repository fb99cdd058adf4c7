"""The targets of a reset, and its events for each message."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from popserver.administration.why import MessageFacts
from popserver.model.errors import IllegalOffset
from popserver.model.names import Resource
from popserver.model.states import Event, State, sources
from popserver.model.topic import MessageQueue, Topic


class Edge(StrEnum):
    """The beginning or the end of a queue."""

    BEGINNING = "BEGINNING"  # its oldest message
    END = "END"  # after its newest message


class Since(NamedTuple):
    """The first message stored at or after a time."""

    at_ms: int


Target: TypeAlias = Edge | Since | int


class Goal(NamedTuple):
    """One queue, and the target of the group's progress there."""

    topic: Topic
    queue: MessageQueue
    to: Target


class MovedOffset(NamedTuple):
    """A change of a group's progress in one queue; `from_offset` is -1 if there was none."""

    topic: Resource
    number: int
    from_offset: int
    to_offset: int


def check_offset(goal: Goal, offset: int, min_offset: int, end_offset: int) -> None:
    """Raise `IllegalOffset` for an offset before the queue's beginning or after its end."""
    if not min_offset <= offset <= end_offset:
        raise IllegalOffset(
            f"offset {offset} is not in queue {goal.queue.number} of topic '{goal.topic.name}', which stores"
            f" {min_offset} to {end_offset}; reset to one of these, to BEGINNING or to END"
        )


def events(state: State, offset: int, to_offset: int) -> Sequence[Event]:
    """The events, in order, for a message at `offset` when the progress moves to `to_offset`.

    From `to_offset` on all messages are READY. Before it all messages have ended: a hold ends first, then the message.
    """
    if offset >= to_offset:
        return (Event.RESET,) if state in sources(Event.RESET) else ()
    if state in sources(Event.SKIP):
        return (Event.SKIP,)
    return () if state in {State.COMMIT, State.DLQ} else (Event.RESET, Event.SKIP)


# Why a message cannot be skipped, and what to do instead.


def skip_hint(found: MessageFacts) -> str:
    """What an operator can do about a message that cannot be skipped."""
    if found.state is None:
        return "give the group its progress with: popmq group reset"
    state = found.state.shown
    if state is State.INFLIGHT:
        return "wait until its holder acks it or its hold ends, or end the hold with: popmq group skip --force"
    if state is State.READY and found.head is not None:
        return f"skip {found.head.message_id} first"
    if state is State.READY:
        return "only the next message of a queue or message group can be skipped; for all before it: popmq group reset"
    return "there is nothing left to skip"
