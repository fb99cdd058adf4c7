"""Reads and locks deliveries: by message, by receipt, by client, and by attempt id.

A query that locks rows skips the rows that another transaction has locked. So the writer never waits for a user's
transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, func, literal_column, select

from popserver.cluster.sql import unattended
from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.newest import group_of, joined, newest, unindexed
from popserver.database.rows import RowQuery, RowStatement, encode_rows, rows_parameter
from popserver.database.schema import WITH_TIME, delivery, still_in
from popserver.delivery.deliveries import DELIVERY_COLUMNS, GRANTED, IS_CURRENT, DeliveryRow, is_granted_now
from popserver.engine.transaction import Transaction
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.model.states import State


class AttemptRow(NamedTuple):
    """A delivery, and the attempt id of the receive that holds it."""

    message_key: int
    attempt: int
    hold_id: int
    visible_at_ms: int
    client_id: str
    message_group: str | None
    attempt_id: str


def of_message(conn: Connection, group_id: int, key: int) -> DeliveryRow | None:
    """The delivery of a message in the group, in any state."""
    return _OF_MESSAGE.first(conn, {"for_group": group_id, "for_key": key})


def head_of_group(conn: Connection, group_id: int, topic_id: int, message_group: str, key: int) -> DeliveryRow | None:
    """The first delivery of a message group, if it is not after this message."""
    names = {"for_group": group_id, "of_topic": topic_id, "named": message_group, "for_key": key}
    return _HEAD.first(conn, names)


def last_to_end(conn: Connection, group_id: int, topic_id: int | None, limit: int) -> list[DeliveryRow]:
    """The group's holds and retry intervals in one topic or (None) in all, the last to end first."""
    names = {"for_group": group_id, "of_topic": topic_id, "limit": limit}
    return (_LAST_TO_END if topic_id is None else _LAST_TO_END_IN_TOPIC).rows(conn, names)


def blocking_heads(conn: Connection, group_id: int, groups_max: int, limit: int) -> tuple[list[DeliveryRow], int]:
    """The first deliveries of blocked message groups, those with the most attempts first; and their number.

    A message group is blocked while its first delivery is held or waits for a retry. The query reads the first
    `groups_max` message groups.
    """
    rows = conn.execute(_BLOCKING_HEADS, {"for_group": group_id, "groups_max": groups_max, "limit": limit}).all()
    return [DeliveryRow._make(row[:-1]) for row in rows], rows[0][-1] if rows else 0


def lock(tx: Transaction, receipt: Receipt) -> DeliveryRow | None:
    """Lock and return the delivery if the receipt is its current hold. None if another transaction has locked it."""
    names = {"for_group": receipt.group_id, "for_key": receipt.message_key, "for_hold": receipt.hold_id}
    return _HELD.first(tx.conn, names | {"now_ms": tx.now_ms})


def present(conn: Connection, receipts: Iterable[Receipt]) -> set[int]:
    """Those of the receipts' messages that have a delivery, whatever its hold."""
    return set(conn.execute(_PRESENT.of(conn), {"keys": _keys_of(receipts)}).scalars())


def lock_present(conn: Connection, receipts: Iterable[Receipt]) -> set[int]:
    """The same. Locks the deliveries, without those that another transaction has locked."""
    return set(conn.execute(_LOCK_PRESENT.of(conn), {"keys": _keys_of(receipts)}).scalars())


def lock_granted(tx: Transaction, receipts: Sequence[Receipt]) -> list[DeliveryRow]:
    """Lock the deliveries whose current hold is one of the receipts, in the order of their keys, without those that
    another transaction has locked."""
    return _LOCK_GRANTED.of(tx.conn).rows(tx.conn, _granted_names(tx, receipts))


def has_skipped_granted(tx: Transaction, receipts: Sequence[Receipt]) -> bool:
    """Whether another transaction has locked the delivery of a current receipt. The caller has given back the others
    before."""
    return dialect_of(tx.conn).has_skipped(tx.conn, _GRANTED.of(tx.conn), _granted_names(tx, receipts))


def by_attempts(tx: Transaction, group_id: int, topic_id: int, attempt_ids: Sequence[str]) -> list[AttemptRow]:
    """The deliveries that receives with these attempt ids hold, by message key."""
    names = {"of_group": group_id, "of_topic": topic_id, "now_ms": tx.now_ms}
    if len(attempt_ids) == 1:
        return _BY_ATTEMPT.rows(tx.conn, names | {"of_attempt": attempt_ids[0]})
    return _BY_ATTEMPTS.rows(tx.conn, names | {"of_attempts": attempt_ids})


def by_bulk_attempt(
    conn: Connection, group_id: int, topic_id: int, attempt_id: str, now_ms: int, *, locks: bool = False
) -> list[AttemptRow]:
    """The deliveries that a simple consumer's receive of many messages holds (docs/design/0017).

    `locks`: locks them, without those that another transaction has locked.
    """
    names = {"of_group": group_id, "of_topic": topic_id, "of_attempt": attempt_id, "now_ms": now_ms}
    return (_LOCK_BULK if locks else _BULK).rows(conn, names)


def unattended_push_clients(conn: Connection) -> list[str]:
    """The clients that hold messages as push consumers, and that are connected to no server."""
    return unattended(conn, conn.execute(_PUSH_CLIENTS).scalars().all())


