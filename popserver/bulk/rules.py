"""Bulk: many messages at once, as columns (docs/design/0017).

Each column for a client is made from at most two columns of the database, its sources. Only these are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from popserver.filters import Filter
from popserver.messages.columns import Columns
from popserver.model.errors import BadRequest
from popserver.model.names import RETRY_PREFIX
from popserver.model.topic import MessageQueue, Topic

# Limits of a page: messages, and bytes of stored bodies and properties, if the request names them. A single message may
# be larger.
CHUNK_MESSAGES_MAX = 2_048
CHUNK_BYTES_MAX = 1024 * 1024
# The same limits for one receive: further messages are not granted.
RECEIVE_MESSAGES_MAX = 1_000
RECEIVE_BYTES_MAX = 64 * 1024 * 1024

# The lite topic of a message is stored as its message group.
GROUP_SOURCES = ("message_type", "message_group")
SOURCES: Mapping[str, tuple[str, ...]] = {
    "message_id": ("message_id",),
    "topic": (),
    "tag": ("tag",),
    "keys": ("keys",),
    "message_group": GROUP_SOURCES,
    "lite_topic": GROUP_SOURCES,
    "message_type": ("message_type",),
    "queue_id": (),
    "queue_offset": (),
    "body": ("is_packed", "body"),
    "properties": ("properties",),
    "born_timestamp": ("born_at_ms",),
    "store_timestamp": ("stored_at_ms",),
    "delivery_timestamp": ("deliver_at_ms",),
    "delivery_attempt": (),
}


class QueueSlice(NamedTuple):
    """A read of one queue's matching messages with offset <= their offset < end_offset."""

    topic: Topic
    queue: MessageQueue
    offset: int
    end_offset: int
    wanted: Filter
    sources: tuple[str, ...]


class QueuePage(NamedTuple):
    """A page of a range of a queue; the next page begins at `next_offset`.

    `columns`: None if the range begins outside the queue, which stores min_offset <= offset < end_offset.
    """

    columns: Columns | None
    next_offset: int
    min_offset: int
    end_offset: int


class HeldPage(NamedTuple):
    """Some of the messages that a receive holds, and the queue numbers by queue id."""

    columns: Columns
    numbers: Mapping[int, int]


def columns_named(names: Iterable[str]) -> tuple[str, ...]:
    """The named columns, each once, in order; all columns if none is named. Raises `BadRequest` for an unknown one."""
    named = tuple(dict.fromkeys(names))
    for each in named:
        if each not in SOURCES:
            raise BadRequest(f"column '{each[:64]}' is not known; a message has {', '.join(SOURCES)}")
    return named or tuple(SOURCES)


def sources_of(columns: Iterable[str], topic_name: str) -> tuple[str, ...]:
    """The database columns to read. For a retry topic they include the properties, which have the attempt."""
    needed = {source for column in columns for source in SOURCES[column]}
    if "delivery_attempt" in columns and topic_name.startswith(RETRY_PREFIX):
        needed.add("properties")
    return tuple(sorted(needed))


def check_slice(offset: int, end_offset: int) -> None:
    if end_offset < offset:
        raise BadRequest(f"end_offset {end_offset} is before offset {offset}; it must be at or after it")
