"""Changes of the positions of message groups (`fifo.positions`). The caller has locked the progress in the queue.

A position is open if a message of its group can be delivered now. That of a lite topic names a client that gets it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Select,
    bindparam,
    case,
    delete,
    insert,
    literal_column,
    select,
    tuple_,
    update,
)

from popserver.catalog import groups, progress
from popserver.catalog.pauses import paused_at
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.rows import encode_rows, rows_parameter
from popserver.database.schema import message_group_progress as behind
from popserver.database.statement import Statement
from popserver.engine.transaction import in_steps
from popserver.engine.upkeep import remove_step
from popserver.fifo.positions import MessageGroupKey, any_position, is_position
from popserver.members.lite_subscriptions import first_subscriber

# The group id, queue id and message group of a position.
Key = tuple[int, int, str]


def encode_members(group_id: int, members: Iterable[MessageGroupKey]) -> str:
    """Message groups of a group as `add`, `open_unpaused` and `close` take them: group, queue, topic, name."""
    return encode_rows([(group_id, each.queue_id, each.topic_id, each.message_group) for each in members])


def open_unpaused(conn: Connection, members: str, now_ms: int) -> int:
    """Open those of these message groups that have a position and are not paused; returns how many were closed."""
    return conn.execute(_OPEN.of(conn), {"members": members, "now_ms": now_ms}).rowcount


def close(conn: Connection, members: str) -> None:
    """Close those of these message groups that have a position."""
    conn.execute(_CLOSE.of(conn), {"members": members})


def add(conn: Connection, members: str, open_since_ms: int | None) -> None:
    """Give those of these message groups a position that have none, where the scan is; closed without a time."""
    conn.execute(_ADD.of(conn), {"members": members, "open_since_ms": open_since_ms})


def add_at(conn: Connection, group_id: int, topic_id: int, rows: Sequence[tuple[int, int, str]]) -> None:
    """Give message groups that have none a closed position: queue id, offset, message group."""
    conn.execute(_ADD_AT, {"group_id": group_id, "topic_id": topic_id, "left": encode_rows(rows)})


def adding(found: Select[Any]) -> Executable:
    """A statement that gives message groups a closed position that every client may get.

    `found` has the group id, queue id, message group, topic id and offset of those without one.
    """
    return insert(behind).from_select(_COLUMNS[:5], found)


def add_waiting(conn: Connection, rows: Sequence[Sequence[int | str | None]]) -> None:
    """Give lite topics positions: group id, queue id, topic id, offset, since when it is open, whether only one message
    waits, name, and the client that gets it."""
    _ADD_WAITING.execute(conn, {"waiting": encode_rows(rows)})


def note_more(conn: Connection, keys: Sequence[Key]) -> None:
    """The scan has passed another message of these."""
    _NOTE_MORE.execute(conn, {"members": encode_rows(keys)})


def move(conn: Connection, rows: Sequence[tuple[int | str, ...]]) -> int:
    """Move positions: group id, queue id, new offset, 1 if it stays open or 0 to close it, message group. Returns how
    many there are."""
    return conn.execute(_MOVE.of(conn), {"moves": encode_rows(rows)}).rowcount


def set_subscribers(conn: Connection, keys: Sequence[Key]) -> None:
    """Write into the positions of these lite topics which client gets them now."""
    for step in in_steps(keys):
        conn.execute(_SET_SUBSCRIBERS, {"members": encode_rows(step)})


def end(conn: Connection, keys: Sequence[Key]) -> None:
    """Remove the positions of these message groups: nothing of them is left behind the scan."""
    if keys:
        _END.of(conn).execute(conn, {"members": encode_rows(keys)})


def end_all(conn: Connection, group_id: int, queue_id: int) -> None:
    """Remove the positions of all message groups of the queue: the group was reset there."""
    conn.execute(_END_ALL, {"for_group": group_id, "of_queue": queue_id})


def forget_group(conn: Connection, group_id: int) -> int:
    """Remove a step of the positions of a deleted group; returns how many."""
    return remove_step(conn, behind.c.message_group, behind.c.group_id == group_id)


def forget_queue(conn: Connection, queue_id: int) -> int:
    """Remove a step of the positions in a queue of a deleted topic; returns how many."""
    return remove_step(conn, behind.c.message_group, behind.c.queue_id == queue_id)


def turn_back(conn: Connection, now_ms: int) -> None:
    """The server time has gone back to `now_ms`: no position is open since a later time."""
    conn.execute(_TURN_BACK, {"now_ms": now_ms})


def _subscriber_of(
    group_id: ColumnElement[int], topic_id: ColumnElement[int], lite_topic: ColumnElement[str]
) -> ColumnElement[str | None]:
    """The client that gets this lite topic, NULL for none; empty for a group whose clients do not choose."""
    first = first_subscriber(group_id, topic_id, lite_topic)
    return case((groups.chooses(group_id), first), else_=literal_column("''"))


_COLUMNS = ["group_id", "queue_id", "message_group", "topic_id", "next_offset", "subscriber", "open_since_ms"]
_NAMES = "group_id", "queue_id", "message_group"
_MEMBERS = rows_parameter("members", "group_id", "queue_id", "topic_id", text=("message_group",))
_KEYS = rows_parameter("members", "group_id", "queue_id", text=("message_group",))
_KEY = tuple_(*(behind.c[name] for name in _NAMES))
_OPEN = PerDialect(
    lambda dialect: (
        update(behind)
        .where(is_position(dialect, _MEMBERS), behind.c.open_since_ms.is_(None), paused_at(behind).is_(None))
        .values(open_since_ms=bindparam("now_ms", type_=BigInteger))
    )
)
_CLOSE = PerDialect(lambda dialect: update(behind).where(is_position(dialect, _MEMBERS)).values(open_since_ms=None))


def _add(dialect: Dialect) -> Executable:
    found, next_offset = progress.next_offset_of(dialect, _MEMBERS)
    columns = [
        _MEMBERS.c.group_id,
        _MEMBERS.c.queue_id,
        _MEMBERS.c.message_group,
        _MEMBERS.c.topic_id,
        next_offset,
        _subscriber_of(_MEMBERS.c.group_id, _MEMBERS.c.topic_id, _MEMBERS.c.message_group),
        bindparam("open_since_ms", type_=BigInteger),
    ]
    new = select(*columns).select_from(found).where(any_position(dialect, _MEMBERS).is_(None))
    return insert(behind).from_select(_COLUMNS, new)


_ADD = PerDialect(_add)
_LEFT = rows_parameter("left", "queue_id", "next_offset", text=("message_group",))
_GROUP_ID, _TOPIC_ID = bindparam("group_id", type_=BigInteger), bindparam("topic_id", type_=BigInteger)
_ADD_AT = insert(behind).from_select(
    _COLUMNS[:6],
    select(
        _GROUP_ID,
        _LEFT.c.queue_id,
        _LEFT.c.message_group,
        _TOPIC_ID,
        _LEFT.c.next_offset,
        _subscriber_of(_GROUP_ID, _TOPIC_ID, _LEFT.c.message_group),
    ),
)
_WAITING = rows_parameter(
    "waiting",
    "group_id",
    "queue_id",
    "topic_id",
    "next_offset",
    "open_since_ms",
    "is_single",
    text=("message_group", "subscriber"),
)
_ADD_WAITING = Statement(insert(behind).from_select([each.name for each in _WAITING.c], select(_WAITING)))
_NOTE_MORE = Statement(
    update(behind).where(*(behind.c[name] == _KEYS.c[name] for name in _NAMES)).values(is_single=literal_column("0"))
)
_MOVES = rows_parameter("moves", "group_id", "queue_id", "next_offset", "is_open", text=("message_group",))
_MOVE = PerDialect(
    lambda dialect: (
        update(behind)
        .where(is_position(dialect, _MOVES))
        .values(
            next_offset=_MOVES.c.next_offset,
            is_single=0,
            open_since_ms=case((_MOVES.c.is_open == 1, behind.c.open_since_ms), else_=None),
        )
    )
)
_IS_NAMED = _KEY.in_(select(*(_KEYS.c[name] for name in _NAMES)))
_SET_SUBSCRIBERS = (
    update(behind)
    .where(_IS_NAMED)
    .values(subscriber=_subscriber_of(behind.c.group_id, behind.c.topic_id, behind.c.message_group))
)
# SQLite has no DELETE with a join.
_END = PerDialect(
    lambda dialect: Statement(
        delete(behind).where(is_position(dialect, _KEYS) if dialect.has_other_writers else _IS_NAMED)
    )
)
_END_ALL = delete(behind).where(behind.c.group_id == bindparam("for_group"), behind.c.queue_id == bindparam("of_queue"))
_TURN_BACK = (
    update(behind)
    .where(behind.c.open_since_ms > bindparam("now_ms"))
    .values(open_since_ms=bindparam("now_ms", type_=BigInteger))
)
