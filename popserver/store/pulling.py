"""Pulls: looking at a queue from an offset on. They read, and change nothing; the group's progress is not asked.

A look takes at most a window, a batch and its bytes; what it has passed over is behind its `next_offset`. A sequence of
offsets may have holes, where dead letters were removed: they are passed over like messages that nobody wants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, func, select

from popserver.domain.filtering import Filter, SqlFilter
from popserver.domain.pulling import BATCH_BYTES_MAX, Pulled, PullStatus, correction
from popserver.domain.topic import MessageQueue, Topic, message_key, offset_of
from popserver.store.catalog import topic_not_found
from popserver.store.filter_look import FilterLook
from popserver.store.given import as_given, given
from popserver.store.message_look import BY_KEY
from popserver.store.messages import stored_messages
from popserver.store.packed import PackedLook
from popserver.store.schema import message, queue
from popserver.store.schema import topic as topic_table
from popserver.store.stretch import WINDOW_OFFSETS, WITH_TAG, judge, narrowed, of_tags


class Pull(NamedTuple):
    """A wish for up to `batch_size` messages of one queue, from `offset` on."""

    topic: Topic
    queue: MessageQueue
    offset: int
    batch_size: int
    wanted: Filter


class Ends(NamedTuple):
    """What a queue stores: offsets from `min_offset` up to, not including, `end_offset`."""

    queue_id: int
    number: int
    min_offset: int
    end_offset: int


class _Size(NamedTuple):
    message_key: int
    size: int


def look(conn: Connection, pull: Pull) -> Pulled:
    """What a pull finds at this moment. Raises `TopicNotFound` for a topic that is gone."""
    ends = ends_of(conn, pull.topic, pull.queue)
    corrected = correction(pull.offset, ends.min_offset, ends.end_offset)
    if corrected is not None:
        return Pulled(PullStatus.OFFSET_ILLEGAL, [], corrected, ends.min_offset, ends.end_offset)
    keys, next_offset = _read_on(conn, pull, ends)
    rows = BY_KEY.rows(conn, {"keys": as_given((key,) for key in keys)}) if keys else []
    found = stored_messages(conn, rows, pull.topic)
    return Pulled(_status(pull, found, next_offset), found, next_offset, ends.min_offset, ends.end_offset)


def ends_of(conn: Connection, topic: Topic, place: MessageQueue) -> Ends:
    """Where one queue begins and ends. Raises `TopicNotFound`."""
    row = conn.execute(_ENDS_OF_QUEUE, {"of_queue": place.queue_id}).first()
    if row is None:
        raise topic_not_found(topic.name)
    return Ends(*row)


def ends_of_topic(conn: Connection, topic_id: int) -> list[Ends]:
    """The same of every queue of a topic, by number; none where the topic is gone."""
    return [Ends(*row) for row in conn.execute(_ENDS_OF_TOPIC, {"of_topic": topic_id})]


def offset_at(conn: Connection, topic: Topic, place: MessageQueue, at_ms: int) -> int:
    """The offset of the queue's first message that was stored at or after that time; its end where there is none.

    Times within a queue do not go back, so a few probes find it: no more than there are bits in the number of messages.
    """
    ends = ends_of(conn, topic, place)
    low, high = ends.min_offset, ends.end_offset
    to_key = message_key(place.queue_id, ends.end_offset)
    while low < high:
        middle = (low + high) // 2
        names = {"from_key": message_key(place.queue_id, middle), "to_key": to_key, "limit": 1}
        probe = conn.execute(_STORED_AT, names).first()
        # Where the rest of the queue is a hole, what is looked for lies before it.
        if probe is None or probe.stored_at_ms >= at_ms:
            high = middle
        else:
            low = offset_of(probe.message_key) + 1
    return low


def _status(pull: Pull, found: Sequence[object], next_offset: int) -> PullStatus:
    if found:
        return PullStatus.FOUND
    return PullStatus.NO_MATCHED_MSG if next_offset > pull.offset else PullStatus.NO_NEW_MSG


def _read_on(conn: Connection, pull: Pull, ends: Ends) -> tuple[list[int], int]:
    """The keys of what is wanted, as much as one answer carries, and the offset to go on at."""
    # What wants everything needs no window: it stops at its batch, and holes cost nothing.
    to_offset = ends.end_offset if pull.wanted.wants_all else min(ends.end_offset, pull.offset + WINDOW_OFFSETS)
    from_key, to_key = message_key(ends.queue_id, pull.offset), message_key(ends.queue_id, to_offset)
    if from_key == to_key:
        return [], pull.offset
    names = {"from_key": from_key, "to_key": to_key, "limit": pull.batch_size}
    sizes, reached = _wanted(conn, pull.wanted, names)
    keys = _within_bytes(sizes)
    if len(keys) < len(sizes):
        reached = keys[-1] + 1
    return keys, reached - message_key(ends.queue_id, 0)


def _wanted(conn: Connection, wanted: Filter, names: Mapping[str, Any]) -> tuple[list[_Size], int]:
    if isinstance(wanted, SqlFilter):
        keys, reached = judge(conn, _JUDGED, wanted, names)
        return _BY_KEY.rows(conn, {"keys": as_given((key,) for key in keys)}) if keys else [], reached
    sizes = _EVERY.rows(conn, names) if wanted.wants_all else _TAGGED.rows(conn, {**names, **of_tags(wanted)})
    is_full = len(sizes) == names["limit"]
    return sizes, sizes[-1].message_key + 1 if is_full else names["to_key"]


def _within_bytes(sizes: Sequence[_Size]) -> list[int]:
    """The keys of as many leading messages as one answer may carry, and always of one."""
    keys: list[int] = []
    room = BATCH_BYTES_MAX
    for each in sizes:
        room -= each.size
        if keys and room < 0:
            break
        keys.append(each.message_key)
    return keys


def _sized(narrow: Callable[[Select[Any]], Select[Any]]) -> PackedLook[_Size]:
    # The length of a body is known without reading it.
    return PackedLook(_Size, narrow(select(message.c.message_key, func.length(message.c.body).label("size"))))


_EVERY = _sized(narrowed())
_TAGGED = _sized(narrowed(*WITH_TAG))
_JUDGED = FilterLook(narrowed())
_KEYS = given("keys", "message_key")
_BY_KEY = _sized(
    lambda every: every.where(message.c.message_key.in_(select(_KEYS.c.message_key))).order_by(message.c.message_key)
)
_STORED_AT = narrowed()(select(message.c.message_key, message.c.stored_at_ms))
_ENDS = (
    select(queue.c.queue_id, queue.c.number, queue.c.min_offset, queue.c.next_offset)
    .join(topic_table, topic_table.c.topic_id == queue.c.topic_id)
    .where(topic_table.c.deleted_at_ms.is_(None))
)
_ENDS_OF_TOPIC = _ENDS.where(queue.c.topic_id == bindparam("of_topic")).order_by(queue.c.number)
_ENDS_OF_QUEUE = _ENDS.where(queue.c.queue_id == bindparam("of_queue"))
