"""The progress of a group that owns whole queues: per queue the next offset to consume."""

from __future__ import annotations

from typing import NamedTuple

from popserver.domain.errors import BadRequest, MadeAnew, PopError
from popserver.domain.topic import MessageQueue, Topic

NO_OFFSET = -1


class Progress(NamedTuple):
    """Where a group stands in a queue, -1 for nowhere, and how often an operator has moved it.

    `generation` is that of the topic (`Topic.generation`), where the broker tells it.
    """

    offset: int
    resets: int
    generation: int = 0


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


def check_generation(topic: Topic, generation: int) -> None:
    """Raises `MadeAnew` for what belongs to an earlier topic of that name; 0 is not known, and taken as it is."""
    if generation not in (0, topic.generation):
        raise MadeAnew(
            f"topic '{topic.name}' was deleted and made anew, and this belongs to the topic before; fetch the offsets"
            " again, and begin where they say",
            topic.generation,
        )
