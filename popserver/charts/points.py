"""Keeper of the points of charts.

Counts are absolute, so it does no harm if two servers write the same point. Deliveries are added up: each server writes
its own ones. On Postgres one server writes at a time. The others do not wait for it, because it may be stopped; they
write a moment later. A step that begins takes the slot of an old one, whose values it replaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import BigInteger, ColumnElement, Connection, and_, bindparam, case, delete, literal, null, select, text

from popserver.charts.rules import LEVELS, ChartCounts, Delays, Level, Owner, Point
from popserver.database.dialect import Dialect, PerDialect, Rows, dialect_of
from popserver.database.rows import RowStatement, encode_column, encode_rows, rows_parameter
from popserver.database.schema import chart_point
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each, in_steps


@dataclass(frozen=True, slots=True)
class WritePoints(Request[bool]):
    """Write into the current step of each level: the counts of these groups and topics, and added deliveries."""

    phase: ClassVar = Phase.WRITE_POINTS
    at_ms: int
    counts: Mapping[Owner, ChartCounts]
    delays: Mapping[Owner, Delays]


@carries_out_each(WritePoints)
def write(tx: Transaction, request: WritePoints) -> bool:
    """False: another server is writing; nothing is written."""
    if not dialect_of(tx.conn).try_lock(tx.conn, _IF_FREE):
        return False
    counts: Rows = [(owner.owner_id, *values, owner.kind) for owner, values in sorted(request.counts.items())]
    delays: Rows = [(owner.owner_id, *values, owner.kind) for owner, values in sorted(request.delays.items())]
    for level in LEVELS:
        begin_ms = level.begin_ms(request.at_ms)
        names = {
            "step": level.step_s,
            "in_slot": level.slot(request.at_ms),
            "at": request.at_ms,
            "begin_ms": begin_ms,
            "end_ms": begin_ms + level.step_ms,
        }
        for step in in_steps(counts):
            tx.conn.execute(_WRITE_COUNTS.of(tx.conn), {**names, "points": encode_rows(step)})
        for step in in_steps(delays):
            tx.conn.execute(_ADD_DELAYS.of(tx.conn), {**names, "points": encode_rows(step)})
        if counts:
            tx.conn.execute(_FORGET, names)
    return True


def points(conn: Connection, owner: Owner, level: Level, now_ms: int) -> list[Point]:
    """The points of a chart up to now, the oldest first."""
    names = {
        "step": level.step_s,
        "slots": encode_column(range(level.size)),
        "of_kind": owner.kind.value,
        "of_owner": owner.owner_id,
        "after_ms": level.begin_ms(now_ms) - level.range_ms,
        "until_ms": now_ms + level.step_ms,  # another server's clock may be a little ahead
    }
    return _POINTS.rows(conn, names)


# The number is arbitrary, but all servers must use the same.
_IF_FREE = text("SELECT pg_try_advisory_xact_lock(482851946)")
_KEY = ("step_s", "slot", "kind", "owner_id")
# The kind is sorted before the id, as in the key of the table.
_COUNTS = rows_parameter("points", "owner_id", *ChartCounts._fields, text=("kind",))
_DELAYS = rows_parameter("points", "owner_id", *Delays._fields, text=("kind",))
_IN_STEP = and_(chart_point.c.at_ms >= bindparam("begin_ms"), chart_point.c.at_ms < bindparam("end_ms"))
_HIGHEST = ("ready", "inflight", "waiting_retry", "oldest_age_ms")


def _upsert(dialect: Dialect, values: Any, changed: Sequence[str]) -> Any:
    """An INSERT of the values of the parameter `points`, in the order of the key."""
    rows = select(
        bindparam("step", type_=BigInteger),
        bindparam("in_slot", type_=BigInteger),
        values.c.kind,
        values.c.owner_id,
        bindparam("at", type_=BigInteger),
        *(values.c[name] for name in changed),
        # Without a WHERE, SQLite takes ON CONFLICT for the condition of a join.
    ).where(values.c.owner_id.is_not(None))
    return dialect.upsert(chart_point).from_select([*_KEY, "at_ms", *changed], rows)


def _write_counts(dialect: Dialect) -> Any:
    new = _upsert(dialect, _COUNTS, ChartCounts._fields)
    changes: dict[str, Any] = {name: new.excluded[name] for name in ("at_ms", "appended", "done")}
    changes |= {name: _highest(chart_point.c[name], new.excluded[name]) for name in _HIGHEST}
    changes |= {name: case((_IN_STEP, chart_point.c[name]), else_=literal(0)) for name in Delays._fields}
    return new.on_conflict_do_update(index_elements=list(_KEY), set_=changes)


def _add_delays(dialect: Dialect) -> Any:
    new = _upsert(dialect, _DELAYS, Delays._fields)
    changes: dict[str, Any] = {"at_ms": case((_IN_STEP, chart_point.c.at_ms), else_=new.excluded.at_ms)}
    changes |= {name: case((_IN_STEP, chart_point.c[name]), else_=null()) for name in ChartCounts._fields}
    for name in ("delivered", "delay_ms"):
        changes[name] = case((_IN_STEP, chart_point.c[name]), else_=literal(0)) + new.excluded[name]
    changes["slow_ms"] = _highest(chart_point.c.slow_ms, new.excluded.slow_ms)
    return new.on_conflict_do_update(index_elements=list(_KEY), set_=changes)


def _highest(stored: ColumnElement[int], written: ColumnElement[int]) -> ColumnElement[int]:
    return case((and_(_IN_STEP, stored > written), stored), else_=written)


_WRITE_COUNTS = PerDialect(_write_counts)
_ADD_DELAYS = PerDialect(_add_delays)
# What an older step has left in the slot: points of groups and topics that are deleted, or that have no chart any more.
_FORGET = delete(chart_point).where(
    chart_point.c.step_s == bindparam("step"),
    chart_point.c.slot == bindparam("in_slot"),
    chart_point.c.at_ms < bindparam("begin_ms"),
)
_SLOTS = rows_parameter("slots", "slot")
_POINTS = RowStatement(
    Point,
    select(*(chart_point.c[name] for name in Point._fields))
    .where(
        chart_point.c.step_s == bindparam("step"),
        chart_point.c.slot.in_(select(_SLOTS.c.slot)),
        chart_point.c.kind == bindparam("of_kind"),
        chart_point.c.owner_id == bindparam("of_owner"),
        chart_point.c.at_ms >= bindparam("after_ms"),
        chart_point.c.at_ms < bindparam("until_ms"),
    )
    .order_by(chart_point.c.at_ms),
)
