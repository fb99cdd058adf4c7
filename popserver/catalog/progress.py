"""Keeper of progress: which groups read a queue, and the next offset of each.

The progress row is the lock of all message groups in the queue: a transaction locks it before it reads, decides and
writes. Requests that name messages lock these rows at the start of the transaction, in one order (`lock`). Operations
that choose messages lock only rows that no other transaction has locked (`lock_available`). On Postgres a search meets
the newest version of a row first (`database.newest`), however many versions a user's open transaction keeps.

A group consumes a topic if it has progress in its queues.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Integer,
    Select,
    bindparam,
    delete,
    func,
    insert,
    select,
    true,
    update,
)

from popserver.catalog.queues import STORED
from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.newest import are_newest, is_locked, is_newest, joined, newest
from popserver.database.rows import encode_column, encode_rows, rows_parameter
from popserver.database.schema import progress
from popserver.database.statement import Statement
from popserver.engine.transaction import LockOrder, Locks, Transaction, in_steps


class GroupQueueKey(NamedTuple):
    """A consumer group in a queue: one progress row."""

    group_id: int
    queue_id: int


class Reached(NamedTuple):
    """A group's progress in a queue: the first offset that it has not read, and how often an operator has moved it."""

    next_offset: int
    resets: int


class QueueToScan(NamedTuple):
    """A queue and a group's progress in it. For `start_offset` see `fifo.start_offsets`.

    `ready_since_ms` and `open_since_ms` are about all queues of the topic: the first message that is READY again, and
    the message group that opened first. `has_others`: other queues have messages too, and were not locked.
    """

    group_id: int
    queue_id: int
    next_offset: int
    start_offset: int
    min_offset: int
    end_offset: int
    ready_since_ms: int | None
    open_since_ms: int | None
    has_others: bool


def lock(tx: Transaction, keys: Iterable[GroupQueueKey]) -> None:
    """Lock this progress, before the transaction does anything else. Waits for other transactions."""
    dialect_of(tx.conn).lock(tx.conn, _LOCK, {"keys": encode_rows(sorted(set(keys)))})


def locks_of(keys: Iterable[GroupQueueKey]) -> tuple[Locks]:
    """The locks of a request that names messages of these groups in these queues."""
    return (Locks(LockOrder.PROGRESS, lock, keys),)


def lock_available(tx: Transaction, keys: Iterable[GroupQueueKey]) -> set[GroupQueueKey]:
    """Lock and return those of these rows that no other transaction has locked. Never waits."""
    wanted = sorted(set(keys))
    if not wanted or not tx.has_other_writers:
        return set(wanted)
    return {GroupQueueKey(*row) for row in tx.conn.execute(_LOCK_AVAILABLE, {"keys": encode_rows(wanted)})}


def lock_reading(tx: Transaction, keys: Sequence[GroupQueueKey]) -> dict[GroupQueueKey, Reached]:
    """Lock and return this progress, without queues that a group does not read. Waits for other transactions."""
    rows = (row for step in in_steps(keys) for row in tx.conn.execute(_LOCK_READING.of(tx.conn), _named(step)))
    return {GroupQueueKey(row[0], row[1]): Reached(row[2], row[3]) for row in rows}


def lock_of_queue(conn: Connection, queue_id: int) -> Sequence[int] | None:
    """Lock the progress of all groups of a queue, without waiting; returns the groups. None if another transaction has
    locked one."""
    groups = conn.execute(_LOCK_OF_QUEUE, {"of_queue": queue_id}).scalars().all()
    return groups if len(groups) == conn.execute(_COUNT_OF_QUEUE, {"of_queue": queue_id}).scalar_one() else None


def next_offset(conn: Connection, group_id: int, queue_id: int) -> int | None:
    """The first offset of the queue that the group has not read; None if it has no progress there."""
    return conn.execute(_NEXT_OFFSET, {"for_group": group_id, "of_queue": queue_id}).scalar()


def of_queues(conn: Connection, group_id: int, queue_ids: Iterable[int]) -> dict[int, Reached]:
    """The group's progress in those of these queues that it reads, by queue id."""
    keys = [(group_id, each) for each in sorted(set(queue_ids))]
    return {row[1]: Reached(row[2], row[3]) for row in conn.execute(_OF_KEYS.of(conn), _named(keys))}


def groups_of_queue(conn: Connection, queue_id: int) -> Sequence[int]:
    """The groups that read the queue."""
    return conn.execute(_GROUPS_OF_QUEUE, {"of_queue": queue_id}).scalars().all()


def queues_in_topic(conn: Connection, group_id: int, topic_id: int) -> set[int]:
    """The queues of the topic that the group reads; none if it does not consume the topic."""
    return set(conn.execute(_QUEUES_IN_TOPIC, {"for_group": group_id, "of_topic": topic_id}).scalars())


def all_resets(conn: Connection, group_id: int) -> int:
    """How often operators have moved the group in all queues together."""
    return int(conn.execute(_ALL_RESETS, {"for_group": group_id}).scalar_one())