def _granted_names(tx: Transaction, receipts: Sequence[Receipt]) -> dict[str, Any]:
    return {"grants": encode_rows([each[:3] for each in receipts]), "now_ms": tx.now_ms}


def _keys_of(receipts: Iterable[Receipt]) -> str:
    return encode_rows([(each.group_id, each.message_key) for each in receipts])


_ROWS = select(*DELIVERY_COLUMNS)
_OF_MESSAGE = RowStatement(
    DeliveryRow,
    _ROWS.where(delivery.c.group_id == bindparam("for_group"), delivery.c.message_key == bindparam("for_key")),
)
_HELD = RowStatement(
    DeliveryRow,
    newest(delivery, *DELIVERY_COLUMNS, group_id=bindparam("for_group"), message_key=bindparam("for_key"))
    .where(*IS_CURRENT, still_in(delivery.c.state, State.INFLIGHT))
    .with_for_update(skip_locked=True),
)
_KEYS = rows_parameter("keys", "group_id", "message_key")


def _present(dialect: Dialect, *, locks: bool) -> Select[Any]:
    found, row = joined(dialect, _KEYS, delivery, "group_id", "message_key", skips_locked=locks)
    return select(row.c.message_key).select_from(found)


_PRESENT = PerDialect(partial(_present, locks=False))
_LOCK_PRESENT = PerDialect(partial(_present, locks=True))


def _granted(dialect: Dialect, *, locks: bool) -> Select[Any]:
    found, row = joined(dialect, GRANTED, delivery, "group_id", "message_key", skips_locked=locks)
    columns = [row.c[name] for name in DeliveryRow._fields]
    return select(*columns).select_from(found).where(is_granted_now(row)).order_by(row.c.group_id, row.c.message_key)


_GRANTED = PerDialect(partial(_granted, locks=False))
_LOCK_GRANTED = PerDialect(lambda dialect: RowStatement(DeliveryRow, _granted(dialect, locks=True)))
# The index `delivery_attempt` must be used, so no index fits the other conditions. Postgres's statistics of this table
# are out of date, because its rows come and go; with them, Postgres might scan all deliveries of the group.
_every_held = (
    select(*(delivery.c[name] for name in AttemptRow._fields))
    .where(
        unindexed(delivery.c.group_id) == bindparam("of_group"),
        unindexed(delivery.c.topic_id) == bindparam("of_topic"),
        still_in(delivery.c.state, State.INFLIGHT),
        unindexed(delivery.c.visible_at_ms) > bindparam("now_ms"),
    )
    .order_by(delivery.c.message_key)
)
_by_attempt = _every_held.where(delivery.c.attempt_id == bindparam("of_attempt"))
_BY_ATTEMPTS = RowStatement(AttemptRow, _every_held.where(delivery.c.attempt_id.in_(bindparam("of_attempts"))))
# A statement of its own, because SQLAlchemy makes the text of `_BY_ATTEMPTS` anew for each number of attempts.
_BY_ATTEMPT = RowStatement(AttemptRow, _by_attempt)
_bulk: Select[Any] = _by_attempt.where(delivery.c.holder == literal_column(f"'{Holder.SIMPLE}'"))
_BULK = RowQuery(AttemptRow, _bulk)
_LOCK_BULK = RowQuery(AttemptRow, _bulk.with_for_update(skip_locked=True))
_PUSH_CLIENTS = select(delivery.c.client_id).where(delivery.c.holder == literal_column(f"'{Holder.PUSH}'")).distinct()
_timed = _ROWS.where(delivery.c.group_id == bindparam("for_group"), WITH_TIME)
_last_to_end = _timed.order_by(delivery.c.visible_at_ms.desc(), delivery.c.message_key).limit(bindparam("limit"))
_LAST_TO_END = RowStatement(DeliveryRow, _last_to_end)
_LAST_TO_END_IN_TOPIC = RowStatement(DeliveryRow, _last_to_end.where(delivery.c.topic_id == bindparam("of_topic")))
_heads = (
    select(func.min(delivery.c.message_key).label("first_key"))
    .where(group_of(delivery) == bindparam("for_group"), delivery.c.message_group.is_not(None))
    .group_by(delivery.c.topic_id, delivery.c.message_group)
    # The order of the index `delivery_of_group`, so that Postgres reads no more message groups than the limit.
    .order_by(delivery.c.topic_id, delivery.c.message_group)
    .limit(bindparam("groups_max"))
    .subquery("heads")
)
_BLOCKING_HEADS = (
    _timed.add_columns(func.count().over().label("locked_count"))
    .join(_heads, _heads.c.first_key == delivery.c.message_key)
    .order_by(delivery.c.attempt.desc(), delivery.c.message_key)
    .limit(bindparam("limit"))
)
_HEAD = RowStatement(
    DeliveryRow,
    _ROWS.where(
        group_of(delivery) == bindparam("for_group"),
        delivery.c.topic_id == bindparam("of_topic"),
        delivery.c.message_group == bindparam("named"),
        delivery.c.message_key <= bindparam("for_key"),
    )
    .order_by(delivery.c.message_key)
    .limit(1),
)
