"""What the server can change in the table `delivery`, and under which lock. Each function is one statement.

Two others change rows: a user's own transaction by `popmq_ack` (migrations/functions.sql), and `popmq repair`
(`database.invariants.stuck`, whose statements lock progress and rows first).

A row says that a message is INFLIGHT, waits for a retry, or is READY again in one consumer group; without a row it is
READY or COMMIT by the group's progress. Its key is the group and the message.

Each function says which of these locks protects its rows:

- progress: the caller has locked the group's progress in the queue (`catalog.progress.lock`). Whatever continues, ends
  or moves a message group needs it;
- row: a query of `holds`, `due`, `ready` or `delivered` has locked the row in this transaction;
- taken here: the statement locks free rows itself, if they are still as the caller believes, and skips the others. A
  user's own transaction may have locked these (docs/sql.md): the writer never waits for it.

On SQLite there is one writer, and all of this is true without locks.

Beside an open transaction Postgres keeps all versions of each row. So a row that this transaction has locked is found
by its newest version, and by its address (`database.newest`); finding it again by its key reads the old ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import Enum, unique
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Executable,
    FromClause,
    Select,
    and_,
    any_,
    bindparam,
    case,
    delete,
    distinct,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)

from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.newest import are_newest, is_locked, joined, matches_for_delete, newest
from popserver.database.rows import RowStatement, encode_rows, rows_as_json, rows_parameter
from popserver.database.schema import delivery, in_states, still_in
from popserver.database.statement import Statement
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction
from popserver.engine.upkeep import sooner
from popserver.fifo.positions import any_position
from popserver.fifo.runs import length_of_run
from popserver.fifo.start_offsets import start_key
from popserver.model.handles import NO_HOLD
from popserver.model.retry import Holder
from popserver.model.states import Event, State, shown_as, sources, target

# A row by its key, and the key of a hold.
Key = tuple[int, int]
HoldKey = tuple[int, int, int]
TOPICS_OF_RUNS_MAX = 2  # as many as an answer can name


@unique
class Ending(Enum):
    """Why a row is removed. The value: in which states that may happen."""

    COMMIT = sources(Event.ACK) | sources(Event.SETTLE)
    DEAD_LETTER = sources(Event.EXHAUST) & sources(Event.FORWARD_TO_DLQ)
    RETRY_TOPIC = sources(Event.BACKOFF_ELAPSED)


class NewDelivery(NamedTuple):
    """A new row: the columns that an insert writes, in the order of the table. Times are epoch ms."""

    group_id: int
    message_key: int
    topic_id: int
    state: str
    attempt: int
    hold_id: int
    visible_at_ms: int
    holder: str
    client_id: str
    message_group: str | None = None
    attempt_id: str | None = None


class DeliveryRow(NamedTuple):
    """A delivery. `visible_at_ms` is the end of a hold or of a retry interval, or since when it is READY."""

    group_id: int
    message_key: int
    topic_id: int
    state: str
    attempt: int
    hold_id: int
    visible_at_ms: int
    holder: str
    client_id: str
    message_group: str | None


class EndedRuns(NamedTuple):
    """How many of the deliveries are held; the total length of their runs, and the number of topics.

    `members` are those message groups that have a position, because messages of them wait; empty or null for none.
    `ended`: how many of the deliveries are removed.
    """

    held: int
    all_of_runs: int
    members: str | None
    topics: int
    first_topic: int
    last_topic: int
    ended: int

    def are_whole(self, count: int) -> bool:
        return self.held >= count and self.all_of_runs <= self.held and self.topics <= TOPICS_OF_RUNS_MAX


# New holds.


def add(tx: Transaction, rows: Sequence[NewDelivery]) -> None:
    """Rows of messages that have none yet. The caller makes sure of that: a receive by the lock of the progress, a
    redrive by that of the dead letter, and what is sent back by that of the message."""
    dialect_of(tx.conn).insert(tx.conn, delivery, rows)


def grant_again(tx: Transaction, holds: str) -> None:
    """READY → INFLIGHT. The values are those of `_GRANTS`. Lock: the progress for message groups, otherwise the row."""
    tx.conn.execute(_GRANT_AGAIN.of(tx.conn), {"holds": holds})


def take_back(tx: Transaction, holds: Iterable[HoldKey], holder: Holder, client_id: str, until_ms: int) -> set[int]:
    """Give a client that repeats its receive the holds that ended early because its answer was lost.

    Lock: taken here, also in message groups, because the state stays. Returns the messages whose rows were free.
    """
    names = {
        "grants": encode_rows(list(holds)),
        "as_holder": holder.value,
        "by_client": client_id,
        "until_ms": until_ms,
    }
    return set(tx.conn.execute(_TAKE_BACK, names).scalars())


# What consumers do with their holds.


def renew(tx: Transaction, holds: Iterable[tuple[int, int, int, int]], until_ms: int) -> None:
    """Restart holds: group, message, hold id, the next hold id. Lock: the row."""
    tx.conn.execute(_RENEW, {"holds": encode_rows(list(holds)), "until_ms": until_ms})


def change(
    tx: Transaction, hold: HoldKey, *, state: State, attempt: int, uncounted: int, successor: int, until_ms: int
) -> None:
    """Change a hold. `successor` is the next hold id; `uncounted` is added to the row's number. Lock: the row, and of
    message groups the progress."""
    names = {"for_group": hold[0], "for_key": hold[1], "for_hold": hold[2], "now_ms": tx.now_ms}
    to = {"to_state": state.value, "to_attempt": attempt, "uncounted": uncounted}
    _CHANGE.of(tx.conn).execute(tx.conn, {**names, **to, "successor": successor, "until_ms": until_ms})


def commit(tx: Transaction, group_id: int, holds: Sequence[tuple[int, int]]) -> int:
    """INFLIGHT → COMMIT for current holds outside of message groups (message, hold id). Lock: taken here.

    Returns how many were committed. Without RETURNING: SQLite's driver releases the interpreter lock for each row.
    """
    names = {"for_group": group_id, "holds": encode_rows(holds), "now_ms": tx.now_ms}
    count = (_COMMIT_BY_ADDRESS if tx.has_other_writers else _COMMIT_BY_KEY).execute(tx.conn, names).rowcount
    tx.has_written |= count > 0
    return count


def commit_returning(tx: Transaction, group_id: int, holds: Sequence[tuple[int, int]]) -> list[DeliveryRow]:
    """The same, with the rows that were committed."""
    names = {"for_group": group_id, "holds": encode_rows(holds), "now_ms": tx.now_ms}
    return (_COMMITTED_BY_ADDRESS if tx.has_other_writers else _COMMITTED_BY_KEY).rows(tx.conn, names)


def commit_whole_runs(tx: Transaction, holds: Sequence[tuple[int, int, int, int]]) -> EndedRuns:
    """INFLIGHT → COMMIT for holds in message groups (group, message, hold id, queue), if they end their whole runs.

    If they do not, it changes nothing. Lock: the progress; rows are taken here. On Postgres one statement finds the
    runs and ends them: there, each statement costs more than its work. SQLite has no such statement.
    """
    names = {"holds": encode_rows(holds), "count": len(holds), "now_ms": tx.now_ms}
    row = _END_RUNS.of(tx.conn).first(tx.conn, names)
    assert row is not None, "an aggregate has one row"
    if tx.has_other_writers or not row.are_whole(len(holds)):
        return row
    remove(tx.conn, [each[:2] for each in holds])
    return row._replace(ended=row.held)


def mark_acked(tx: Transaction, keys: Iterable[Key]) -> None:
    """INFLIGHT → acked, while an earlier message of the message group is not. Lock: the progress and the row."""
    tx.conn.execute(_MARK_ACKED.of(tx.conn), {"keys": encode_rows(list(keys))})


# Holds whose consumer is gone.


def abandon_client(conn: Connection, client_id: str, until_ms: int) -> bool:
    """Let the push holds of a client end then. Lock: taken here. Returns whether all rows were free; if not, those
    that were free are changed."""
    names = {"of_client": client_id, "until_ms": until_ms}
    conn.execute(_ABANDON_CLIENT, names)
    return not dialect_of(conn).has_skipped(conn, _STILL_HELD, names)


def abandon(conn: Connection, holds: Iterable[HoldKey], until_ms: int) -> bool:
    """The same for these holds. Lock: taken here."""
    names = {"grants": encode_rows(list(holds)), "until_ms": until_ms}
    conn.execute(_ABANDON, names)
    return not dialect_of(conn).has_skipped(conn, _TOO_LONG, names)


def extend_client(tx: Transaction, client_id: str, until_ms: int) -> None:
    """Give a client that came back its abandoned holds that have not ended. Lock: taken here."""
    tx.conn.execute(_EXTEND, {"of_client": client_id, "until_ms": until_ms, "now_ms": tx.now_ms})


def give_back_unused(tx: Transaction, holds: Iterable[HoldKey]) -> None:
    """INFLIGHT → READY, and the attempt does not count. Lock: the row (`holds.lock_granted`), and of message groups
    the progress."""
    tx.conn.execute(_GIVE_BACK.of(tx.conn), {"grants": encode_rows(list(holds)), "now_ms": tx.now_ms})


# Time.


def end_time(tx: Transaction, event: Event, moves: Iterable[tuple[int, int, int]]) -> None:
    """RELEASE, RETRY or BACKOFF_ELAPSED for due rows: group, message, and when it is READY or due again.

    Lock: the row (`due.lock`), and of message groups the progress.
    """
    tx.conn.execute(_END_TIME[event].of(tx.conn), {"moves": encode_rows(list(moves))})


# Rows that go.


def end(tx: Transaction, ending: Ending, keys: Iterable[Key]) -> None:
    """Remove rows of messages that are COMMIT, a dead letter, or in the group's retry topic from now on.

    Lock: the progress for COMMIT, the row for the others, and of message groups the progress.
    """
    tx.conn.execute(_END[ending].of(tx.conn), {"keys": encode_rows(list(keys))})


def remove(conn: Connection, keys: Collection[Key]) -> None:
    """Remove rows in any state. Lock: the row; or, if no row may be held, the progress."""
    if keys:
        conn.execute(_REMOVE, {"keys": encode_rows(list(keys))})


def skip(conn: Connection, key: Key) -> DeliveryRow | None:
    """Remove the row of a message that is READY again or waits for a retry. Returns None if the message has another
    state now. Of a message group, the caller has locked the progress.
    """
    return _SKIP.first(conn, _one(key))


def end_hold(tx: Transaction, key: Key) -> DeliveryRow | None:
    """Remove the row of a held message; None if a user's own transaction has it. Lock: the progress; the row is taken
    here."""
    if tx.has_other_writers and tx.conn.execute(_LOCK_HELD, _one(key)).first() is None:
        return None
    return _END_HOLD.first(tx.conn, _one(key))


def remove_ready(conn: Connection, group_id: int, first: int, end: int) -> None:
    """Remove the READY rows with first <= key < end. `delivered.first_needed` has locked them."""
    conn.execute(_REMOVE_READY, {"for_group": group_id, "first": first, "end": end})


def turn_back(conn: Connection, now_ms: int, by_ms: int) -> None:
    """Make times that are ahead earlier, while no server runs; READY rows are READY now."""
    conn.execute(_TURN_BACK, {"now_ms": now_ms, "by_ms": by_ms})


def forget_group(conn: Connection, group_id: int) -> int | None:
    """Remove a step of a deleted group's rows. Returns how many; None if users' transactions have locked all others."""
    return _remove_step(conn, delivery.c.group_id == group_id)


def forget_topic(conn: Connection, topic_id: int) -> int | None:
    """The same for a deleted topic. No index has the topic, so the caller does this last, and once."""
    return _remove_step(conn, delivery.c.topic_id == topic_id)


def forget_messages(conn: Connection, first: int, end: int) -> int | None:
    """The same for removed messages: all groups' rows with first <= key < end."""
    return _remove_step(conn, delivery.c.message_key >= first, delivery.c.message_key < end)


