"""Positions of message groups: where a group continues in one that is behind the scan, or whose first message is READY
again.

A position is found by its key. On Postgres the key has the offset too, and the search begins at the start offset
(`fifo.start_offsets`), so that it does not read what a user's open transaction keeps. Open positions are found by
the time when they opened. `fifo.moving_positions` changes them, under the lock on the progress; a reader without it
sees what was committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    ScalarSelect,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    select,
)

from popserver.catalog.progress import REACHED
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.newest import group_of, unindexed
from popserver.database.rows import RowQuery, RowStatement
from popserver.database.schema import KEY_SHIFT
from popserver.database.schema import message_group_progress as behind
from popserver.fifo.start_offsets import has_run, start_offset
from popserver.members.lite_subscriptions import subscriptions

# A search skips at most this many open groups in queues that another server is reading.
_OF_OTHERS_MAX = 1_000


class MessageGroupKey(NamedTuple):
    """One message group of a topic."""

    topic_id: int
    queue_id: int
    message_group: str


class Opened(NamedTuple):
    """An open message group."""

    queue_id: int
    message_group: str
    next_offset: int
    has_run: int  # some of its messages were granted before
    is_single: int  # only the message at `next_offset` is READY


def next_offset(conn: Connection, group_id: int, queue_id: int, message_group: str | None) -> int | None:
    """Where the group continues in a message group; None if that has no position."""
    names = {"for_group": group_id, "of_queue": queue_id, "of_message_group": message_group}
    return conn.execute(_NEXT_OFFSET, names).scalar()


def first_offsets(conn: Connection, group_id: int) -> dict[int, int]:
    """By queue id, the lowest offset at which the group continues in a message group."""
    return {row[0]: row[1] for row in conn.execute(_FIRST_OFFSETS, {"for_group": group_id})}


def opened(conn: Connection, names: Mapping[str, Any], queue_ids: Sequence[int], limit: int) -> list[Opened]:
    """The message groups in these queues that opened first. `names` has the group, the topic and `open_from`."""
    of_queues = {"queues": queue_ids, "limit": limit, "scanned": limit + _OF_OTHERS_MAX}
    return _OPENED_OF_QUEUES.of(conn).rows(conn, {**names, **of_queues})


def opened_of_client(
    conn: Connection, names: Mapping[str, Any], client_id: str, limit: int, *, shares: bool
) -> list[Opened]:
    """The lite topics that opened first of those that name the client as their subscriber, or, if it shares some, of
    those that it subscribes to."""
    queries = _OPENED_OF_ALL if shares else _OPENED_OF_ONE
    return queries.of(conn).rows(conn, {**names, "subscriber": client_id, "limit": limit})


def any_position(dialect: Dialect, rows: FromClause) -> ScalarSelect[int]:
    """The queue id of a message group's position; NULL if it has none. `rows` have its `group_id`, `queue_id` and
    `message_group`."""
    return any_position_from(dialect, _key_of(rows), start_offset(rows, rows.c.group_id)).correlate(rows)


def any_position_from(dialect: Dialect, key: _PositionKey, start: ColumnElement[int]) -> ScalarSelect[int]:
    """The same for one message group, whose start offset is known."""
    if not dialect.has_other_writers:
        return select(behind.c.queue_id).where(_is_of(key)).scalar_subquery()
    return _position_from(key, start, "queue_id")


def is_position(dialect: Dialect, rows: FromClause) -> ColumnElement[bool]:
    """The condition that a position is of a message group in `rows`; for UPDATE and DELETE. The progress is locked."""
    if not dialect.has_other_writers:
        return _is_of(_key_of(rows))
    found = _position_from(_key_of(rows), start_offset(rows, rows.c.group_id), "ctid").correlate(rows)
    is_of = (unindexed(behind.c[name]) == rows.c[name] for name in ("group_id", "queue_id"))
    is_named = behind.c.message_group.concat(literal_column("''")) == rows.c.message_group
    return and_(literal_column(f"{behind.name}.ctid") == found, *is_of, is_named)


def offset_of_position(rows: FromClause) -> ScalarSelect[int]:
    """The offset of a message group's position on Postgres; NULL if it has none. `rows` as for `any_position`."""
    return _position_from(_key_of(rows), start_offset(rows, rows.c.group_id), "next_offset").correlate(rows)


def first_in_queue(group_id: ColumnElement[int], queue_id: ColumnElement[int]) -> Select[Any]:
    """The offset and the message group of the first position in a queue that is not before :from_offset, on Postgres.

    By an index whose expressions no other one has. A caller may add conditions about MESSAGE_GROUP, and limits it.
    """
    at = {each: behind.c[each] * literal_column("1") for each in ("group_id", "queue_id", "next_offset")}
    return (
        select(behind.c.next_offset.label("first_offset"), behind.c.message_group)
        .where(at["group_id"] == group_id, at["queue_id"] == queue_id, at["next_offset"] >= bindparam("from_offset"))
        .order_by(at["next_offset"])
    )


def any_open_of(client_ids: Select[tuple[str]]) -> ColumnElement[bool]:
    """Whether a lite topic is open that names one of these clients as its subscriber."""
    return select(behind.c.queue_id).where(*_OF_GROUP, _IS_OPEN, behind.c.subscriber.in_(client_ids)).exists()


