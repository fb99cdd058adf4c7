"""Positions of message groups: the offset at which a consumer group continues in a message group.

A message group has a position while it is behind the scan or paused, or while its first message is READY again. The
primary key finds a position. On Postgres this key has the offset too, and a search begins at the start offset
(`fifo.start_offsets`), so it does not read the versions that a user's open transaction keeps. The index
`message_group_open` finds open positions by the time when they opened.

`fifo.moving_positions` changes positions under the lock of the progress. A reader without it sees the committed rows.
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
from popserver.database.schema import message_group_progress as position
from popserver.fifo.start_offsets import has_run, start_offset
from popserver.members.lite_subscriptions import subscriptions

# A search skips at most this many open message groups in queues that another server is reading.
_SKIPPED_MAX = 1_000


class MessageGroupKey(NamedTuple):
    """One message group of a topic."""

    topic_id: int
    queue_id: int
    message_group: str


class Opened(NamedTuple):
    """The position of an open message group."""

    queue_id: int
    message_group: str
    next_offset: int
    has_run: int  # 1 if it has deliveries
    is_single: int  # 1 if only the message at `next_offset` is READY


def next_offset(conn: Connection, group_id: int, queue_id: int, message_group: str | None) -> int | None:
    """The offset of the group's position in a message group; None if there is none."""
    names = {"for_group": group_id, "of_queue": queue_id, "of_message_group": message_group}
    return conn.execute(_NEXT_OFFSET, names).scalar()


def first_offsets(conn: Connection, group_id: int) -> dict[int, int]:
    """By queue id, the lowest offset of the group's positions."""
    return {row[0]: row[1] for row in conn.execute(_FIRST_OFFSETS, {"for_group": group_id})}


def opened(conn: Connection, names: Mapping[str, Any], queue_ids: Sequence[int], limit: int) -> list[Opened]:
    """The message groups in these queues that opened first. `names`: `group_id`, `topic_id`, `open_from`."""
    of_queues = {"queues": queue_ids, "limit": limit, "scanned": limit + _SKIPPED_MAX}
    return _OPENED_OF_QUEUES.of(conn).rows(conn, {**names, **of_queues})


def opened_of_client(
    conn: Connection, names: Mapping[str, Any], client_id: str, limit: int, *, shares: bool
) -> list[Opened]:
    """The client's lite topics that opened first: of those that name it as their subscriber, or, if it shares some, of
    those that it subscribes to."""
    queries = _OPENED_OF_ALL if shares else _OPENED_OF_ONE
    return queries.of(conn).rows(conn, {**names, "subscriber": client_id, "limit": limit})


def any_position(dialect: Dialect, rows: FromClause) -> ScalarSelect[int]:
    """The queue id of the position of each message group in `rows` (`group_id`, `queue_id`, `message_group`); NULL if
    it has none."""
    return any_position_from(dialect, _key_of(rows), start_offset(rows, rows.c.group_id)).correlate(rows)


def any_position_from(dialect: Dialect, key: _PositionKey, start: ColumnElement[int]) -> ScalarSelect[int]:
    """The same for one message group. `start`: its start offset."""
    if not dialect.has_other_writers:
        return select(position.c.queue_id).where(_has_key(key)).scalar_subquery()
    return _position_from(key, start, "queue_id")


def is_position(dialect: Dialect, rows: FromClause) -> ColumnElement[bool]:
    """The condition that a position is of a message group in `rows`; for UPDATE and DELETE. The progress is locked."""
    if not dialect.has_other_writers:
        return _has_key(_key_of(rows))
    found = _position_from(_key_of(rows), start_offset(rows, rows.c.group_id), "ctid").correlate(rows)
    # The address finds the position. The other conditions use expressions that no index has: by a plain key, Postgres
    # may read all versions of a position that a user's open transaction keeps.
    is_of = (unindexed(position.c[name]) == rows.c[name] for name in ("group_id", "queue_id"))
    is_named = position.c.message_group.concat(literal_column("''")) == rows.c.message_group
    return and_(literal_column(f"{position.name}.ctid") == found, *is_of, is_named)


def offset_of_position(rows: FromClause) -> ScalarSelect[int]:
    """The offset of a message group's position, on Postgres; NULL if it has none. `rows` as for `any_position`."""
    return _position_from(_key_of(rows), start_offset(rows, rows.c.group_id), "next_offset").correlate(rows)


def first_in_queue(group_id: ColumnElement[int], queue_id: ColumnElement[int]) -> Select[Any]:
    """The offset and the message group of a queue's first position at :from_offset or later, on Postgres.

    The index `message_group_first` finds it: no other index has these expressions, so Postgres cannot take another one
    and sort its rows. The caller limits the query to one row, and may add conditions about MESSAGE_GROUP.
    """
    at = {each: position.c[each] * literal_column("1") for each in ("group_id", "queue_id", "next_offset")}
    return (
        select(position.c.next_offset.label("first_offset"), position.c.message_group)
        .where(at["group_id"] == group_id, at["queue_id"] == queue_id, at["next_offset"] >= bindparam("from_offset"))
        .order_by(at["next_offset"])
    )


