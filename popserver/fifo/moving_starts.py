"""Advances the start offsets of a consumer group's queues (`fifo.start_offsets`).

Only on Postgres, at most every 2 s, by a receive that has locked the progress.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, delete, func, insert, literal_column, select, union_all, update

from popserver.catalog import progress
from popserver.catalog.progress import QueueToScan
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.rows import RowStatement, encode_column, encode_rows, rows_parameter
from popserver.database.schema import message_group_start as group_start
from popserver.engine.transaction import Transaction
from popserver.engine.upkeep import remove_step
from popserver.fifo import positions, runs
from popserver.fifo.runs import any_of_run
from popserver.fifo.start_offsets import own_start
from popserver.model.topic import OFFSET_BITS

# Until the next advance, each search also reads the index entries of what has ended since the last one.
ADVANCE_INTERVAL_MS = 2_000
# A message group that is unfinished so long after the scan has passed it gets a start of its own.
SLOW_AFTER_MS = 10_000
SLOW_MAX = 32  # message groups of a queue with a start of their own; each advance reads all of them
QUEUES_MAX = 10_000  # whose last advance is remembered; with more, all are forgotten


class _LastAdvance(NamedTuple):
    """When the starts of a queue were advanced last; and the scan's offset at `marked_ms`, and at the mark before."""

    at_ms: int
    marked_ms: int
    scan_at_mark: int
    scan_at_mark_before: int


class _LastAdvances:
    """The last advances, by consumer group and queue."""

    def __init__(self) -> None:
        self.last: dict[tuple[int, int], _LastAdvance] = {}


class _OwnStartRow(NamedTuple):
    """A message group with a start of its own, and its first unfinished message; None if all have ended."""

    message_group: str
    start_offset: int
    first_offset: int | None


class _FirstUnfinishedRow(NamedTuple):
    """The first unfinished message of all message groups without a start of their own: the queue's start stops here."""

    first_offset: int
    message_group: str


def advance(tx: Transaction, topic_id: int, queues: Sequence[QueueToScan]) -> None:
    """Advance the start offsets of these queues. Their progress is locked, and nothing was granted since then."""
    advances = tx.remembered(_LastAdvances).last
    for queue in queues:
        never = _LastAdvance(tx.now_ms - ADVANCE_INTERVAL_MS, tx.now_ms, 0, 0)
        last = advances.get((queue.group_id, queue.queue_id), never)
        if 0 <= tx.now_ms - last.at_ms < ADVANCE_INTERVAL_MS:
            continue
        if len(advances) >= QUEUES_MAX:
            advances.clear()
        current = last._replace(at_ms=tx.now_ms)
        if not 0 <= tx.now_ms - last.marked_ms < SLOW_AFTER_MS:
            current = _LastAdvance(tx.now_ms, tx.now_ms, queue.next_offset, last.scan_at_mark)
        advances[queue.group_id, queue.queue_id] = current
        _advance(tx, topic_id, queue, current.scan_at_mark_before)


def end_all(conn: Connection, group_id: int, queue_id: int) -> None:
    """Remove the starts of all message groups of the consumer group in the queue."""
    conn.execute(_END_ALL, {"for_group": group_id, "for_queue": queue_id})


def forget_group(conn: Connection, group_id: int) -> int:
    """Remove a step of the starts of a deleted group; returns how many."""
    return remove_step(conn, group_start.c.message_group, group_start.c.group_id == group_id)


def forget_queue(conn: Connection, queue_id: int) -> int:
    """Remove a step of the starts in a queue of a deleted topic; returns how many."""
    return remove_step(conn, group_start.c.message_group, group_start.c.queue_id == queue_id)


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
    """Advance the message groups' own starts, and remove those that the queue's start has passed. Returns how many
    stay."""
    starts = _OWN_STARTS.of(tx.conn).rows(tx.conn, names)
    ended = [each for each in starts if each.first_offset is None or each.first_offset >= queue.start_offset]
    left = [each for each in starts if each not in ended]
    if ended:
        tx.conn.execute(_END_OWN, names | {"names": encode_column(each.message_group for each in ended)})
    moved = [(each.first_offset, each.message_group) for each in left if each.first_offset != each.start_offset]
    if moved:
        tx.conn.execute(_MOVE_OWN, names | {"moved": encode_rows(moved)})
    return len(left)


_GROUP_ID, _QUEUE_ID = (
    bindparam("for_group", type_=group_start.c.group_id.type),
    bindparam("for_queue", type_=group_start.c.queue_id.type),
)
_OF_QUEUE = group_start.c.group_id == _GROUP_ID, group_start.c.queue_id == _QUEUE_ID


def _own_starts(dialect: Dialect) -> RowStatement[_OwnStartRow]:
    first = any_of_run(
        dialect,
        group_id=_GROUP_ID,
        topic_id=bindparam("for_topic"),
        message_group=group_start.c.message_group,
        from_key=group_start.c.start_offset + bindparam("queue_key"),
    )
    # LEAST ignores NULL.
    first_offset = func.least(first - bindparam("queue_key"), positions.offset_of_position(group_start))
    columns = group_start.c.message_group, group_start.c.start_offset, first_offset.label("first_offset")
    return RowStatement(_OwnStartRow, select(*columns).where(*_OF_QUEUE))


_OWN_STARTS = PerDialect(_own_starts)
_NAMES = rows_parameter("names", text=("message_group",))
_END_ALL = delete(group_start).where(*_OF_QUEUE)
_END_OWN = delete(group_start).where(*_OF_QUEUE, group_start.c.message_group.in_(select(_NAMES.c.message_group)))
_MOVED = rows_parameter("moved", "first_offset", text=("message_group",))
_MOVE_OWN = (
    update(group_start)
    .where(*_OF_QUEUE, group_start.c.message_group == _MOVED.c.message_group)
    .values(start_offset=_MOVED.c.first_offset)
)
_INSERT_OWN = insert(group_start).values(
    group_id=_GROUP_ID, queue_id=_QUEUE_ID, message_group=bindparam("name"), start_offset=bindparam("first_offset")
)


def _first_without_own_start(found: Select[Any], name: Any) -> Select[Any]:
    """The first row whose message group has no start of its own."""
    one: Select[Any] = found.where(own_start(_GROUP_ID, _QUEUE_ID, name).is_(None)).limit(literal_column("1"))
    return select(one.subquery())


_FIRST_DELIVERY = runs.first_in_queue(_GROUP_ID, bindparam("queue_key"))
_FIRST_POSITION = positions.first_in_queue(_GROUP_ID, _QUEUE_ID)
_FIRST = RowStatement(
    _FirstUnfinishedRow,
    union_all(
        _first_without_own_start(_FIRST_DELIVERY, runs.MESSAGE_GROUP),
        _first_without_own_start(_FIRST_POSITION, positions.MESSAGE_GROUP),
    )
    .order_by("first_offset")
    .limit(literal_column("1")),
)