# The group id, queue id and message group of a position.
_PositionKey = tuple[ColumnElement[int], ColumnElement[int], ColumnElement[Any]]


def _key_of(rows: FromClause) -> _PositionKey:
    return rows.c.group_id, rows.c.queue_id, rows.c.message_group


def _are_equal(one: FromClause, key: _PositionKey) -> list[ColumnElement[bool]]:
    return [own == wanted for own, wanted in zip(_key_of(one), key, strict=True)]


def _is_of(key: _PositionKey) -> ColumnElement[bool]:
    return and_(*_are_equal(behind, key))


def _position_from(key: _PositionKey, start: ColumnElement[int], column: str) -> ScalarSelect[Any]:
    """By the key, which on Postgres has the offset too: positions before the start offset are past, and the newest one
    is mostly the last. The index of first positions has none of these columns, so Postgres cannot take it."""
    one = behind.alias("one_position")
    found: Select[Any] = select(literal_column(f"one_position.{column}")).where(
        *_are_equal(one, key), one.c.next_offset >= start
    )
    return found.order_by(one.c.next_offset.desc()).limit(literal_column("1")).scalar_subquery()


MESSAGE_GROUP: Final = behind.c.message_group
_NEXT_OFFSET = select(behind.c.next_offset).where(
    _is_of((bindparam("for_group"), bindparam("of_queue"), bindparam("of_message_group")))
)
_FIRST_OFFSETS = (
    select(behind.c.queue_id, func.min(behind.c.next_offset))
    .where(behind.c.group_id == bindparam("for_group"))
    .group_by(behind.c.queue_id)
)
_OF_GROUP = group_of(behind) == bindparam("group_id"), behind.c.topic_id == bindparam("topic_id")
# Open message groups that every client of the group may get.
_OPENED = (
    *_OF_GROUP,
    behind.c.subscriber == literal_column("''"),
    behind.c.open_since_ms >= bindparam("open_from"),
)
# For the whole topic, because that is one lookup; for each queue it would scan all open groups.
OPEN_SINCE_MS = (
    select(behind.c.open_since_ms)
    .where(*_OPENED)
    .order_by(behind.c.open_since_ms)
    .limit(literal_column("1"))
    .scalar_subquery()
)
_OLDEST = (
    select(behind.c.queue_id, behind.c.message_group, behind.c.next_offset, behind.c.open_since_ms)
    .where(*_OPENED)
    .order_by(behind.c.open_since_ms)
    .limit(bindparam("scanned"))
    .subquery("oldest")
)
_OPENED_OF_QUEUES = PerDialect(
    lambda dialect: RowQuery(
        Opened,
        select(
            _OLDEST.c.queue_id,
            _OLDEST.c.message_group,
            _OLDEST.c.next_offset,
            has_run(dialect, _OLDEST, from_start=True).label("has_run"),
            literal_column("0").label("is_single"),
        )
        .where(_OLDEST.c.queue_id.in_(bindparam("queues", expanding=True)))
        .order_by(_OLDEST.c.open_since_ms)
        .limit(bindparam("limit")),
    )
)
_IS_OPEN = behind.c.open_since_ms.is_not(None)
_LITE = select(behind.c.queue_id).where(*_OF_GROUP, behind.c.subscriber == bindparam("subscriber"), _IS_OPEN)
_SUBSCRIBED = subscriptions(bindparam("group_id"), bindparam("topic_id"))
_LITE_OF_ALL = (
    select(behind.c.queue_id)
    .select_from(_SUBSCRIBED)
    .join(behind, _is_of((_SUBSCRIBED.c.group_id, _SUBSCRIBED.c.queue_id, _SUBSCRIBED.c.lite_topic)))
    .where(_SUBSCRIBED.c.client_id == bindparam("subscriber"), _IS_OPEN)
)


def _opened_of_client(dialect: Dialect, found: Select[Any]) -> RowStatement[Opened]:
    columns = [
        behind.c.queue_id,
        behind.c.message_group,
        behind.c.next_offset,
        has_run(dialect, behind).label("has_run"),
        behind.c.is_single,
    ]
    in_order = found.with_only_columns(*columns).order_by(behind.c.open_since_ms)
    return RowStatement(Opened, in_order.limit(bindparam("limit")))


_OPENED_OF_ONE = PerDialect(lambda dialect: _opened_of_client(dialect, _LITE))
_OPENED_OF_ALL = PerDialect(lambda dialect: _opened_of_client(dialect, _LITE_OF_ALL))
_QUEUE_KEY = behind.c.queue_id.op("<<")(KEY_SHIFT)
# The messages that the group :for_group has left behind the scan: those of a message group from one key to the other.
LEFT_BEHIND = (
    select(
        behind.c.queue_id,
        behind.c.message_group,
        _QUEUE_KEY.op("|")(behind.c.next_offset).label("from_key"),
        _QUEUE_KEY.op("|")(REACHED.c.next_offset).label("to_key"),
    )
    .join(REACHED, and_(REACHED.c.group_id == behind.c.group_id, REACHED.c.queue_id == behind.c.queue_id))
    .where(behind.c.group_id == bindparam("for_group"))
    .subquery("left_behind")
)
