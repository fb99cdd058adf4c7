"""The progress of a group that owns whole queues: per queue the next offset to consume."""

from __future__ import annotations

from typing import NamedTuple

from popserver.domain.errors import BadRequest, PopError
from popserver.domain.topic import MessageQueue, Topic

NO_OFFSET = -1


class Progress(NamedTuple):
    """Where a group stands in a queue, -1 for nowhere, and how often an operator has moved it."""

    offset: int
    resets: int


class QueueOffset(NamedTuple):
    """What a member commits: everything before `offset` is consumed.

    `resets` is the count it stands on; None for a client that knows of none, and is taken by its word.
    """

    topic: Topic
    queue: MessageQueue
    offset: int
    resets: int | None = None


class Committed(NamedTuple):
    """The outcome of one commit, None for done, and the group's progress as it is now."""

    refusal: PopError | None
    stored: Progress


NO_PROGRESS = Progress(NO_OFFSET, 0)


def queue_numbered(topic: Topic, number: int) -> MessageQueue:
    """The topic's queue of that number on the wire; raises `BadRequest`."""
    for each in topic.queues:
        if each.number == number:
            return each
    count = len(topic.queues)
    raise BadRequest(f"topic '{topic.name}' has no queue {number}; it has {count}, numbered 0 to {count - 1}")
