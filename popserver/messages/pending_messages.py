"""Pending messages: stored, but in no queue yet. Delayed ones wait until they are due, half messages for a decision.

A transaction that locks a pending message has locked no delivery and waits for no queue's counter. Statements that
choose messages skip those that another transaction has locked; statements that name messages wait for them.

On Postgres a user's open transaction keeps the index entries of all messages that were pending since it began. So
messages are found by their ids, with the topic in an expression that no index has, and searches by time begin where the
last one ended. Each kind has an index by time, so undecided half messages do not delay messages that are due.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Executable,
    FromClause,
    Select,
    and_,
    any_,
    bindparam,
    case,
    cast,
    delete,
    func,
    literal_column,
    select,
    true,
    update,
)
from sqlalchemy.types import UserDefinedType

from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.newest import are_newest, joined, unindexed
from popserver.database.rows import RowStatement, encode_column, encode_rows, rows_parameter
from popserver.database.schema import IS_DELAYED, IS_HALF, IS_HALF_OF_CLIENT, is_half, pending
from popserver.engine.transaction import STEP_ROWS_MAX, in_steps
from popserver.engine.upkeep import remove_step, sooner
from popserver.model.topic import MessageType


class PendingRow(NamedTuple):
    """A pending message without its body, of which `size` is the length."""

    pending_id: int
    topic_id: int
    message_id: bytes
    kind: str
    due_at_ms: int
    transaction_id: str | None
    checks: int
    enqueued: int
    tag: str | None
    keys: str | None
    message_group: str | None
    priority: int | None
    message_type: str
    stored_at_ms: int
    deliver_at_ms: int | None
    client_id: str
    size: int


def store(conn: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Store messages. The rows have all columns but the id, in order; those from `tag` on are `stored.content`."""
    dialect_of(conn).insert(conn, pending, rows)


def lock(conn: Connection, topic_id: int, message_ids: Collection[bytes]) -> dict[bytes, list[PendingRow]]:
    """Lock and return the pending rows of these messages, by id.

    One id may have two rows: one was sent, the other was enqueued by a user's own transaction.
    """
    found: dict[bytes, list[PendingRow]] = {}
    for ids in in_steps(sorted(message_ids)):
        for row in _LOCK.rows(conn, {"topic_id": topic_id, "ids": ids}):
            found.setdefault(bytes(row.message_id), []).append(row)
    return found


def named(conn: Connection, topic_id: int, message_ids: Sequence[bytes]) -> list[PendingRow]:
    """The pending rows of these messages."""
    return [row for ids in in_steps(message_ids) for row in _NAMED.rows(conn, {"topic_id": topic_id, "ids": ids})]


def properties_of(conn: Connection, pending_ids: Iterable[int]) -> dict[int, str]:
    """The properties of these messages as JSON, by pending id, without messages that have none."""
    rows = conn.execute(_PROPERTIES, {"ids": encode_column(pending_ids)})
    return {row.pending_id: row.properties for row in rows}


def remove(conn: Connection, pending_ids: Iterable[int]) -> None:
    """Remove messages that this transaction has locked."""
    ids = [*pending_ids]
    if ids:
        conn.execute(_REMOVE.of(conn), {"ids": encode_column(ids)})


def due(conn: Connection, from_ms: int, now_ms: int) -> list[PendingRow]:
    """Lock and return a step of the delayed messages that are due between these times, the earliest first."""
    return _DUE.rows(conn, {"from_ms": from_ms, "now_ms": now_ms, "limit": STEP_ROWS_MAX})


def is_any_due_at_once(conn: Connection) -> bool:
    """Whether users' own transactions have stored messages without a time, which are due at 0."""
    return conn.execute(_DUE_AT_ONCE).first() is not None


def first_due_ms(conn: Connection) -> int | None:
    """When the earliest delayed message is due."""
    return conn.execute(_FIRST_DUE).scalar()


def next_due(conn: Connection, after_ms: int) -> tuple[int, int] | None:
    """When the first delayed message is due after this time, and its topic id."""
    row = conn.execute(_NEXT_DUE, {"after_ms": after_ms}).first()
    return None if row is None else (row.due_at_ms, row.topic_id)


def first_missing(
    conn: Connection, last_ids: Mapping[tuple[int, str], int], pending_ids: Iterable[int]
) -> dict[tuple[int, str], int]:
    """By topic id and message group: the first message before the last one (`last_ids`) that `pending_ids` lacks."""
    groups = [(topic_id, last_id, name) for (topic_id, name), last_id in last_ids.items()]
    rows = conn.execute(_FIRST_MISSING, {"groups": encode_rows(groups), "ids": encode_column(pending_ids)})
    return {(row.topic_id, row.message_group): row.pending_id for row in rows}