def _remove_step(conn: Connection, *of_what_is_gone: ColumnElement[bool]) -> int | None:
    these = select(delivery.c.group_id, delivery.c.message_key).where(*of_what_is_gone).limit(STEP_ROWS_MAX)
    free: list[Any] = [tuple(row) for row in conn.execute(these.with_for_update(skip_locked=True))]
    if not free and conn.execute(these.limit(1)).first() is not None:
        return None
    remove(conn, free)
    return len(free)


def _one(key: Key) -> dict[str, int]:
    return {"for_group": key[0], "for_key": key[1]}


DELIVERY_COLUMNS = [delivery.c[name] for name in DeliveryRow._fields]
IS_CURRENT = (delivery.c.hold_id == bindparam("for_hold"), delivery.c.visible_at_ms > bindparam("now_ms"))
GRANTED = rows_parameter("grants", "group_id", "message_key", "hold_id")


def is_granted_now(row: FromClause) -> ColumnElement[bool]:
    """Whether a row is the current hold of one in GRANTED."""
    return and_(
        row.c.hold_id == GRANTED.c.hold_id,
        still_in(row.c.state, *sources(Event.GIVE_BACK)),
        row.c.visible_at_ms > bindparam("now_ms"),
    )


# Every row names the group: with a constant group SQLite would scan all deliveries of the group.
_GRANTS = rows_parameter(
    "holds",
    "group_id",
    "message_key",
    "hold_id",
    "ends_at_ms",
    text=("holder", "client_id", "message_group", "attempt_id"),
)
_GRANT_AGAIN = PerDialect(
    lambda dialect: (
        update(delivery)
        .where(
            are_newest(dialect, delivery, _GRANTS, "group_id", "message_key"),
            still_in(delivery.c.state, *sources(Event.RECEIVE)),
        )
        .values(
            state=target(Event.RECEIVE).value,
            attempt=delivery.c.attempt + 1,
            hold_id=_GRANTS.c.hold_id,
            visible_at_ms=_GRANTS.c.ends_at_ms,
            holder=_GRANTS.c.holder,
            client_id=_GRANTS.c.client_id,
            attempt_id=_GRANTS.c.attempt_id,
        )
    )
)


