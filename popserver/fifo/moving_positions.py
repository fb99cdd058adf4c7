"""Changes the positions of message groups (`fifo.positions`). The caller has locked the progress in their queues.

A position is open if a message of its message group can be delivered now. The position of a lite topic names the client
that gets it.
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
from popserver.database.schema import message_group_progress as position
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
    """Open the closed positions of these message groups, except of paused ones; returns how many."""
    return conn.execute(_OPEN.of(conn), {"members": members, "now_ms": now_ms}).rowcount


def close(conn: Connection, members: str) -> None:
    """Close the positions of these message groups."""
    conn.execute(_CLOSE.of(conn), {"members": members})


def add(conn: Connection, members: str, open_since_ms: int | None) -> None:
    """Add a position at the scan for each of these message groups without one; `open_since_ms` None: a closed one."""
    conn.execute(_ADD.of(conn), {"members": members, "open_since_ms": open_since_ms})


def add_at(conn: Connection, group_id: int, topic_id: int, rows: Sequence[tuple[int, int, str]]) -> None:
    """Add closed positions for message groups without one: queue id, offset, message group."""
    conn.execute(_ADD_AT, {"group_id": group_id, "topic_id": topic_id, "left": encode_rows(rows)})


def adding(found: Select[Any]) -> Executable:
    """A statement that adds closed positions for message groups, which every client may get.

    `found` has the group id, queue id, message group, topic id and offset of message groups without a position.
    """
    return insert(position).from_select(_COLUMNS[:5], found)


def add_waiting(conn: Connection, rows: Sequence[Sequence[int | str | None]]) -> None:
    """Add positions of lite topics: group id, queue id, topic id, offset, since when it is open, 1 if only one message
    waits, name, and the client that gets it."""
    _ADD_WAITING.execute(conn, {"waiting": encode_rows(rows)})


def note_more(conn: Connection, keys: Sequence[Key]) -> None:
    """Note that the scan has passed another message of each of these lite topics."""
    _NOTE_MORE.execute(conn, {"members": encode_rows(keys)})


def move(conn: Connection, rows: Sequence[tuple[int | str, ...]]) -> int:
    """Move positions: group id, queue id, new offset, 1 to stay open or 0 to close it, message group. Returns how many
    were moved."""
    return conn.execute(_MOVE.of(conn), {"moves": encode_rows(rows)}).rowcount


def set_subscribers(conn: Connection, keys: Sequence[Key]) -> None:
    """Set the client that gets each of these lite topics now."""
    for step in in_steps(keys):
        conn.execute(_SET_SUBSCRIBERS, {"members": encode_rows(step)})


def end(conn: Connection, keys: Sequence[Key]) -> None:
    """Remove the positions of message groups that have no message left behind the scan."""
    if keys:
        _END.of(conn).execute(conn, {"members": encode_rows(keys)})


def end_all(conn: Connection, group_id: int, queue_id: int) -> None:
    """Remove the consumer group's positions in the queue."""
    conn.execute(_END_ALL, {"for_group": group_id, "of_queue": queue_id})


def forget_group(conn: Connection, group_id: int) -> int:
    """Remove a step of the positions of a deleted group; returns how many."""
    return remove_step(conn, position.c.message_group, position.c.group_id == group_id)


def forget_queue(conn: Connection, queue_id: int) -> int:
    """Remove a step of the positions in a queue of a deleted topic; returns how many."""
    return remove_step(conn, position.c.message_group, position.c.queue_id == queue_id)


def turn_back(conn: Connection, now_ms: int) -> None:
    """After the server time has gone back to `now_ms`: no position is open since a later time."""
    conn.execute(_TURN_BACK, {"now_ms": now_ms})


def _subscriber_of(
    group_id: ColumnElement[int], topic_id: ColumnElement[int], lite_topic: ColumnElement[str]
) -> ColumnElement[str | None]:
    """The client that gets this lite topic, NULL for none; empty if the group's clients do not choose lite topics."""
    first = first_subscriber(group_id, topic_id, lite_topic)
    return case((groups.chooses(group_id), first), else_=literal_column("''"))


_COLUMNS = ["group_id", "queue_id", "message_group", "topic_id", "next_offset", "subscriber", "open_since_ms"]
_NAMES = "group_id", "queue_id", "message_group"
_MEMBERS = rows_parameter("members", "group_id", "queue_id", "topic_id", text=("message_group",))
_KEYS = rows_parameter("members", "group_id", "queue_id", text=("message_group",))
_KEY = tuple_(*(position.c[name] for name in _NAMES))
_OPEN = PerDialect(
    lambda dialect: (
        update(position)
        .where(is_position(dialect, _MEMBERS), position.c.open_since_ms.is_(None), paused_at(position).is_(None))
        .values(open_since_ms=bindparam("now_ms", type_=BigInteger))
    )
)
_CLOSE = PerDialect(lambda dialect: update(position).where(is_position(dialect, _MEMBERS)).values(open_since_ms=None))


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
    return insert(position).from_select(_COLUMNS, new)


_ADD = PerDialect(_add)
_LEFT = rows_parameter("left", "queue_id", "next_offset", text=("message_group",))
_GROUP_ID, _TOPIC_ID = bindparam("group_id", type_=BigInteger), bindparam("topic_id", type_=BigInteger)
_ADD_AT = insert(position).from_select(
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
_ADD_WAITING = Statement(insert(position).from_select([each.name for each in _WAITING.c], select(_WAITING)))
_NOTE_MORE = Statement(
    update(position)
    .where(*(position.c[name] == _KEYS.c[name] for name in _NAMES))
    .values(is_single=literal_column("0"))
)
_MOVES = rows_parameter("moves", "group_id", "queue_id", "next_offset", "is_open", text=("message_group",))
_MOVE = PerDialect(
    lambda dialect: (
        update(position)
        .where(is_position(dialect, _MOVES))
        .values(
            next_offset=_MOVES.c.next_offset,
            is_single=0,
            open_since_ms=case((_MOVES.c.is_open == 1, position.c.open_since_ms), else_=None),
        )
    )
)
_IS_NAMED = _KEY.in_(select(*(_KEYS.c[name] for name in _NAMES)))
_SET_SUBSCRIBERS = (
    update(position)
    .where(_IS_NAMED)
    .values(subscriber=_subscriber_of(position.c.group_id, position.c.topic_id, position.c.message_group))
)
# SQLite has no DELETE with a join.
_END = PerDialect(
    lambda dialect: Statement(
        delete(position).where(is_position(dialect, _KEYS) if dialect.has_other_writers else _IS_NAMED)
    )
)
_END_ALL = delete(position).where(
    position.c.group_id == bindparam("for_group"), position.c.queue_id == bindparam("of_queue")
)
_TURN_BACK = (
    update(position)
    .where(position.c.open_since_ms > bindparam("now_ms"))
    .values(open_since_ms=bindparam("now_ms", type_=BigInteger))
)