def as_messages(
    dialect: Dialect, entering: FromClause, names: Sequence[str], becomes: Mapping[str, ColumnElement[Any]]
) -> Select[Any]:
    """The pending messages `entering` (`pending_id`), with the columns `names` of messages in queues. This transaction
    has locked them. `becomes`: the columns that a message gets with its offset."""
    found, row = joined(dialect, entering, pending, "pending_id")
    # A committed half is an ordinary message (protocol 8.1).
    message_type = case((is_half(row), MessageType.NORMAL.value), else_=row.c.message_type)
    changed = {"message_type": message_type, **becomes}
    return select(*(changed[name] if name in changed else row.c[name] for name in names)).select_from(found)


def due_checks(conn: Connection, from_ms: Mapping[int, int], now_ms: int, limit: int) -> list[PendingRow]:
    """Lock and return half messages of these topics whose check is due, from the topic's time on."""
    names = {"topics": encode_rows(sorted(from_ms.items())), "now_ms": now_ms, "limit": limit}
    return _DUE_CHECKS.of(conn).rows(conn, names)


def next_checks(conn: Connection, from_ms: Mapping[int, int]) -> dict[int, int | None]:
    """When the next check of each topic is due, from the topic's time on; None without half messages."""
    rows = conn.execute(_NEXT_CHECKS, {"topics": encode_rows(sorted(from_ms.items()))})
    return {row.topic_id: row.due_ms for row in rows}


def count_check(conn: Connection, pending_ids: Iterable[int], next_ms: int) -> None:
    """Count a check of these half messages; their next check is due at `next_ms`."""
    conn.execute(_COUNT, {"ids": encode_column(pending_ids), "at_ms": next_ms})


def uncount_check(conn: Connection, pending_ids: Iterable[int], next_ms: int) -> None:
    """Do not count the last check of these half messages; it is due again at `next_ms`."""
    conn.execute(_UNCOUNT, {"ids": encode_column(pending_ids), "at_ms": next_ms})


def topics_of_sender(conn: Connection, client_id: str) -> set[int]:
    """The topics in which the client has left half messages undecided."""
    return set(conn.execute(_OF_SENDER, {"of_client": client_id}).scalars())


def forget_topic(conn: Connection, topic_id: int) -> int:
    """Remove a step of the pending messages of a deleted topic; returns how many."""
    return remove_step(conn, pending.c.pending_id, pending.c.topic_id == topic_id)


def turn_back(conn: Connection, now_ms: int, by_ms: int) -> None:
    """After the server time has gone back by `by_ms`, to `now_ms`: checks keep their remaining time."""
    conn.execute(_TURN_BACK, {"now_ms": now_ms, "by_ms": by_ms})


# The columns of a `PendingRow`.
PENDING_COLUMNS = [*(pending.c[name] for name in PendingRow._fields[:-1]), func.length(pending.c.body).label("size")]
_OF_IDS = (
    unindexed(pending.c.topic_id) == bindparam("topic_id"),
    pending.c.message_id.in_(bindparam("ids", expanding=True)),
)
_LOCK = RowStatement(
    PendingRow, select(*PENDING_COLUMNS).where(*_OF_IDS).order_by(unindexed(pending.c.pending_id)).with_for_update()
)
_NAMED = RowStatement(PendingRow, select(*PENDING_COLUMNS).where(*_OF_IDS))
_one: Select[Any] = select(literal_column("1")).limit(literal_column("1"))
# 1 if any message of the topic `of_topic` is pending, NULL if none is.
ANY_OF_TOPIC = _one.where(pending.c.topic_id == bindparam("of_topic")).scalar_subquery()


class _Ids(UserDefinedType[Sequence[bytes]]):
    """An array that the driver converts, and SQLAlchemy does not (`database.statement`)."""

    cache_ok = True

    def get_col_spec(self, **_options: Any) -> str:
        return "BYTEA[]"


# The same for the messages with the ids `ids`; only on Postgres. No index fits the topic's condition: by the index of
# the topic Postgres would read the entries of all messages that were pending. The list is in a subquery, so
# that Postgres does not see how short it is: it would plan each send anew, which takes longer than the statement.
ANY_OF_IDS = _one.where(
    pending.c.message_id == any_(cast(select(bindparam("ids", type_=_Ids()).label("ids")).scalar_subquery(), _Ids())),
    unindexed(pending.c.topic_id) == bindparam("of_topic"),
).scalar_subquery()
_IDS = rows_parameter("ids", "pending_id")
# The topics and the message ids of the pending messages `ids`.
PENDING_BY_ID = (
    select(pending.c.pending_id, pending.c.topic_id, pending.c.message_id)
    .join(_IDS, _IDS.c.pending_id == pending.c.pending_id)
    .subquery("pending_by_id")
)
_HAS_ID = pending.c.pending_id.in_(select(_IDS.c.pending_id))
_PROPERTIES = select(pending.c.pending_id, pending.c.properties).where(_HAS_ID, pending.c.properties.is_not(None))