def _still_held(*conditions: ColumnElement[bool]) -> Select[Any]:
    """The keys of those holds in GRANTED that are current and fulfil the conditions."""
    named = (delivery.c[name] == GRANTED.c[name] for name in ("group_id", "message_key", "hold_id"))
    is_held = and_(*named, still_in(delivery.c.state, State.INFLIGHT), *conditions)
    return select(delivery.c.group_id, delivery.c.message_key).select_from(GRANTED).join(delivery, is_held)


# After a broken answer a simple consumer's hold keeps its kind, but has no client.
_free_again = _still_held(
    or_(delivery.c.holder == literal_column(f"'{Holder.ORPHAN}'"), delivery.c.client_id == literal_column("''")),
    delivery.c.visible_at_ms < bindparam("until_ms"),
).with_for_update(of=delivery, skip_locked=True)
_TAKE_BACK = (
    update(delivery)
    .where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_free_again))
    .values(
        holder=bindparam("as_holder"),
        client_id=bindparam("by_client"),
        visible_at_ms=bindparam("until_ms"),
    )
    .returning(delivery.c.message_key)
)
_RENEWED = rows_parameter("holds", "group_id", "message_key", "hold_id", "successor")
_RENEW = (
    update(delivery)
    .where(
        and_(
            delivery.c.group_id == _RENEWED.c.group_id,
            delivery.c.message_key == _RENEWED.c.message_key,
            delivery.c.hold_id == _RENEWED.c.hold_id,
        ),
        still_in(delivery.c.state, *sources(Event.CHANGE_INVISIBLE)),
    )
    .values(
        state=target(Event.CHANGE_INVISIBLE).value,
        hold_id=_RENEWED.c.successor,
        visible_at_ms=bindparam("until_ms"),
    )
)
_CHANGE = PerDialect(
    lambda dialect: Statement(
        update(delivery)
        .where(
            is_locked(dialect, delivery, group_id=bindparam("for_group"), message_key=bindparam("for_key")),
            *IS_CURRENT,
            still_in(delivery.c.state, *sources(Event.CHANGE_INVISIBLE)),
        )
        .values(
            state=bindparam("to_state"),
            attempt=bindparam("to_attempt"),
            uncounted=delivery.c.uncounted + bindparam("uncounted"),
            hold_id=bindparam("successor"),
            visible_at_ms=bindparam("until_ms"),
        )
    )
)
assert sources(Event.CHANGE_INVISIBLE) == sources(Event.RETRY) == sources(Event.GIVE_BACK), "one guard for the three"
_ACKED = rows_parameter("holds", "message_key", "hold_id")


