"""Acks: INFLIGHT → COMMIT, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import (
    CTE,
    Select,
    and_,
    any_,
    bindparam,
    case,
    delete,
    distinct,
    func,
    literal_column,
    select,
    tuple_,
)

from popserver.database.dialect import Dialect, PerDialect
from popserver.database.newest import joined, newest
from popserver.database.rows import RowStatement, encode_rows, rows_as_json, rows_parameter
from popserver.database.schema import delivery, in_states
from popserver.database.statement import Statement
from popserver.delivery import message_groups
from popserver.delivery.history import record
from popserver.delivery.message_groups import advance_groups, by_member, runs_around
from popserver.delivery.start_offsets import any_position, is_in_run, order_of_run, start_key
from popserver.engine.transaction import STEP_ROWS_MAX, Locks, Outdated, Phase, Request, Transaction, carries_out
from popserver.model.errors import PopError
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.states import Event, sources
from popserver.model.topic import queue_of
from popserver.settling.refusals import HELD_COLUMNS, HeldRow, is_held, locks_in_order, moved, why_not


@dataclass(frozen=True, slots=True)
class Ack(Request[list[PopError | None]]):
    """Commit the messages of these receipts of one group."""

    phase: ClassVar = Phase.ACK
    group: Group
    receipts: Sequence[Receipt]

    def locks(self) -> Iterable[Locks]:
        return locks_in_order(self.receipts)


@dataclass(frozen=True, slots=True)
class PlainAck(Ack):
    """Receipts of messages that are in no message group: there is nothing to lock."""

    locks = Request.locks


@carries_out(Ack, PlainAck)
def ack(tx: Transaction, requests: Sequence[Ack]) -> list[list[PopError | None]]:
    """INFLIGHT → COMMIT. The answer has one entry per receipt: None, or the reason of its refusal.

    While an earlier message of the message group is not acked, an ack is provisional; its entry is None as well.
    """
    refused: dict[Receipt, PopError | None] = {}
    by_group = sorted(requests, key=lambda request: request.group.group_id)
    for _, several in groupby(by_group, key=lambda request: request.group.group_id):
        listed = list(several)
        for some in _steps(listed, in_order=False):
            refused |= _commit(tx, listed[0].group, some)
        for some in _steps(listed, in_order=True):
            refused |= _commit_in_order(tx, listed[0].group, some)
    return [[refused.get(each) for each in request.receipts] for request in requests]


def _steps(requests: Sequence[Ack], *, in_order: bool) -> Iterator[list[Receipt]]:
    """Split the receipts with (or without) a message group into steps, sorted by key.

    The receipts of one request stay in one step if they fit, so that whole runs of a message group end together.
    """
    steps: list[set[Receipt]] = [set()]
    for request in requests:
        some = {each for each in request.receipts if each.in_order is in_order}
        if len(steps[-1]) + len(some) > STEP_ROWS_MAX:
            steps.append(set())
        steps[-1] |= some
    for step in steps:
        receipts = sorted(step)
        for start in range(0, len(receipts), STEP_ROWS_MAX):
            yield receipts[start : start + STEP_ROWS_MAX]


def _commit(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> dict[Receipt, PopError | None]:
    """Commit what the receipts hold. Return the reason for each that could not be (None: it was committed before)."""
    holds = [(each.message_key, each.hold_id) for each in receipts]
    names = {"for_group": group.group_id, "holds": encode_rows(holds), "now_ms": tx.now_ms}
    is_kept = Event.ACK in group.history.kept
    # A client that came back may hold longer than its handle says: only the statement knows which of those it acked.
    if is_kept or any(each.ends_at_ms <= tx.now_ms for each in receipts):
        statement = _ACK_SKIPPING_RETURNING if tx.has_other_writers else _ACK_RETURNING
        rows = statement.rows(tx.conn, names)
        if is_kept:
            record(tx, group, Event.ACK, (moved(row) for row in rows))
        committed = {(row.message_key, row.hold_id) for row in rows}
        return {
            each: why_not(tx, group, each) for each in receipts if (each.message_key, each.hold_id) not in committed
        }
    # Without RETURNING: SQLite's driver releases the interpreter lock for each row that it fetches.
    count = (_PLAIN_ACK_SKIPPING if tx.has_other_writers else _PLAIN_ACK).execute(tx.conn, names).rowcount
    if count == len(receipts):
        return {}
    return {each: why_not(tx, group, each) for each in _left_over(tx, receipts, count)}


def _left_over(tx: Transaction, receipts: Sequence[Receipt], committed: int) -> Sequence[Receipt]:
    """The receipts whose outcome must be looked up: those whose rows still exist, or all if the counts differ."""
    present = set(tx.conn.execute(_PRESENT.of(tx.conn), {"keys": _keys_of(receipts)}).scalars())
    left = [each for each in receipts if each.message_key in present]
    return left if len(receipts) - len(left) == committed else receipts


def _keys_of(receipts: Sequence[Receipt]) -> str:
    return encode_rows([(each.group_id, each.message_key) for each in receipts])


def _commit_in_order(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> dict[Receipt, PopError | None]:
    """Commit receipts of message groups. Their progress rows are locked. An ack may open the whole message group."""
    if ack_whole_runs(tx, group, receipts):
        return {}
    free = _not_locked(tx, group, receipts)
    rows = runs_around(tx.conn, group.group_id, (each.message_key for each in receipts))
    held = {(row.message_key, row.hold_id) for row in rows if is_held(tx, row)}
    good = {each for each in free if (each.message_key, each.hold_id) in held}
    if good:
        acked = {each.message_key for each in good}
        runs = by_member(rows).items()
        touched = {member: run for member, run in runs if any(row.message_key in acked for row in run)}
        advance_groups(tx, group, touched, acked)
    return {each: why_not(tx, group, each) for each in receipts if each not in good}


def _not_locked(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> set[Receipt]:
    """The receipts whose rows no user's transaction has locked. The writer never waits for such a lock."""
    if not tx.has_other_writers:
        return set(receipts)
    free = set(tx.conn.execute(_FREE.of(tx.conn), {"keys": _keys_of(receipts)}).scalars())
    return {each for each in receipts if each.message_key in free}


