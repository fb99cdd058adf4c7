"""Pulling: a member names a queue and an offset, and is told what is there and where to go on (requirements B4 to B15).

A queue stores the offsets from `min_offset` up to, not including, `end_offset`. A pull may begin anywhere in between
and at the end itself, where the next message will be.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import NamedTuple

from popserver.model.errors import MadeAnew, PopError
from popserver.model.message import StoredMessage
from popserver.model.topic import MessageQueue, Topic

BATCH_SIZE_MAX = 160  # requirement B12
BATCH_BYTES_MAX = 256 * 1024  # of bodies; a single message may be larger


class PullFlag(IntFlag):
    """The bits of a pull's sys_flag (requirement B4)."""

    COMMIT_OFFSET = 1  # it carries the group's progress
    SUSPEND = 2  # it may be held until there is something
    SUBSCRIPTION = 4  # its filter stands in the request
    CLASS_FILTER = 8
    LITE_PULL = 16


class PullStatus(StrEnum):
    """What a pull came to."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"  # its offset is the end
    NO_MATCHED_MSG = "NO_MATCHED_MSG"  # nothing wanted up to the next offset
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # the next offset is the correction
    MADE_ANEW = "MADE_ANEW"  # the offset is of an earlier topic of that name; the next offset is the queue's beginning


class Pulled(NamedTuple):
    """A pull's outcome; `next_offset` is where to go on, `end_offset` where the queue ended at that moment.

    `generation` is that of the topic (`Topic.generation`).
    """

    status: PullStatus
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    end_offset: int
    generation: int = 0


def correction(offset: int, min_offset: int, end_offset: int, *, is_of_this_topic: bool = True) -> int | None:
    """Where a pull must begin instead; None for an offset at which it may (requirement B14).

    `is_of_this_topic` is False if the offset may belong to an earlier topic of that name. Then an offset beyond the end
    leads to the beginning: from the end on, all messages of the new topic would be skipped.
    """
    if offset < min_offset:
        return min_offset
    if offset > end_offset:
        return end_offset if is_of_this_topic else min_offset
    return None


# The progress of a group that owns whole queues: per queue the next offset to consume.

NO_OFFSET = -1


class QueueProgress(NamedTuple):
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
    stored: QueueProgress


NO_PROGRESS = QueueProgress(NO_OFFSET, 0)


def check_generation(topic: Topic, generation: int) -> None:
    """Raises `MadeAnew` for what belongs to an earlier topic of that name; 0 is not known, and taken as it is."""
    if generation not in (0, topic.generation):
        raise MadeAnew(
            f"topic '{topic.name}' was deleted and made anew, and this belongs to the topic before; fetch the offsets"
            " again, and begin where they say",
            topic.generation,
        )