def _is_to_commit(row: FromClause) -> list[ColumnElement[bool]]:
    return [
        in_states(row.c.state, *sources(Event.ACK)),
        row.c.visible_at_ms > bindparam("now_ms"),
        row.c.message_group.is_(None),
    ]


_commit_by_key = delete(delivery).where(
    delivery.c.group_id == bindparam("for_group"),
    tuple_(delivery.c.message_key, delivery.c.hold_id).in_(select(_ACKED.c.message_key, _ACKED.c.hold_id)),
    *_is_to_commit(delivery),
)
# For Postgres. By ctid, not by key: the rows are found already. For a receipt that is not current, ctid is NULL.
_held = delivery.alias("held")
_address = (
    newest(
        _held,
        case((and_(_held.c.hold_id == _ACKED.c.hold_id, *_is_to_commit(_held)), literal_column("held.ctid"))),
        group_id=bindparam("for_group"),
        message_key=_ACKED.c.message_key,
    )
    .with_for_update(skip_locked=True)
    .correlate(_ACKED)
    .scalar_subquery()
)
_commit_by_address = delete(delivery).where(
    literal_column("delivery.ctid") == any_(func.array(select(_address).select_from(_ACKED).scalar_subquery()))
)
_COMMIT_BY_KEY, _COMMIT_BY_ADDRESS = Statement(_commit_by_key), Statement(_commit_by_address)
_COMMITTED_BY_KEY = RowStatement(DeliveryRow, _commit_by_key.returning(*DELIVERY_COLUMNS))
_COMMITTED_BY_ADDRESS = RowStatement(DeliveryRow, _commit_by_address.returning(*DELIVERY_COLUMNS))
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
    address = [row.c.address] if dialect.has_other_writers else []
    return select(*columns, *address).select_from(found).cte("rows_of_receipts")


