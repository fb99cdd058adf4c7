"""Where an operator moves a group's progress, and what that does to each message."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from popserver.domain.delivery import Event, State, sources
from popserver.domain.errors import IllegalOffset
from popserver.domain.names import Resource
from popserver.domain.topic import MessageQueue, Topic


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
