"""Where a group is in a queue: its progress.

The progress row is the lock of all message groups in the queue: a transaction locks it before it reads, decides and
writes. Requests that name messages lock their rows at the start of the transaction, in one order (`lock`). Operations
that choose messages lock only rows that no other transaction has (`lock_available`). On Postgres the newest version of
a row is found at once (`database.newest`), however many a user's open transaction keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, FromClause, Select, and_, bindparam, select, true, update

from popserver.database.dialect import Dialect, dialect_of
from popserver.database.newest import is_newest, joined, newest
from popserver.database.rows import encode_rows, rows_parameter
from popserver.database.schema import progress
from popserver.engine.transaction import LockOrder, Locks, Transaction


class GroupQueueKey(NamedTuple):
    """A consumer group in a queue: one progress row."""

    group_id: int
    queue_id: int


class QueueToScan(NamedTuple):
    """A queue and a group's progress in it. For `start_offset` see `fifo.start_offsets`.

    `ready_since_ms` and `open_since_ms` are about all queues of the topic: the first message that is READY again, and
    the message group that opened first.
    """

    group_id: int
    queue_id: int
    next_offset: int
    start_offset: int
    min_offset: int
    end_offset: int
    ready_since_ms: int | None
    open_since_ms: int | None


def lock(tx: Transaction, places: Iterable[GroupQueueKey]) -> None:
    """Lock the places that a transaction names, before it does anything else. Waits for other transactions."""
    dialect_of(tx.conn).lock(tx.conn, _LOCK, {"places": encode_rows(sorted(set(places)))})


def locks_of(places: Iterable[GroupQueueKey]) -> tuple[Locks]:
    """The locks of a request that names messages in these places."""
    return (Locks(LockOrder.PROGRESS, lock, places),)


def lock_available(tx: Transaction, places: Iterable[GroupQueueKey]) -> set[GroupQueueKey]:
    """Lock and return the places that no other server has locked. Never waits."""
    wanted = sorted(set(places))
    if not tx.has_other_writers:
        return set(wanted)
    return {GroupQueueKey(*row) for row in tx.conn.execute(_LOCK_AVAILABLE, {"places": encode_rows(wanted)})}


def next_offset(conn: Connection, group_id: int, queue_id: int) -> int | None:
    """The first offset of the queue that the group has not read; None if it has no progress there."""
    found: int | None = conn.execute(_NEXT_OFFSET, {"for_group": group_id, "of_queue": queue_id}).scalar()
    return found


def move_start(conn: Connection, group_id: int, queue_id: int, start_offset: int) -> None:
    """Move a start offset on (`fifo.moving_starts`), on Postgres. The row is locked."""
    conn.execute(_MOVE_START, {"for_group": group_id, "of_queue": queue_id, "start_offset": start_offset})


def start_offset_of(group_id: ColumnElement[int], queue_id: ColumnElement[int]) -> Select[tuple[int]]:
    """The start offset of a queue, on Postgres."""
    at = progress.alias("at_start")
    return newest(at, at.c.start_offset, group_id=group_id, queue_id=queue_id)


def next_offset_of(dialect: Dialect, rows: FromClause) -> tuple[FromClause, ColumnElement[int]]:
    """`rows` (`group_id`, `queue_id`) joined with their progress, and its `next_offset`."""
    found, at = joined(dialect, rows, progress, "group_id", "queue_id")
    return found, at.c.next_offset


_PLACES = rows_parameter("places", "group_id", "queue_id")


def _locking(*, skip_locked: bool) -> Select[Any]:
    at = progress.alias("at")
    row = newest(at, at.c.group_id, at.c.queue_id, group_id=_PLACES.c.group_id, queue_id=_PLACES.c.queue_id)
    locked = row.with_for_update(skip_locked=skip_locked).correlate(_PLACES).lateral("locked")
    # One after the other, in the order that was given.
    return select(locked.c.group_id, locked.c.queue_id).select_from(_PLACES.join(locked, true()))


_LOCK = _locking(skip_locked=False)
_LOCK_AVAILABLE = _locking(skip_locked=True)
_HERE: dict[str, Any] = {"group_id": bindparam("for_group"), "queue_id": bindparam("of_queue")}
_IS_HERE = and_(*(progress.c[name] == value for name, value in _HERE.items()))
# How far groups have read, for joins by the group's id and the queue's.
REACHED = select(progress.c.group_id, progress.c.queue_id, progress.c.next_offset, progress.c.resets).subquery(
    "reached"
)
_NEXT_OFFSET = select(progress.c.next_offset).where(_IS_HERE)
_MOVE_START = update(progress).where(is_newest(progress, **_HERE)).values(start_offset=bindparam("start_offset"))
