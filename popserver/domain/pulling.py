"""Pulling: a member names a queue and an offset, and is told what is there and where to go on (requirements B4 to B15).

A queue stores the offsets from `min_offset` up to, not including, `end_offset`. A pull may begin anywhere in between
and at the end itself, where the next message will be.
"""

from __future__ import annotations

from enum import IntFlag, StrEnum
from typing import NamedTuple

from popserver.domain.message import StoredMessage
from popserver.domain.names import RETRY_PREFIX

BATCH_SIZE_MAX = 160  # requirement B12
BATCH_BYTES_MAX = 256 * 1024  # of bodies; a single message may be larger
RECONSUME_TIME = "RECONSUME_TIME"  # the property of a retry copy that says how often it failed


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


def attempt_of(stored: StoredMessage) -> int:
    """Which attempt this is of a message that is pulled: a retry copy knows how often it failed before."""
    if not stored.message.topic.name.startswith(RETRY_PREFIX):
        return 1
    return 1 + int(stored.message.properties.get(RECONSUME_TIME, "0"))