def _runs_of(dialect: Dialect, rows: CTE) -> Select[Any]:
    """What `EndedRuns` has, except for `ended`."""
    touched = select(rows.c.group_id, rows.c.queue_id, rows.c.topic_id, rows.c.message_group).distinct().cte("touched")
    run_length = length_of_run(dialect, touched, start_key(dialect, touched, touched.c.group_id))
    position = any_position(dialect, touched)
    held = select(func.coalesce(func.sum(case((rows.c.is_held, 1))), 0))
    return select(
        held.scalar_subquery().label("held"),
        func.sum(run_length).label("all_of_runs"),
        select(rows_as_json(*touched.c)).where(position.is_not(None)).scalar_subquery().label("members"),
        func.count(distinct(touched.c.topic_id)).label("topics"),
        func.min(touched.c.topic_id).label("first_topic"),
        func.max(touched.c.topic_id).label("last_topic"),
    )


def _end_runs(dialect: Dialect) -> RowStatement[EndedRuns]:
    if not dialect.has_other_writers:
        return RowStatement(
            EndedRuns, _runs_of(dialect, _rows_of_receipts(dialect)).add_columns(literal_column("0").label("ended"))
        )
    rows = _rows_of_receipts(dialect)
    runs = _runs_of(dialect, rows).cte("runs")
    is_all = runs.c.held == bindparam("count"), runs.c.all_of_runs == runs.c.held
    are_whole = select(and_(*is_all, runs.c.topics <= literal_column(f"{TOPICS_OF_RUNS_MAX}")))
    ended = (
        delete(delivery)
        .where(
            are_whole.scalar_subquery(),
            literal_column("delivery.ctid") == any_(func.array(select(rows.c.address).scalar_subquery())),
        )
        .returning(literal_column("1").label("is_ended"))
        .cte("ended")
    )
    return RowStatement(
        EndedRuns,
        select(*runs.c, select(func.count(ended.c.is_ended)).scalar_subquery().label("ended")).select_from(runs),
    )