_HOLDS = rows_parameter("holds", "message_key", "hold_id")
_ACK = delete(delivery).where(
    delivery.c.group_id == bindparam("for_group"),
    tuple_(delivery.c.message_key, delivery.c.hold_id).in_(select(_HOLDS.c.message_key, _HOLDS.c.hold_id)),
    in_states(delivery.c.state, *sources(Event.ACK)),
    delivery.c.visible_at_ms > bindparam("now_ms"),
    delivery.c.message_group.is_(None),
)
_each = delivery.alias("held")
_is_current = and_(
    _each.c.hold_id == _HOLDS.c.hold_id,
    in_states(_each.c.state, *sources(Event.ACK)),
    _each.c.visible_at_ms > bindparam("now_ms"),
    _each.c.message_group.is_(None),
)
# For each receipt the place of its row, or NULL.
_place = (
    newest(
        _each,
        case((_is_current, literal_column("held.ctid"))),
        group_id=bindparam("for_group"),
        message_key=_HOLDS.c.message_key,
    )
    .with_for_update(skip_locked=True)
    .correlate(_HOLDS)
    .scalar_subquery()
)
# Skips rows that a user's own transaction has locked, instead of waiting.
# The rows are deleted by ctid, not by key: they are found already, and finding them by key again may be slow.
_ACK_SKIPPING = delete(delivery).where(
    literal_column("delivery.ctid") == any_(func.array(select(_place).select_from(_HOLDS).scalar_subquery()))
)
_PLAIN_ACK, _PLAIN_ACK_SKIPPING = Statement(_ACK), Statement(_ACK_SKIPPING)
_ACK_RETURNING = RowStatement(HeldRow, _ACK.returning(*HELD_COLUMNS))
_ACK_SKIPPING_RETURNING = RowStatement(HeldRow, _ACK_SKIPPING.returning(*HELD_COLUMNS))
_KEYS = rows_parameter("keys", "group_id", "message_key")


def _present(dialect: Dialect, *, skips_locked: bool) -> Select[Any]:
    found, row = joined(dialect, _KEYS, delivery, "group_id", "message_key", skips_locked=skips_locked)
    return select(row.c.message_key).select_from(found)


_PRESENT = PerDialect(partial(_present, skips_locked=False))
_FREE = PerDialect(partial(_present, skips_locked=True))


# The fast path for acks that end whole runs, as nearly all acks in message groups do.
#
# If a receipt is not current, or a part of a run is left, it does nothing, and `delivery.message_groups` decides.


class _Runs(NamedTuple):
    """How many of the deliveries are held; the total length of their runs, and the number of topics.

    `members` are those message groups that have a row, because messages of them wait; empty or null for none. `ended`
    says how many of the deliveries the statement has removed.
    """

    held: int
    all_of_runs: int
    members: str | None
    topics: int
    first_topic: int
    last_topic: int
    ended: int


