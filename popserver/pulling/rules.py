"""Pulling: a member names a queue and an offset, and gets messages and the next offset (requirements B4 to B15).

A queue stores the offsets from `min_offset` up to, but not including, `end_offset`. A pull may begin at any of them,
and at the end, where the next message will be.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import NamedTuple

from popserver.model.errors import PopError, TopicRecreated
from popserver.model.message import StoredMessage
from popserver.model.topic import MessageQueue, Topic

BATCH_SIZE_MAX = 160  # requirement B12
BATCH_BYTES_MAX = 256 * 1024  # bytes of bodies; a single message may be larger


class PullFlag(IntFlag):
    """The bits of a pull's sys_flag (requirement B4)."""

    COMMIT_OFFSET = 1  # the pull carries the group's progress
    SUSPEND = 2  # the pull may wait for messages
    SUBSCRIPTION = 4  # the request has the filter
    CLASS_FILTER = 8
    LITE_PULL = 16  # ignored


class PullStatus(StrEnum):
    """The outcome of a pull."""

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"  # its offset is the queue's end
    NO_MATCHED_MSG = "NO_MATCHED_MSG"  # the filter accepts no message up to the next offset
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"  # the next offset is the corrected one
    RECREATED = "MADE_ANEW"  # the offset is of an earlier topic of this name; the next offset is the queue's beginning


class Pulled(NamedTuple):
    """A pull's outcome; `next_offset` is where to continue, `end_offset` where the queue ended at that moment.

    `generation` is the topic's (`Topic.generation`).
    """

    status: PullStatus
    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    end_offset: int
    generation: int = 0


def correction(offset: int, min_offset: int, end_offset: int, *, is_of_this_topic: bool = True) -> int | None:
    """The offset where a pull must begin instead; None if its offset is legal (requirement B14).

    `is_of_this_topic` is False if the offset may belong to an earlier topic of that name. Then an offset beyond the end
    is corrected to the beginning; the end would skip all messages of the new topic.
    """
    if offset < min_offset:
        return min_offset
    if offset > end_offset:
        return end_offset if is_of_this_topic else min_offset
    return None


# The progress of a group that owns whole queues: for each queue the next offset to consume.

NO_OFFSET = -1


class QueueProgress(NamedTuple):
    """A group's offset in a queue, -1 for none, and how often an operator has moved it.

    `generation` is the topic's (`Topic.generation`), if it is known.
    """

    offset: int
    resets: int
    generation: int = 0


class QueueOffset(NamedTuple):
    """A commit of a member: all messages before `offset` are consumed.

    `resets` is the count of resets that the member knows; None for a client without it, whose commits always count.
    """

    topic: Topic
    queue: MessageQueue
    offset: int
    resets: int | None = None


class Committed(NamedTuple):
    """The outcome of one commit (None: done), and the group's current progress."""

    refusal: PopError | None
    stored: QueueProgress


NO_PROGRESS = QueueProgress(NO_OFFSET, 0)


def check_generation(topic: Topic, generation: int) -> None:
    """Raise `TopicRecreated` if `generation` is that of an earlier topic of this name. 0, unknown, is accepted."""
    if generation not in (0, topic.generation):
        raise TopicRecreated(
            f"topic '{topic.name}' was deleted and created again, and this offset belongs to the old topic; fetch the"
            " offsets again and begin there",
            topic.generation,
        )
