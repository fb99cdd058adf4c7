"""Deliveries that are due: holds that have ended, and retries whose interval is over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, literal_column, select, union_all

from popserver.database.dialect import Dialect, PerDialect
from popserver.database.newest import joined
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import WITH_TIME, delivery, in_states
from popserver.delivery.deliveries import DELIVERY_COLUMNS, DeliveryRow
from popserver.engine.transaction import Transaction
from popserver.model.states import TIMED


def search(conn: Connection, from_ms: int, now_ms: int, limit: int) -> list[DeliveryRow]:
    """The first `limit` deliveries that are due between these times, and the next one that is due later. Locks nothing.

    Beside a user's open transaction each search first reads old entries of the index, so one search finds both.
    """
    return _SEEN.rows(conn, {"from_ms": from_ms, "now_ms": now_ms, "limit": limit})


def lock(tx: Transaction, rows: Iterable[DeliveryRow]) -> list[DeliveryRow]:
    """Lock and return those deliveries that are still due and that no other transaction has locked.

    For deliveries of message groups, the caller has locked the progress. Otherwise this lock would block the
    transaction that has the progress. An ack in the consumer's own transaction locks the delivery without the progress,
    so these deliveries need the row lock too.
    """
    seen = list(rows)
    if not seen or not tx.has_other_writers:
        return seen
    keys = encode_rows(sorted((row.group_id, row.message_key) for row in seen))
    return _STILL_DUE.of(tx.conn).rows(tx.conn, {"rows": keys, "now_ms": tx.now_ms})


def next_due_ms(conn: Connection, from_ms: int = 0) -> int | None:
    """When the first hold or retry interval ends, of those that end at `from_ms` or later."""
    return conn.execute(_NEXT_DUE, {"from_ms": from_ms}).scalar()


def overdue(conn: Connection, now_ms: int) -> tuple[int, int | None]:
    """How many deliveries are due and not ended yet, and when the first of them was due."""
    count, first_ms = conn.execute(_OVERDUE, {"now_ms": now_ms}).one()
    return count, first_ms


def is_acked_by_a_user(conn: Connection) -> bool:
    """Whether a user's own transaction has acked a message of a message group: it is due at 0 (docs/sql.md)."""
    return conn.execute(_ACKED_BY_USERS).first() is not None


_IN_ORDER_OF_TIME = select(*DELIVERY_COLUMNS).where(WITH_TIME).order_by(delivery.c.visible_at_ms)
_SEEN = RowStatement(
    DeliveryRow,
    union_all(
        select(
            _IN_ORDER_OF_TIME.where(delivery.c.visible_at_ms.between(bindparam("from_ms"), bindparam("now_ms")))
            .limit(bindparam("limit"))
            .subquery("due")
        ),
        select(
            _IN_ORDER_OF_TIME.where(delivery.c.visible_at_ms > bindparam("now_ms"))
            .limit(literal_column("1"))
            .subquery("later")
        ),
    ),
)
_ROWS = rows_parameter("rows", "group_id", "message_key")


def _still_due(dialect: Dialect) -> RowStatement[DeliveryRow]:
    found, row = joined(dialect, _ROWS, delivery, "group_id", "message_key", skips_locked=True)
    columns = [row.c[name] for name in DeliveryRow._fields]
    is_due = in_states(row.c.state, *TIMED), row.c.visible_at_ms <= bindparam("now_ms")
    return RowStatement(DeliveryRow, select(*columns).select_from(found).where(*is_due))


_STILL_DUE = PerDialect(_still_due)
# No min(): Postgres may read all rows for it. The order leaves only the index `delivery_due`.
_NEXT_DUE = (
    select(delivery.c.visible_at_ms)
    .where(WITH_TIME, delivery.c.visible_at_ms >= bindparam("from_ms"))
    .order_by(delivery.c.visible_at_ms)
    .limit(literal_column("1"))
)
_ACKED_BY_USERS: Select[Any] = (
    select(literal_column("1")).where(WITH_TIME, delivery.c.visible_at_ms == literal_column("0")).limit(1)
)
_OVERDUE = select(func.count(), func.min(delivery.c.visible_at_ms)).where(
    WITH_TIME, delivery.c.visible_at_ms <= bindparam("now_ms")
)
