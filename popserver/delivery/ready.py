"""Messages without a message group that are READY again in a group and a topic, the first ones first.

The index `delivery_ready` finds them. A search begins at a lower time bound (`queues_to_read.ReadyFrom`), because a
user's open transaction keeps the index entries of all messages that were READY since it began.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, literal_column, null, select

from popserver.database.dialect import Dialect, PerDialect
from popserver.database.newest import group_of
from popserver.database.rows import RowStatement, rows_parameter
from popserver.database.schema import delivery, in_states
from popserver.members.lite_subscriptions import subscriptions
from popserver.messages.by_key import HEADS
from popserver.model.states import State


class ReadyRow(NamedTuple):
    """`first_ms`: since when the oldest READY row waits. Another transaction may have locked that row."""

    message_key: int
    attempt: int
    first_ms: int | None


class RedrivenRow(NamedTuple):
    """A message that was redriven to the group, and the client that may get it."""

    message_key: int
    attempt: int
    client_id: str


def lock(conn: Connection, names: Mapping[str, Any]) -> list[ReadyRow]:
    """Lock and return the first `limit` messages of `group_id` and `topic_id` that are READY since `ready_from` or
    later, without those that another transaction has locked."""
    return _LOCK.of(conn).rows(conn, names)


def lock_redriven(conn: Connection, names: Mapping[str, Any], *, chooses: bool) -> list[RedrivenRow]:
    """The same in a topic of lite topics, where all of them are redriven messages.

    If the group's clients choose lite topics: the messages for the clients in `subscribers`, one row for each client;
    otherwise all, with an empty client id.
    """
    return (_REDRIVEN_TO_CLIENTS if chooses else _REDRIVEN).rows(conn, names)


# Only READY, as in the index: without a message group no ack is provisional.
_IS_READY_AGAIN = (
    group_of(delivery) == bindparam("group_id"),
    delivery.c.topic_id == bindparam("topic_id"),
    in_states(delivery.c.state, State.READY),
    delivery.c.message_group.is_(None),
    delivery.c.visible_at_ms >= bindparam("ready_from"),
)
# Since when the first one is READY; NULL if there is none. No EXISTS: for it SQLite would read all deliveries of the
# group. No min(): only an order leaves Postgres no other index than the one that has this order.
SINCE_MS: Final = (
    select(delivery.c.visible_at_ms)
    .where(*_IS_READY_AGAIN)
    .order_by(delivery.c.visible_at_ms)
    .limit(literal_column("1"))
    .correlate(None)
    .scalar_subquery()
)


def _lock(dialect: Dialect) -> RowStatement[ReadyRow]:
    first_ms: Any = SINCE_MS if dialect.has_other_writers else null()
    query = select(delivery.c.message_key, delivery.c.attempt, first_ms.label("first_ms")).where(*_IS_READY_AGAIN)
    in_order = query.order_by(delivery.c.visible_at_ms).limit(bindparam("limit"))
    return RowStatement(ReadyRow, in_order.with_for_update(skip_locked=True))


_LOCK = PerDialect(_lock)
SUBSCRIBERS: Final = rows_parameter("subscribers", text=("client_id",))
_subscribed = subscriptions(bindparam("group_id"), bindparam("topic_id"))
_redriven = (
    select(delivery.c.message_key, delivery.c.attempt)
    .where(*_IS_READY_AGAIN)
    .order_by(delivery.c.visible_at_ms)
    .limit(bindparam("limit"))
    .with_for_update(of=delivery, skip_locked=True)
)
_REDRIVEN = RowStatement(RedrivenRow, _redriven.add_columns(literal_column("''").label("client_id")))
_REDRIVEN_TO_CLIENTS = RowStatement(
    RedrivenRow,
    _redriven.add_columns(_subscribed.c.client_id)
    .join(HEADS, HEADS.c.message_key == delivery.c.message_key)
    .join(_subscribed, _subscribed.c.lite_topic == HEADS.c.message_group)
    .where(_subscribed.c.client_id.in_(select(SUBSCRIBERS.c.client_id))),
)