_END_RUNS = PerDialect(_end_runs)
_KEYS = rows_parameter("keys", "group_id", "message_key")
_MARK_ACKED = PerDialect(
    lambda dialect: (
        update(delivery)
        .where(
            matches_for_delete(dialect, delivery, _KEYS, "group_id", "message_key"),
            still_in(delivery.c.state, *sources(Event.PROVISIONAL_ACK)),
        )
        .values(state=target(Event.PROVISIONAL_ACK).value)
    )
)
_ENDS_SOON = {"holder": Holder.ORPHAN.value, "visible_at_ms": bindparam("until_ms")}
_of_client = (
    delivery.c.client_id == bindparam("of_client"),
    delivery.c.holder == literal_column(f"'{Holder.PUSH}'"),
    still_in(delivery.c.state, State.INFLIGHT),
    delivery.c.visible_at_ms > bindparam("until_ms"),
)
_free = select(delivery.c.group_id, delivery.c.message_key).where(*_of_client).with_for_update(skip_locked=True)
_ABANDON_CLIENT = (
    update(delivery).where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_free)).values(**_ENDS_SOON)
)
_STILL_HELD = select(delivery.c.message_key).where(*_of_client).limit(1)
_TOO_LONG = _still_held(delivery.c.visible_at_ms > bindparam("until_ms"))
_too_long_free = _TOO_LONG.with_for_update(of=delivery, skip_locked=True)
_ABANDON = (
    update(delivery)
    .where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_too_long_free))
    .values(
        # A simple consumer may still prolong the messages it got before its answer broke off; that is no failure.
        holder=case(
            (delivery.c.holder == literal_column(f"'{Holder.SIMPLE}'"), Holder.SIMPLE.value), else_=Holder.ORPHAN.value
        ),
        visible_at_ms=bindparam("until_ms"),
        # Without a client, so that a client that comes back gets only the holds it knows of.
        client_id="",
    )
)
_abandoned = (
    select(delivery.c.group_id, delivery.c.message_key)
    .where(
        delivery.c.client_id == bindparam("of_client"),
        delivery.c.holder == literal_column(f"'{Holder.ORPHAN}'"),
        still_in(delivery.c.state, State.INFLIGHT),
        delivery.c.visible_at_ms > bindparam("now_ms"),
    )
    .with_for_update(skip_locked=True)
)
_EXTEND = (
    update(delivery)
    .where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_abandoned))
    .values(holder=Holder.PUSH.value, visible_at_ms=bindparam("until_ms"))
)
_GIVE_BACK = PerDialect(
    lambda dialect: (
        update(delivery)
        .where(are_newest(dialect, delivery, GRANTED, "group_id", "message_key"), is_granted_now(delivery))
        .values(
            state=target(Event.GIVE_BACK).value,
            attempt=delivery.c.attempt - 1,
            uncounted=delivery.c.uncounted + 1,
            # After this no receipt handle is valid, and neither is a repeated change of one.
            hold_id=NO_HOLD,
            visible_at_ms=bindparam("now_ms"),
        )
    )
)
_MOVES = rows_parameter("moves", "group_id", "message_key", "visible_at_ms")


def _end_time(event: Event, dialect: Dialect) -> Executable:
    is_moved = are_newest(dialect, delivery, _MOVES, "group_id", "message_key")
    to = {"state": target(event).value, "visible_at_ms": _MOVES.c.visible_at_ms}
    return update(delivery).where(is_moved, still_in(delivery.c.state, *sources(event))).values(**to)


_END_TIME = {
    event: PerDialect(partial(_end_time, event)) for event in (Event.RELEASE, Event.RETRY, Event.BACKOFF_ELAPSED)
}


def _end(states: Iterable[State], dialect: Dialect) -> Executable:
    is_named = matches_for_delete(dialect, delivery, _KEYS, "group_id", "message_key")
    return delete(delivery).where(is_named, still_in(delivery.c.state, *states))


_END = {ending: PerDialect(partial(_end, ending.value)) for ending in Ending}
_REMOVE = delete(delivery).where(
    tuple_(delivery.c.group_id, delivery.c.message_key).in_(select(_KEYS.c.group_id, _KEYS.c.message_key))
)
_ROW = delivery.c.group_id == bindparam("for_group"), delivery.c.message_key == bindparam("for_key")
_IS_HELD = in_states(delivery.c.state, State.INFLIGHT)
_SKIP = RowStatement(
    DeliveryRow,
    delete(delivery).where(*_ROW, in_states(delivery.c.state, *sources(Event.SKIP))).returning(*DELIVERY_COLUMNS),
)
_LOCK_HELD = select(delivery.c.message_key).where(*_ROW, _IS_HELD).with_for_update(skip_locked=True)
_END_HOLD = RowStatement(DeliveryRow, delete(delivery).where(*_ROW, _IS_HELD).returning(*DELIVERY_COLUMNS))
_REMOVE_READY = delete(delivery).where(
    delivery.c.group_id == bindparam("for_group"),
    delivery.c.message_key >= bindparam("first"),
    delivery.c.message_key < bindparam("end"),
    in_states(delivery.c.state, *shown_as(State.READY)),
)
_TURN_BACK = sooner(delivery.c.visible_at_ms, ready=in_states(delivery.c.state, *shown_as(State.READY)))