def ack_whole_runs(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> bool:
    """Commit the receipts if they end their whole runs. The caller has locked the places.

    Returns False and changes nothing if they do not, or if the group's history keeps a row for each ack.
    """
    if Event.ACK in group.history.kept:
        return False
    # Two receipts of one hold may name different end times. They count once, or one would count for another message.
    named = {(group.group_id, each.message_key, each.hold_id, queue_of(each.message_key)) for each in receipts}
    holds = encode_rows(sorted(named))
    row = _END_RUNS.of(tx.conn).first(tx.conn, {"holds": holds, "count": len(named), "now_ms": tx.now_ms})
    assert row is not None, "an aggregate has one row"
    if row.held < len(named) or row.all_of_runs > row.held or row.topics > 2:
        return False
    if tx.has_other_writers and row.ended < row.held:
        # A user's own transaction has changed a row after the statement began, and before it locked the row.
        raise Outdated
    if row.members not in (None, "[]"):
        message_groups.open_all(tx, group, row.members, {row.first_topic, row.last_topic})
    if not row.ended:
        tx.conn.execute(_END, {"holds": holds})
    return True


# The rows are found by their keys alone, and all other conditions are checked afterwards: Postgres's statistics of a
# table whose rows come and go are out of date, so it might start with another condition.
_RUN_HOLDS = rows_parameter("holds", "group_id", "message_key", "hold_id", "queue_id")


def _rows_of_receipts(dialect: Dialect) -> CTE:
    # Skips rows that a user's own transaction has locked, instead of waiting.
    found, row = joined(dialect, _RUN_HOLDS, delivery, "group_id", "message_key", skips_locked=True)
    is_held = and_(
        row.c.hold_id == _RUN_HOLDS.c.hold_id,
        in_states(row.c.state, *sources(Event.ACK)),
        row.c.visible_at_ms > bindparam("now_ms"),
        row.c.message_group.is_not(None),
    )
    columns = [row.c.group_id, _RUN_HOLDS.c.queue_id, row.c.topic_id, row.c.message_group, is_held.label("is_held")]
    place = [row.c.place] if dialect.has_other_writers else []
    return select(*columns, *place).select_from(found).cte("rows_of_receipts")


def _runs_of(dialect: Dialect, rows: CTE) -> Select[Any]:
    """What `_Runs` has, except for `ended`."""
    touched = select(rows.c.group_id, rows.c.queue_id, rows.c.topic_id, rows.c.message_group).distinct().cte("touched")
    each = delivery.alias("each_of_run")
    in_run = is_in_run(
        dialect,
        each,
        group_id=touched.c.group_id,
        topic_id=touched.c.topic_id,
        message_group=touched.c.message_group,
        from_key=start_key(dialect, touched, touched.c.group_id),
    )
    run = select(each.c.message_key).where(in_run).order_by(*order_of_run(each)).correlate(touched).subquery("run")
    run_length = select(func.count()).select_from(run).scalar_subquery()
    row_behind = any_position(dialect, touched)
    held = select(func.coalesce(func.sum(case((rows.c.is_held, 1), else_=0)), 0))
    return select(
        held.scalar_subquery().label("held"),
        func.sum(run_length).label("all_of_runs"),
        select(rows_as_json(*touched.c)).where(row_behind.is_not(None)).scalar_subquery().label("members"),
        func.count(distinct(touched.c.topic_id)).label("topics"),
        func.min(touched.c.topic_id).label("first_topic"),
        func.max(touched.c.topic_id).label("last_topic"),
    )


def _end_runs(dialect: Dialect) -> RowStatement[_Runs]:
    """Finds the runs. On Postgres it also ends them, if they are whole: there, each statement costs more than its work.
    SQLite has no such statement."""
    if not dialect.has_other_writers:
        return RowStatement(
            _Runs, _runs_of(dialect, _rows_of_receipts(dialect)).add_columns(literal_column("0").label("ended"))
        )
    rows = _rows_of_receipts(dialect)
    runs = _runs_of(dialect, rows).cte("runs")
    are_whole = select(
        and_(runs.c.held == bindparam("count"), runs.c.all_of_runs == runs.c.held, runs.c.topics <= literal_column("2"))
    )
    ended = (
        delete(delivery)
        .where(
            are_whole.scalar_subquery(),
            literal_column("delivery.ctid") == any_(func.array(select(rows.c.place).scalar_subquery())),
        )
        .returning(literal_column("1").label("is_ended"))
        .cte("ended")
    )
    return RowStatement(
        _Runs, select(*runs.c, select(func.count(ended.c.is_ended)).scalar_subquery().label("ended")).select_from(runs)
    )


_END_RUNS = PerDialect(_end_runs)
_END = delete(delivery).where(
    tuple_(delivery.c.group_id, delivery.c.message_key).in_(select(_RUN_HOLDS.c.group_id, _RUN_HOLDS.c.message_key))
)
