"""Finds rows that keep messages from being delivered (`database.invariants`), and repairs them.

The transaction that repairs a row locks its progress and reads the row again. So a repair is safe while servers work,
and changes nothing if the row is sound now. A row that another transaction has locked is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import Connection

from popserver.catalog.groups import groups_by_id
from popserver.catalog.lookup import CATALOG_LOCK
from popserver.catalog.progress import GroupQueueKey, locks_of
from popserver.catalog.queues import queues_by_id
from popserver.catalog.topics import names_by_id
from popserver.database.dialect import dialect_of
from popserver.database.invariants.queries import (
    Moments,
    Stuck,
    StuckIn,
    StuckRow,
    first_page,
    found,
    next_page,
    statement,
)
from popserver.database.invariants.stuck import STUCK
from popserver.database.notifications import DUE, PENDING
from popserver.engine.clock import Times
from popserver.engine.meters import now_s
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out_each
from popserver.model.names import Resource
from popserver.model.topic import offset_of, queue_of

PAGE_ROWS = 500
READ_S = 0.02  # the duration of one scan, so that other reads can run in between
_OF = {source: [each for each in STUCK if each.source is source] for source in StuckIn}


class Broken(NamedTuple):
    """A row, and the invariant that it breaks."""

    stuck: Stuck
    row: StuckRow


class StuckNames(NamedTuple):
    """The names of a broken row for operators; None: it has none. `message_group` is empty without one."""

    group: Resource | None
    topic: Resource | None
    queue_number: int | None
    message_group: str
    offset: int | None


class ScanCursor(NamedTuple):
    """The cursor of a scan of the store: the index of the table, and its page (None: the first page)."""

    table: int
    page: dict[str, Any] | None


FIRST = ScanCursor(0, None)


@dataclass(frozen=True, slots=True)
class RepairRow(Request[bool]):
    """Repair a row. The result is false if the row is sound now, or if another transaction has locked it."""

    phase: ClassVar = Phase.REPAIR
    broken: Broken

    def locks(self) -> Iterable[Locks]:
        row = self.broken.row
        return (*locks_of([GroupQueueKey(row.group_id, row.queue_id)]), CATALOG_LOCK)


def broken_in_page(
    conn: Connection, source: StuckIn, page: dict[str, Any], moments: Moments, *, with_late: bool
) -> tuple[list[Broken], dict[str, Any] | None]:
    """The broken rows in a page of a table, and the next page. `with_late`: also rows that are late."""
    names = page | moments.names
    rows = [
        Broken(stuck, row)
        for stuck in _OF[source]
        if with_late or not stuck.is_late
        for row in found(conn, stuck.page(), names)
    ]
    return rows, next_page(conn, source, names)


def scan_on(
    conn: Connection, cursor: ScanCursor, moments: Moments, *, with_late: bool
) -> tuple[list[Broken], ScanCursor | None, float]:
    """The broken rows that a short scan finds from the cursor on, the next cursor, and the duration in seconds."""
    found: list[Broken] = []
    began_s = now_s()
    tables = list(StuckIn)
    while True:
        source = tables[cursor.table]
        page = first_page(source, PAGE_ROWS) if cursor.page is None else cursor.page
        rows, after = broken_in_page(conn, source, page, moments, with_late=with_late)
        found += rows
        cursor = ScanCursor(cursor.table + (after is None), after)
        took_s = now_s() - began_s
        if cursor.table == len(tables):
            return found, None, took_s
        if took_s >= READ_S:
            return found, cursor, took_s


def names_of(conn: Connection, rows: Sequence[Broken]) -> list[StuckNames]:
    """The names of each row for operators."""
    topics = names_by_id(conn, {each.row.topic_id for each in rows})
    groups = {key: each.group.name for key, each in groups_by_id(conn, {each.row.group_id for each in rows}).items()}
    queues = queues_by_id(conn, (each.row.queue_id for each in rows))
    numbers = {each.queue_id: each.number for each in queues.values()}
    return [
        StuckNames(
            groups.get(row.group_id),
            topics.get(row.topic_id),
            numbers.get(row.queue_id),
            row.message_group,
            offset_of(row.row_id) if row.row_id and stuck.source is not StuckIn.DELAYED else None,
        )
        for stuck, row in rows
    ]


def broken_around(
    conn: Connection, group_id: int, topic_id: int, message_key: int, message_group: str | None, times: Times
) -> Stuck | None:
    """The broken invariant that keeps a stored message from its group; None if there is none."""
    row = StuckRow(group_id, queue_of(message_key), topic_id, message_group or "", message_key)
    names = row._asdict() | Moments(times.now_ms, times.calendar_ms).names
    for each in STUCK:
        is_about_it = message_group is not None or each.source not in (StuckIn.POSITIONS, StuckIn.SUBSCRIPTIONS)
        is_about_it = is_about_it and each.source is not StuckIn.DELAYED
        if is_about_it and found(conn, each.of_message(in_order=message_group is not None), names):
            return each
    return None


def broken_delay(conn: Connection, pending_id: int, times: Times) -> Stuck | None:
    """The broken invariant that keeps a delayed message from its queue; None if there is none."""
    names = StuckRow(0, 0, 0, "", pending_id)._asdict() | Moments(times.now_ms, times.calendar_ms).names
    return next((each for each in _OF[StuckIn.DELAYED] if found(conn, each.one(), names)), None)


@carries_out_each(RepairRow)
def repair(tx: Transaction, request: RepairRow) -> bool:
    """Repair the row, if no other repair has done so. Rows are repaired one after the other."""
    stuck, row = request.broken
    moments = Moments(tx.now_ms, tx.calendar_ms).names
    if not _is_free(tx, stuck, row):
        return False
    # The row as it is now: it may have changed since it was found.
    for each in found(tx.conn, stuck.one(), row._asdict() | moments):
        for repair_text in stuck.repair:
            tx.conn.execute(statement(tx.conn, repair_text), each._asdict() | moments)
        if each.topic_id:
            tx.ready_topics.add(each.topic_id)
        tx.expect(DUE, tx.now_ms)
        tx.expect(PENDING, tx.calendar_ms)
        tx.signals |= {DUE, PENDING}
        return True
    return False


def _is_free(tx: Transaction, stuck: Stuck, row: StuckRow) -> bool:
    """Lock the row unless another transaction has locked it: a user's own transaction may keep a lock for hours."""
    if stuck.source not in (StuckIn.DELIVERIES, StuckIn.DELAYED) or not dialect_of(tx.conn).has_other_writers:
        return True
    table = stuck.source.value
    locked = f"SELECT 1 FROM {table.name} b WHERE {table.is_one} FOR UPDATE SKIP LOCKED"  # noqa: S608
    return tx.conn.execute(statement(tx.conn, locked), row._asdict()).first() is not None
