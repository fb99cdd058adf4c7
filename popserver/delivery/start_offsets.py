"""Where the messages of message groups begin that are not done: `start_offset` of a consumer group's progress.

Whatever looks for the deliveries of a message group begins there. On Postgres a user's open transaction keeps the
entries of all that were there since it began, and each look would read them from the first one on. Kafka's share groups
have such an offset too, for their own reasons.

A message group that is not done for long, because it waits for a retry or has many messages, would keep the start of
its queue back for all others. It gets a start of its own (`message_group_start`), and the queue's moves on without it.

The starts move under the lock on the progress, which everybody has who grants messages in the queue, so no message
before them can get a delivery. A reset sets the queue's to 0 and ends the others. It stays there on SQLite, whose index
has no entries of the past, and for lite topics, whose clients may begin anywhere.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    ColumnElement,
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

from popserver.database.dialect import Dialect
from popserver.database.newest import newest, no_index_has
from popserver.database.schema import KEY_SHIFT, progress
from popserver.database.schema import message_group_progress as behind
from popserver.database.schema import message_group_start as own
from popserver.delivery.runs import any_of_run


def start_key(dialect: Dialect, rows: FromClause, group_id: ColumnElement[int]) -> ColumnElement[int]:
    """The message key where each message group in `rows` starts, which have its `queue_id` and `message_group`."""
    if not dialect.has_other_writers:
        return literal_column("0")
    return rows.c.queue_id.op("<<")(KEY_SHIFT).op("|")(_start_offset(rows, group_id))


def own_start(
    group_id: ColumnElement[int], queue_id: ColumnElement[int], message_group: ColumnElement[Any]
) -> ScalarSelect[int]:
    """The start offset that a message group has for itself, NULL if it has none."""
    start = own.alias("own_start")
    of_this = start.c.group_id == group_id, start.c.queue_id == queue_id, start.c.message_group == message_group
    return select(start.c.start_offset).where(*of_this).scalar_subquery()


def _start_offset(rows: FromClause, group_id: ColumnElement[int]) -> ColumnElement[int]:
    """Of each message group in `rows`: its own, or that of its queue; 0 without progress."""
    at = progress.alias("at_start")
    of_queue = newest(at, at.c.start_offset, group_id=group_id, queue_id=rows.c.queue_id)
    starts = own_start(group_id, rows.c.queue_id, rows.c.message_group), of_queue.scalar_subquery()
    return func.coalesce(*(each.correlate(rows) for each in starts), literal_column("0"))


def any_position(dialect: Dialect, rows: FromClause) -> ScalarSelect[int]:
    """The queue id of a message group's position; NULL if it has none. `rows` have its `group_id`, `queue_id` and
    `message_group`."""
    return any_position_from(dialect, _key_of(rows), _start_offset(rows, rows.c.group_id)).correlate(rows)


def any_position_from(dialect: Dialect, key: _PositionKey, start: ColumnElement[int]) -> ScalarSelect[int]:
    """The same for one message group, whose start offset is known."""
    if not dialect.has_other_writers:
        return select(behind.c.queue_id).where(_is_of(key)).scalar_subquery()
    one = behind.alias("one_position")
    return _position_from(one, key, start, one.c.queue_id).scalar_subquery()


def is_position(dialect: Dialect, rows: FromClause) -> ColumnElement[bool]:
    """The condition that a position is of a message group in `rows`; for UPDATE and DELETE. Its place is locked."""
    if not dialect.has_other_writers:
        return _is_of(_key_of(rows))
    one = behind.alias("one_position")
    place: ColumnElement[Any] = literal_column("one_position.ctid").label("place")
    found = position_of(one, rows, place).correlate(rows).scalar_subquery()
    is_of = (no_index_has(behind.c[name]) == rows.c[name] for name in ("group_id", "queue_id"))
    is_named = behind.c.message_group.concat(literal_column("''")) == rows.c.message_group
    return and_(literal_column(f"{behind.name}.ctid") == found, *is_of, is_named)


# The group id, queue id and message group of a position.
_PositionKey = tuple[ColumnElement[int], ColumnElement[int], ColumnElement[Any]]


def _key_of(rows: FromClause) -> _PositionKey:
    return rows.c.group_id, rows.c.queue_id, rows.c.message_group


def _are_equal(one: FromClause, key: _PositionKey) -> list[ColumnElement[bool]]:
    return [own == wanted for own, wanted in zip(_key_of(one), key, strict=True)]


def _is_of(key: _PositionKey) -> ColumnElement[bool]:
    return and_(*_are_equal(behind, key))


def position_of(one: FromClause, rows: FromClause, *columns: ColumnElement[Any]) -> Select[Any]:
    return _position_from(one, _key_of(rows), _start_offset(rows, rows.c.group_id), *columns)


def _position_from(
    one: FromClause, key: _PositionKey, start: ColumnElement[int], *columns: ColumnElement[Any]
) -> Select[Any]:
    """By the key, which on Postgres has the offset too: positions before the start offset are past, and the newest one
    is mostly the last. The index of first positions has none of these columns, so Postgres cannot take it."""
    found = select(*columns).where(*_are_equal(one, key), one.c.next_offset >= start)
    return found.order_by(one.c.next_offset.desc()).limit(literal_column("1"))


def has_run(dialect: Dialect, rows: FromClause, *, from_start: bool = False) -> ColumnElement[int]:
    """Whether messages of the message group in a row were granted before: 1 or 0. `from_start`: of those rows none is
    before the start offset of its queue."""
    found = any_of_run(
        dialect,
        group_id=bindparam("group_id"),
        topic_id=bindparam("topic_id"),
        message_group=rows.c.message_group,
        from_key=start_key(dialect, rows, bindparam("group_id")) if from_start else literal_column("0"),
    )
    return case((found.is_not(None), literal_column("1")), else_=literal_column("0"))
