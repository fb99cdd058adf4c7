"""Times of messages: the offset for a time, and when the oldest and the newest ones were stored.

Within a queue `stored_at_ms` never decreases (`catalog.queue_offsets`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    FromClause,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    case,
    func,
    literal_column,
    select,
)
from sqlalchemy import true as always

from popserver.catalog.lookup import topic_not_found
from popserver.catalog.queues import STORED, end_key, first_key
from popserver.catalog.topics import EXISTING
from popserver.database.rows import RowStatement
from popserver.database.schema import IS_ORIGINAL, KEY_SHIFT, message
from popserver.model.topic import MessageQueue, Topic, message_key, offset_of


class _OffsetRange(NamedTuple):
    """A range of twice `step` offsets from `begin` on; a step of 0 means no range."""

    begin: int
    step: int


class _Times(NamedTuple):
    min_offset: int
    next_offset: int
    newest_stored_at_ms: int
    oldest_ms: int | None


def offset_at(conn: Connection, topic: Topic, queue: MessageQueue, at_ms: int) -> int:
    """The offset of the queue's first message that was stored at or after `at_ms`; the queue's end if there is none.

    A binary search in one statement: two probes more than the number of offsets has bits, and about half of that if
    messages arrived at an even rate. Raises `TopicNotFound`.
    """
    row = _TIMES.first(conn, {"of_queue": queue.queue_id})
    if row is None:
        raise topic_not_found(topic.name)
    if row.oldest_ms is None or at_ms > row.newest_stored_at_ms:
        return row.next_offset
    if at_ms <= row.oldest_ms:
        return row.min_offset
    likely = _likely(row, row.oldest_ms, at_ms)
    names = {
        "from_key": message_key(queue.queue_id, row.min_offset),
        "to_key": message_key(queue.queue_id, row.next_offset),
        "step": 1 << (row.next_offset - row.min_offset).bit_length() >> 1,
        "likely_key": message_key(queue.queue_id, likely.begin),
        "likely_step": likely.step,
        "at_ms": at_ms,
    }
    return offset_of(conn.execute(_FIRST_STORED_AT, names).scalar_one())


def newest_stored_at_ms(conn: Connection) -> int:
    """The latest `stored_at_ms`; 0 for an empty store. A server's clock must not start before this time."""
    return conn.execute(_NEWEST).scalar() or 0


def oldest_stored_at_ms(conn: Connection) -> int | None:
    """When the oldest of the first messages of all queues was stored; None for an empty store."""
    return conn.execute(_OLDEST).scalar()


def newest_in_message_group_ms(message_group: ColumnElement[Any], first_key: ColumnElement[int]) -> ScalarSelect[int]:
    """When the last message of a message group was stored, from this key to its queue's end; NULL if there is none."""
    stored_at_ms = select(message.c.stored_at_ms).where(
        IS_ORIGINAL,
        message.c.message_group == message_group,
        message.c.message_key >= first_key,
        message.c.message_key < (first_key.op(">>")(KEY_SHIFT) + 1).op("<<")(KEY_SHIFT),
    )
    return stored_at_ms.order_by(message.c.message_key.desc()).limit(1).scalar_subquery()


def _likely(row: _Times, oldest_ms: int, at_ms: int) -> _OffsetRange:
    """The probable range of the offset if messages arrived at an even rate, with about √count offsets on each side."""
    count = row.next_offset - row.min_offset
    spread = 1 << (2 * math.isqrt(count)).bit_length()
    if oldest_ms == row.newest_stored_at_ms or 4 * spread > count:
        return _OffsetRange(row.min_offset, 0)
    evenly = row.min_offset + count * (at_ms - oldest_ms) // (row.newest_stored_at_ms - oldest_ms)
    return _OffsetRange(min(max(evenly - spread, row.min_offset + 1), row.next_offset - 2 * spread + 1), spread)


def stored_at(first: ColumnElement[int], end: ColumnElement[int], *, is_last: bool = False) -> ScalarSelect[int]:
    """The `stored_at_ms` of the first or the last message with first <= key < end; NULL if there is none."""
    key = message.c.message_key
    found = select(message.c.stored_at_ms).where(key >= first, key < end)
    return found.order_by(key.desc() if is_last else key).limit(literal_column("1")).scalar_subquery()


def _first_stored_at() -> Select[Any]:
    """The first key whose message was stored at or after `at_ms`: a binary search with steps that halve.

    It begins at `likely_key` if the result is in the likely range, otherwise at `from_key`. A step is taken if the
    message before its end, or the next one that exists, was stored before `at_ms`.
    """
    at_ms, end_key, likely_key, likely_step = map(_number, ("at_ms", "to_key", "likely_key", "likely_step"))
    is_likely = and_(
        likely_step > 0,
        stored_at(likely_key - 1, end_key) < at_ms,
        func.coalesce(stored_at(likely_key + 2 * likely_step - 1, end_key) >= at_ms, always()),
    )
    begin = select(
        case((is_likely, likely_key), else_=_number("from_key")).label("message_key"),
        case((is_likely, likely_step), else_=_number("step")).label("step"),
    )
    way = begin.cte("way", recursive=True)
    leap = case((stored_at(way.c.message_key + way.c.step - 1, end_key) < at_ms, way.c.step), else_=0)
    every = way.union_all(select(way.c.message_key + leap, way.c.step // 2).where(way.c.step > 0))
    return select(every.c.message_key).where(every.c.step == 0)


def _number(name: str) -> ColumnElement[int]:
    return bindparam(name, type_=BigInteger)


_FIRST_STORED_AT = _first_stored_at()
_TIMES = RowStatement(
    _Times,
    select(
        STORED.c.min_offset,
        STORED.c.next_offset,
        STORED.c.newest_stored_at_ms,
        stored_at(first_key(STORED), end_key(STORED)).label("oldest_ms"),
    )
    .join(EXISTING, EXISTING.c.topic_id == STORED.c.topic_id)
    .where(STORED.c.queue_id == bindparam("of_queue")),
)


def _at(key: ColumnElement[int]) -> FromClause:
    """Queues that have messages, each with its message at this key."""
    return STORED.join(message, and_(STORED.c.min_offset < STORED.c.next_offset, message.c.message_key == key))


_NEWEST = select(func.max(message.c.stored_at_ms)).select_from(_at(end_key(STORED) - 1))
_OLDEST = select(func.min(message.c.stored_at_ms)).select_from(_at(first_key(STORED)))