def _remove(dialect: Dialect) -> Executable:
    if dialect.has_other_writers:
        return delete(pending).where(are_newest(dialect, pending, _IDS, "pending_id"))
    return delete(pending).where(_HAS_ID)  # SQLite has no DELETE with a join


_REMOVE = PerDialect(_remove)
_DUE = RowStatement(
    PendingRow,
    select(*PENDING_COLUMNS)
    .where(IS_DELAYED, pending.c.due_at_ms.between(bindparam("from_ms"), bindparam("now_ms")))
    .order_by(pending.c.due_at_ms, pending.c.pending_id)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True),
)
_DUE_AT_ONCE = _one.where(IS_DELAYED, pending.c.due_at_ms == literal_column("0"))
_FIRST_DUE = select(pending.c.due_at_ms).where(IS_DELAYED).order_by(pending.c.due_at_ms).limit(literal_column("1"))
_NEXT_DUE = _FIRST_DUE.add_columns(pending.c.topic_id).where(pending.c.due_at_ms > bindparam("after_ms"))
_GROUPS = rows_parameter("groups", "topic_id", "last_id", text=("message_group",))
_FIRST_MISSING = (
    select(_GROUPS.c.topic_id, _GROUPS.c.message_group, func.min(pending.c.pending_id).label("pending_id"))
    .join(
        pending,
        and_(
            pending.c.topic_id == _GROUPS.c.topic_id,
            pending.c.message_group == _GROUPS.c.message_group,
            pending.c.pending_id < _GROUPS.c.last_id,
        ),
    )
    .where(pending.c.pending_id.not_in(select(_IDS.c.pending_id)))
    .group_by(_GROUPS.c.topic_id, _GROUPS.c.message_group)
)
_TOPICS = rows_parameter("topics", "topic_id", "from_ms")


def _due_checks(dialect: Dialect) -> RowStatement[PendingRow]:
    limit: BindParameter[int] = bindparam("limit")
    if not dialect.has_other_writers:
        of_topics = pending.c.topic_id.in_(select(_TOPICS.c.topic_id)), pending.c.due_at_ms <= bindparam("now_ms")
        query = select(*PENDING_COLUMNS).where(IS_HALF, *of_topics).order_by(pending.c.topic_id, pending.c.due_at_ms)
        return RowStatement(PendingRow, query.limit(limit))
    # One topic after the other, each from its lower time bound: otherwise Postgres might read all entries of the index,
    # also the old ones.
    of_topic = pending.c.topic_id == _TOPICS.c.topic_id
    times = pending.c.due_at_ms.between(_TOPICS.c.from_ms, bindparam("now_ms"))
    found = select(*PENDING_COLUMNS).where(IS_HALF, of_topic, times).order_by(pending.c.due_at_ms)
    first = found.limit(limit).with_for_update(skip_locked=True).correlate(_TOPICS).lateral("due")
    query = select(*(first.c[name] for name in PendingRow._fields)).select_from(_TOPICS.join(first, true()))
    return RowStatement(PendingRow, query.order_by(first.c.topic_id, first.c.due_at_ms).limit(limit))


_DUE_CHECKS = PerDialect(_due_checks)
_EARLIEST = (
    select(pending.c.due_at_ms)
    .where(IS_HALF, pending.c.topic_id == _TOPICS.c.topic_id, pending.c.due_at_ms >= _TOPICS.c.from_ms)
    .order_by(pending.c.due_at_ms)
    .limit(literal_column("1"))
)
_NEXT_CHECKS = select(_TOPICS.c.topic_id, _EARLIEST.scalar_subquery().label("due_ms"))
_COUNT = update(pending).where(_HAS_ID).values(checks=pending.c.checks + 1, due_at_ms=bindparam("at_ms"))
_UNCOUNT = update(pending).where(_HAS_ID).values(checks=pending.c.checks - 1, due_at_ms=bindparam("at_ms"))
_OF_SENDER = (
    select(pending.c.topic_id).where(IS_HALF_OF_CLIENT, pending.c.client_id == bindparam("of_client")).distinct()
)
_TURN_BACK = sooner(pending.c.due_at_ms, IS_HALF)
