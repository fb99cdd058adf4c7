"""Moves the start offsets of a consumer group's queues on, see `fifo.start_offsets`.

On Postgres alone, now and then, by a receive that has locked the progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, literal_column, select, union_all, update

from popserver.catalog import progress
from popserver.catalog.progress import QueueToScan
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.rows import RowStatement, encode_column, encode_rows, rows_parameter
from popserver.database.schema import message_group_start as own
from popserver.engine.transaction import Transaction
from popserver.engine.upkeep import remove_step
from popserver.fifo import positions, runs
from popserver.fifo.runs import any_of_run
from popserver.fifo.start_offsets import own_start
from popserver.model.topic import OFFSET_BITS

# Until the next scan others read what ended since this one.
SCAN_INTERVAL_MS = 2_000
# A message group that is not done so long after the scan has passed it gets a start of its own.
SLOW_AFTER_MS = 10_000
SLOW_MAX = 32  # message groups of a queue with a start of their own; each scan reads each of them
QUEUES_MAX = 10_000  # beyond that all scans are forgotten


class _Scan(NamedTuple):
    """The last scan of a queue, and what receives had passed at `marked_ms`, and at the mark before it."""

    at_ms: int
    marked_ms: int
    marked: int
    marked_before: int


class _Scans:
    """The last scans, by consumer group and queue."""

    def __init__(self) -> None:
        self.last: dict[tuple[int, int], _Scan] = {}


class _OwnStart(NamedTuple):
    """A message group with a start of its own, and its first message that is not done; None if all are."""

    message_group: str
    start_offset: int
    first_offset: int | None


class _First(NamedTuple):
    """The first message that a queue's start may not pass. Message groups that have their own start do not count."""

    first_offset: int
    message_group: str


def advance(tx: Transaction, topic_id: int, queues: Sequence[QueueToScan]) -> None:
    """Move the start offsets of these queues on. Their progress is locked, and nothing was granted since."""
    scans = tx.remembered(_Scans).last
    for queue in queues:
        last = scans.get((queue.group_id, queue.queue_id), _Scan(tx.now_ms - SCAN_INTERVAL_MS, tx.now_ms, 0, 0))
        if 0 <= tx.now_ms - last.at_ms < SCAN_INTERVAL_MS:
            continue
        if len(scans) >= QUEUES_MAX:
            scans.clear()
        scan = last._replace(at_ms=tx.now_ms)
        if not 0 <= tx.now_ms - last.marked_ms < SLOW_AFTER_MS:
            scan = _Scan(tx.now_ms, tx.now_ms, queue.next_offset, last.marked)
        scans[queue.group_id, queue.queue_id] = scan
        _advance(tx, topic_id, queue, scan.marked_before)


def end_all(conn: Connection, group_id: int, queue_id: int) -> None:
    """Remove the starts of all message groups of the queue: the group was reset there."""
    conn.execute(_END_ALL, {"for_group": group_id, "for_queue": queue_id})


def forget_group(conn: Connection, group_id: int) -> int:
    """Remove a step of the starts of a deleted group; returns how many."""
    return remove_step(conn, own.c.message_group, own.c.group_id == group_id)


def forget_queue(conn: Connection, queue_id: int) -> int:
    """Remove a step of the starts in a queue of a deleted topic; returns how many."""
    return remove_step(conn, own.c.message_group, own.c.queue_id == queue_id)


def _advance(tx: Transaction, topic_id: int, queue: QueueToScan, slow_before: int) -> None:
    queue_key = queue.queue_id << OFFSET_BITS
    names = {"for_group": queue.group_id, "for_queue": queue.queue_id, "for_topic": topic_id, "queue_key": queue_key}
    room = SLOW_MAX - _move_own(tx, queue, names)
    names |= {"to_key": queue_key + queue.next_offset}
    start_offset = queue.start_offset
    while True:
        from_here = {"from_key": queue_key + start_offset, "from_offset": start_offset}
        first = _FIRST.first(tx.conn, names | from_here)
        start_offset = queue.next_offset if first is None else min(queue.next_offset, first.first_offset)
        if first is None or start_offset >= slow_before or not room:
            break
        tx.conn.execute(_INSERT_OWN, names | {"name": first.message_group, "first_offset": start_offset})
        room -= 1
    if start_offset > queue.start_offset:
        progress.move_start(tx.conn, queue.group_id, queue.queue_id, start_offset)


def _move_own(tx: Transaction, queue: QueueToScan, names: dict[str, Any]) -> int:
    """Move the starts of message groups on, and remove those that the queue's start covers. Returns how many stay."""
    starts = _OWN.of(tx.conn).rows(tx.conn, names)
    ended = [each for each in starts if each.first_offset is None or each.first_offset >= queue.start_offset]
    left = [each for each in starts if each not in ended]
    if ended:
        tx.conn.execute(_END_OWN, names | {"names": encode_column(each.message_group for each in ended)})
    moved = [(each.first_offset, each.message_group) for each in left if each.first_offset != each.start_offset]
    if moved:
        tx.conn.execute(_MOVE_OWN, names | {"moved": encode_rows(moved)})
    return len(left)


_GROUP_ID, _QUEUE_ID = (
    bindparam("for_group", type_=own.c.group_id.type),
    bindparam("for_queue", type_=own.c.queue_id.type),
)
_OWN_HERE = own.c.group_id == _GROUP_ID, own.c.queue_id == _QUEUE_ID


def _own(dialect: Dialect) -> RowStatement[_OwnStart]:
    first = any_of_run(
        dialect,
        group_id=_GROUP_ID,
        topic_id=bindparam("for_topic"),
        message_group=own.c.message_group,
        from_key=own.c.start_offset + bindparam("queue_key"),
    )
    # LEAST leaves NULL out.
    first_offset = func.least(first - bindparam("queue_key"), positions.offset_of_position(own)).label("first_offset")
    return RowStatement(_OwnStart, select(own.c.message_group, own.c.start_offset, first_offset).where(*_OWN_HERE))


_OWN = PerDialect(_own)
_NAMES = rows_parameter("names", text=("message_group",))
_END_ALL = delete(own).where(*_OWN_HERE)
_END_OWN = delete(own).where(*_OWN_HERE, own.c.message_group.in_(select(_NAMES.c.message_group)))
_MOVED = rows_parameter("moved", "first_offset", text=("message_group",))
_MOVE_OWN = (
    update(own)
    .where(*_OWN_HERE, own.c.message_group == _MOVED.c.message_group)
    .values(start_offset=_MOVED.c.first_offset)
)
_INSERT_OWN = insert(own).values(
    group_id=_GROUP_ID, queue_id=_QUEUE_ID, message_group=bindparam("name"), start_offset=bindparam("first_offset")
)


def _of_others(found: Select[Any], name: Any) -> Select[Any]:
    """Leaves out the message groups with a start of their own."""
    one: Select[Any] = found.where(own_start(_GROUP_ID, _QUEUE_ID, name).is_(None)).limit(literal_column("1"))
    return select(one.subquery())


_FIRST_DELIVERY = runs.first_in_queue(_GROUP_ID, bindparam("queue_key"))
_FIRST_POSITION = positions.first_in_queue(_GROUP_ID, _QUEUE_ID)
_FIRST = RowStatement(
    _First,
    union_all(_of_others(_FIRST_DELIVERY, runs.MESSAGE_GROUP), _of_others(_FIRST_POSITION, positions.MESSAGE_GROUP))
    .order_by("first_offset")
    .limit(literal_column("1")),
)