def begin(conn: Connection, rows: Sequence[tuple[int, int, int, int]]) -> None:
    """Let groups begin in queues: group id, queue id, first offset to read, count of resets.

    If another server inserts the same row now, the primary key refuses this one, and the batch runs again.
    """
    for step in in_steps(rows):
        conn.execute(_BEGIN, {"offsets": encode_rows(step)})


def begin_in_new_queues(conn: Connection, topic_id: int) -> None:
    """Let each group that consumes the topic begin in its new queues, at their beginning."""
    conn.execute(_BEGIN_IN_NEW_QUEUES, {"of_topic": topic_id})


def move_on(conn: Connection, group_id: int, queue_id: int, next_offset: int) -> None:
    """Move progress on. The row is locked."""
    _MOVE_ON.of(conn).execute(conn, {"for_group": group_id, "of_queue": queue_id, "reached": next_offset})


def grow(conn: Connection, rows: Sequence[tuple[int, int, int]]) -> None:
    """Move progress on: group id, queue id, offset. A smaller offset changes nothing. The rows are locked."""
    for step in in_steps(rows):
        conn.execute(_GROW.of(conn), {"grown": encode_rows(step)})


def skip_to(conn: Connection, group_id: int, queue_id: int, offset: int, *, is_reset: bool) -> None:
    """Move progress past a message that an operator skips. `is_reset`: commits with an older count are refused."""
    names = {"for_group": group_id, "of_queue": queue_id, "to_offset": offset, "more_resets": int(is_reset)}
    conn.execute(_SKIP_TO, names)


def reset(conn: Connection, group_id: int, queue_id: int, to_offset: int) -> None:
    """An operator moves the group to this offset; it begins there if it has no progress."""
    if not conn.execute(_RESET, {"for_group": group_id, "of_queue": queue_id, "to_offset": to_offset}).rowcount:
        begin(conn, [(group_id, queue_id, to_offset, 1)])


def move_start(conn: Connection, group_id: int, queue_id: int, start_offset: int) -> None:
    """Advance a start offset (`fifo.moving_starts`), on Postgres. The row is locked."""
    conn.execute(_MOVE_START, {"for_group": group_id, "of_queue": queue_id, "start_offset": start_offset})


def end(conn: Connection, group_id: int, queue_ids: Collection[int]) -> None:
    """Remove the group's progress in these queues. The rows are locked."""
    conn.execute(_END, {"for_group": group_id, "queues": encode_column(queue_ids)})


def forget_group(conn: Connection, group_id: int) -> int:
    """Remove the progress of a deleted group. Returns how many rows stay: other transactions have locked them."""
    conn.execute(_FORGET_GROUP, {"for_group": group_id})
    return conn.execute(_COUNT_OF_GROUP, {"for_group": group_id}).scalar_one()


def forget_queue(conn: Connection, queue_id: int) -> int:
    """Remove the progress in a queue of a deleted topic. Returns as `forget_group` does."""
    conn.execute(_FORGET_QUEUE, {"of_queue": queue_id})
    return conn.execute(_COUNT_OF_QUEUE, {"of_queue": queue_id}).scalar_one()


def newest_of(name: str, group_id: ColumnElement[int], queue_id: ColumnElement[int]) -> Select[Any]:
    """The newest version of one row of `REACHED`, on Postgres. `name`: its alias."""
    row = progress.alias(name)
    return newest(row, *(row.c[each] for each in _REACHED), group_id=group_id, queue_id=queue_id)


def start_offset_of(group_id: ColumnElement[int], queue_id: ColumnElement[int]) -> Select[tuple[int]]:
    """The start offset of a queue, on Postgres."""
    at = progress.alias("at_start")
    return newest(at, at.c.start_offset, group_id=group_id, queue_id=queue_id)


def next_offset_of(dialect: Dialect, rows: FromClause) -> tuple[FromClause, ColumnElement[int]]:
    """`rows` (`group_id`, `queue_id`) joined with their progress, and its `next_offset`."""
    found, at = joined(dialect, rows, progress, "group_id", "queue_id")
    return found, at.c.next_offset


def _named(keys: Sequence[Sequence[int]]) -> dict[str, str]:
    return {"keys": encode_rows(keys)}


_KEYS = rows_parameter("keys", "group_id", "queue_id")


def _locking(*, skip_locked: bool) -> Select[Any]:
    at = progress.alias("at")
    row = newest(at, at.c.group_id, at.c.queue_id, group_id=_KEYS.c.group_id, queue_id=_KEYS.c.queue_id)
    locked = row.with_for_update(skip_locked=skip_locked).correlate(_KEYS).lateral("locked")
    # One lookup for each key, in the order of the keys: all transactions lock in one order, so they do not deadlock.
    return select(locked.c.group_id, locked.c.queue_id).select_from(_KEYS.join(locked, true()))