def any_open_of(client_ids: Select[tuple[str]]) -> ColumnElement[bool]:
    """Whether any open lite topic names one of these clients as its subscriber."""
    return select(position.c.queue_id).where(*_OF_GROUP, _IS_OPEN, position.c.subscriber.in_(client_ids)).exists()


# The group id, queue id and message group of a position.
_PositionKey = tuple[ColumnElement[int], ColumnElement[int], ColumnElement[Any]]


def _key_of(rows: FromClause) -> _PositionKey:
    return rows.c.group_id, rows.c.queue_id, rows.c.message_group


def _equals(one: FromClause, key: _PositionKey) -> list[ColumnElement[bool]]:
    return [own == wanted for own, wanted in zip(_key_of(one), key, strict=True)]


def _has_key(key: _PositionKey) -> ColumnElement[bool]:
    return and_(*_equals(position, key))


def _position_from(key: _PositionKey, start: ColumnElement[int], column: str) -> ScalarSelect[Any]:
    """A column of a message group's position, on Postgres.

    The primary key has the offset too. A search backward meets the newest version first, because positions mostly move
    on, and it ends at the start offset. The index of first positions has other expressions, so Postgres cannot take it.
    """
    one = position.alias("one_position")
    found: Select[Any] = select(literal_column(f"one_position.{column}")).where(
        *_equals(one, key), one.c.next_offset >= start
    )
    return found.order_by(one.c.next_offset.desc()).limit(literal_column("1")).scalar_subquery()


MESSAGE_GROUP: Final = position.c.message_group
_NEXT_OFFSET = select(position.c.next_offset).where(
    _has_key((bindparam("for_group"), bindparam("of_queue"), bindparam("of_message_group")))
)
_FIRST_OFFSETS = (
    select(position.c.queue_id, func.min(position.c.next_offset))
    .where(position.c.group_id == bindparam("for_group"))
    .group_by(position.c.queue_id)
)
_OF_GROUP = group_of(position) == bindparam("group_id"), position.c.topic_id == bindparam("topic_id")
# Open message groups that every client of the group may get.
_OPENED = (
    *_OF_GROUP,
    position.c.subscriber == literal_column("''"),
    position.c.open_since_ms >= bindparam("open_from"),
)
# Of the whole topic, because that is one lookup. For each queue the statement would scan all open message groups.
OPEN_SINCE_MS = (
    select(position.c.open_since_ms)
    .where(*_OPENED)
    .order_by(position.c.open_since_ms)
    .limit(literal_column("1"))
    .scalar_subquery()
)
_OLDEST = (
    select(position.c.queue_id, position.c.message_group, position.c.next_offset, position.c.open_since_ms)
    .where(*_OPENED)
    .order_by(position.c.open_since_ms)
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
_IS_OPEN = position.c.open_since_ms.is_not(None)
_LITE = select(position.c.queue_id).where(*_OF_GROUP, position.c.subscriber == bindparam("subscriber"), _IS_OPEN)
_SUBSCRIBED = subscriptions(bindparam("group_id"), bindparam("topic_id"))
_LITE_OF_ALL = (
    select(position.c.queue_id)
    .select_from(_SUBSCRIBED)
    .join(position, _has_key((_SUBSCRIBED.c.group_id, _SUBSCRIBED.c.queue_id, _SUBSCRIBED.c.lite_topic)))
    .where(_SUBSCRIBED.c.client_id == bindparam("subscriber"), _IS_OPEN)
)


def _opened_of_client(dialect: Dialect, found: Select[Any]) -> RowStatement[Opened]:
    columns = [
        position.c.queue_id,
        position.c.message_group,
        position.c.next_offset,
        has_run(dialect, position).label("has_run"),
        position.c.is_single,
    ]
    in_order = found.with_only_columns(*columns).order_by(position.c.open_since_ms)
    return RowStatement(Opened, in_order.limit(bindparam("limit")))


_OPENED_OF_ONE = PerDialect(lambda dialect: _opened_of_client(dialect, _LITE))
_OPENED_OF_ALL = PerDialect(lambda dialect: _opened_of_client(dialect, _LITE_OF_ALL))
_QUEUE_KEY = position.c.queue_id.op("<<")(KEY_SHIFT)
# The messages that the group :for_group has behind the scan: of each message group, `from_key` to before `to_key`.
LEFT_BEHIND = (
    select(
        position.c.queue_id,
        position.c.message_group,
        _QUEUE_KEY.op("|")(position.c.next_offset).label("from_key"),
        _QUEUE_KEY.op("|")(REACHED.c.next_offset).label("to_key"),
    )
    .join(REACHED, and_(REACHED.c.group_id == position.c.group_id, REACHED.c.queue_id == position.c.queue_id))
    .where(position.c.group_id == bindparam("for_group"))
    .subquery("left_behind")
)