_LOCK = _locking(skip_locked=False)
_LOCK_AVAILABLE = _locking(skip_locked=True)
_HERE: dict[str, Any] = {"group_id": bindparam("for_group"), "queue_id": bindparam("of_queue")}
_OF_GROUP, _OF_QUEUE = (progress.c[name] == value for name, value in _HERE.items())
_IS_HERE = _OF_GROUP, _OF_QUEUE
_REACHED = "group_id", "queue_id", "next_offset", "resets", "start_offset"
# How far groups have read, for joins by `group_id` and `queue_id`.
REACHED = select(*(progress.c[name] for name in _REACHED)).subquery("reached")
# Which group consumes which topic, by the numbers of the queues that it reads.
CONSUMED = (
    select(progress.c.group_id, STORED.c.topic_id, STORED.c.number)
    .join(progress, progress.c.queue_id == STORED.c.queue_id)
    .subquery("consumed")
)


def _of_keys(dialect: Dialect, *, locks: bool) -> Select[Any]:
    found, row = joined(dialect, _KEYS, progress, "group_id", "queue_id", locks=locks)
    return select(row.c.group_id, row.c.queue_id, row.c.next_offset, row.c.resets).select_from(found)


_OF_KEYS = PerDialect(partial(_of_keys, locks=False))
_LOCK_READING = PerDialect(partial(_of_keys, locks=True))
_NEXT_OFFSET = select(progress.c.next_offset).where(*_IS_HERE)
_GROUPS_OF_QUEUE = select(progress.c.group_id).where(_OF_QUEUE)
# Here and below without waiting: a transaction that has locked a row may wait for a lock of this transaction. To wait
# for it would be a deadlock.
_LOCK_OF_QUEUE = _GROUPS_OF_QUEUE.order_by(progress.c.group_id).with_for_update(skip_locked=True)
_COUNT_OF_QUEUE = select(func.count()).select_from(progress).where(_OF_QUEUE)
_COUNT_OF_GROUP = select(func.count()).select_from(progress).where(_OF_GROUP)
_QUEUES_IN_TOPIC = (
    select(progress.c.queue_id)
    .join(STORED, STORED.c.queue_id == progress.c.queue_id)
    .where(_OF_GROUP, STORED.c.topic_id == bindparam("of_topic"))
)
_ALL_RESETS = select(func.coalesce(func.sum(progress.c.resets), 0)).where(_OF_GROUP)
_OFFSETS = rows_parameter("offsets", "group_id", "queue_id", "next_offset", "resets")
_BEGIN = insert(progress).from_select([each.name for each in _OFFSETS.c], select(_OFFSETS))
_consuming = (
    select(CONSUMED.c.group_id).where(CONSUMED.c.topic_id == bindparam("of_topic")).distinct().subquery("consuming")
)
_begun = select(progress.c.queue_id).where(
    progress.c.group_id == _consuming.c.group_id, progress.c.queue_id == STORED.c.queue_id
)
_BEGIN_IN_NEW_QUEUES = insert(progress).from_select(
    ["group_id", "queue_id", "next_offset"],
    select(_consuming.c.group_id, STORED.c.queue_id, STORED.c.min_offset)
    .join(STORED, STORED.c.topic_id == bindparam("of_topic"))
    .where(~_begun.exists()),
)
_MOVE_ON = PerDialect(
    lambda dialect: Statement(
        update(progress).where(is_locked(dialect, progress, **_HERE)).values(next_offset=bindparam("reached"))
    )
)
_GROWN = rows_parameter("grown", "group_id", "queue_id", "next_offset")
_GROW = PerDialect(
    lambda dialect: (
        update(progress)
        .where(
            are_newest(dialect, progress, _GROWN, "group_id", "queue_id"), progress.c.next_offset < _GROWN.c.next_offset
        )
        .values(next_offset=_GROWN.c.next_offset)
    )
)
_MORE_RESETS = progress.c.resets + bindparam("more_resets", type_=Integer)
_SKIP_TO = update(progress).where(*_IS_HERE).values(next_offset=bindparam("to_offset"), resets=_MORE_RESETS)
_RESET = (
    update(progress)
    .where(*_IS_HERE)
    .values(next_offset=bindparam("to_offset"), resets=progress.c.resets + 1, start_offset=0)
)
_MOVE_START = update(progress).where(is_newest(progress, **_HERE)).values(start_offset=bindparam("start_offset"))
_QUEUES = rows_parameter("queues", "queue_id")
_END = delete(progress).where(_OF_GROUP, progress.c.queue_id.in_(select(_QUEUES.c.queue_id)))
_FREE_OF_GROUP = select(progress.c.queue_id).where(_OF_GROUP).with_for_update(skip_locked=True).correlate(None)
_FORGET_GROUP = delete(progress).where(_OF_GROUP, progress.c.queue_id.in_(_FREE_OF_GROUP))
_FREE_OF_QUEUE = _GROUPS_OF_QUEUE.with_for_update(skip_locked=True).correlate(None)
_FORGET_QUEUE = delete(progress).where(_OF_QUEUE, progress.c.group_id.in_(_FREE_OF_QUEUE))
