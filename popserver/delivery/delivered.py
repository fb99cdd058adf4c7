"""Reads and locks the deliveries of messages: of named ones, of a range of keys, of lite topics.

The primary key finds those of a range, in the order of their messages.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    ScalarSelect,
    and_,
    bindparam,
    func,
    literal_column,
    select,
)

from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.newest import group_of
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import KEY_SHIFT, delivery, in_states
from popserver.delivery.deliveries import DELIVERY_COLUMNS, DeliveryRow
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction
from popserver.messages.redrives import REDRIVEN, REDRIVEN_TO
from popserver.model.group import Group
from popserver.model.states import TIMED, State, shown_as


class MessageGroupOfTopic(NamedTuple):
    """A message group that has deliveries."""

    topic_id: int
    message_group: str


class LiteRow(NamedTuple):
    """A delivery of a lite topic, whose name is `message_group`."""

    message_key: int
    message_group: str


class FirstRow(NamedTuple):
    """The first message of a queue that has a delivery."""

    queue_id: int
    first_key: int


def pages(conn: Connection, group_id: int, first: int, end: int) -> Iterator[Sequence[int]]:
    """Pages of the messages with first <= key < end that have a delivery in the group."""
    names = {"for_group": group_id, "first": first, "end": end, "limit": STEP_ROWS_MAX}
    while page := conn.execute(_PAGE, names).scalars().all():
        yield page
        names["first"] = page[-1] + 1


def states(conn: Connection, group_id: int, first: int, end: int, limit: int) -> list[DeliveryRow]:
    """The first `limit` deliveries with first <= key < end."""
    return _STATES.rows(conn, {"for_group": group_id, "first": first, "end": end, "limit": limit})


def redriven_states(conn: Connection, group_id: int, first: int, end: int, limit: int) -> list[DeliveryRow]:
    """The same for redriven messages with first keys in the range. `message_key` is their first key."""
    return _REDRIVEN_STATES.rows(conn, {"for_group": group_id, "first": first, "end": end, "limit": limit})


def redriven_to(conn: Connection, group: Group, origin_key: int) -> int | None:
    """The key at which a redriven message has its delivery in the group; None if it has none."""
    return conn.execute(_REDRIVEN_TO, {"for_group": group.group_id, "for_origin": origin_key}).scalar()


def first_redriven(conn: Connection, first: int, end: int) -> int | None:
    """The first redriven message with first <= key < end that has a delivery in any group."""
    return conn.execute(_FIRST_REDRIVEN, {"first": first, "end": end}).scalar()


def among(conn: Connection, group_id: int, keys: Iterable[int]) -> set[int]:
    """Those of these messages that have a delivery in the group."""
    return set(conn.execute(_AMONG, _named(group_id, keys)).scalars())


def lock(tx: Transaction, group_id: int, keys: Iterable[int]) -> set[int]:
    """The same. Locks the deliveries, without those that another transaction has locked."""
    return set(tx.conn.execute(_LOCK, _named(group_id, keys)).scalars())


def lock_ready_among(tx: Transaction, group_id: int, keys: Iterable[int]) -> set[int]:
    """The same, only for messages that are READY again."""
    return set(tx.conn.execute(_LOCK_READY_AMONG, _named(group_id, keys)).scalars())


def first_needed(tx: Transaction, group_id: int, first: int, end: int) -> int | None:
    """The first message with first <= key < end that is held, waits for a retry, or is locked by another transaction.

    Locks the deliveries that are READY again.
    """
    names = {"for_group": group_id, "first": first, "end": end}
    ready = set(tx.conn.execute(_LOCK_READY, names).scalars())
    return next((key for key in tx.conn.execute(_ALL, names).scalars() if key not in ready), None)


def ready_in_order(conn: Connection, group_id: int, first: int, end: int) -> list[MessageGroupOfTopic]:
    """The message groups of the deliveries with first <= key < end that are READY again."""
    return _READY_IN_ORDER.rows(conn, {"for_group": group_id, "first": first, "end": end})


def first_inside(group_id: ColumnElement[int]) -> ScalarSelect[int]:
    """The first message with :first <= key < :end that has a delivery in the group; NULL if none has.

    No EXISTS: Postgres may read a whole table for it.
    """
    found = select(delivery.c.message_key).where(delivery.c.group_id == group_id, *_INSIDE)
    return found.order_by(delivery.c.message_key).limit(1).scalar_subquery()


def firsts(conn: Connection, group_id: int) -> list[FirstRow]:
    """The first message of each queue that has a delivery in the group. Reads all deliveries of the group."""
    return _FIRSTS.rows(conn, {"for_group": group_id})


def redriven_firsts(conn: Connection, group_id: int) -> list[FirstRow]:
    """The same for redriven messages, by their first keys."""
    return _REDRIVEN_FIRSTS.rows(conn, {"for_group": group_id})


def held_in_topic(conn: Connection, group_id: int, topic_id: int, now_ms: int) -> DeliveryRow | None:
    """One hold of the group in this topic; None if there is none."""
    return _HELD_IN_TOPIC.first(conn, {"for_group": group_id, "of_topic": topic_id, "now_ms": now_ms})


def of_lite_topics(conn: Connection, group_id: int, topic_id: int, names: Collection[str]) -> list[LiteRow]:
    """The group's deliveries of these lite topics, from the index `delivery_of_group` alone.

    On SQLite one query for each lite topic: for a list of names, SQLite would read all deliveries of the group.
    """
    given: dict[str, Any] = {"for_group": group_id, "of_topic": topic_id}
    if dialect_of(conn).has_other_writers:
        each = [given | {"names": encode_column(names)}]
    else:
        each = [given | {"name": name} for name in names]
    return [row for one in each for row in _OF_LITE_TOPICS.of(conn).rows(conn, one)]


def timed_lite_topics(conn: Connection, group_id: int, rows: Iterable[LiteRow]) -> set[str]:
    """The lite topics that have a held or waiting message among these deliveries."""
    return set(conn.execute(_TIMED, _named(group_id, (row.message_key for row in rows))).scalars())


def _named(group_id: int, keys: Iterable[int]) -> dict[str, Any]:
    return {"for_group": group_id, "keys": encode_column(keys)}


_OF_GROUP = delivery.c.group_id == bindparam("for_group")
_INSIDE = delivery.c.message_key >= bindparam("first"), delivery.c.message_key < bindparam("end")
_ALL = select(delivery.c.message_key).where(_OF_GROUP, *_INSIDE).order_by(delivery.c.message_key)
_PAGE = _ALL.limit(bindparam("limit", type_=Integer))
_STATES = RowStatement(
    DeliveryRow,
    select(*DELIVERY_COLUMNS)
    .where(_OF_GROUP, *_INSIDE)
    .order_by(delivery.c.message_key)
    .limit(bindparam("limit", type_=Integer)),
)
_KEYS = rows_parameter("keys", "message_key")
# The group and the list of keys are the whole primary key: there may be many other rows between two named ones.
_AMONG = select(delivery.c.message_key).where(_OF_GROUP, delivery.c.message_key.in_(select(_KEYS.c.message_key)))
_LOCK = _AMONG.with_for_update(skip_locked=True)
_IS_READY = in_states(delivery.c.state, *shown_as(State.READY))
_LOCK_READY_AMONG = _AMONG.where(_IS_READY).with_for_update(skip_locked=True)
_LOCK_READY = select(delivery.c.message_key).where(_OF_GROUP, *_INSIDE, _IS_READY).with_for_update(skip_locked=True)
_READY_IN_ORDER = RowStatement(
    MessageGroupOfTopic,
    select(delivery.c.topic_id, delivery.c.message_group)
    .where(_OF_GROUP, *_INSIDE, delivery.c.message_group.is_not(None), _IS_READY)
    .distinct(),
)
_HELD_IN_TOPIC = RowStatement(
    DeliveryRow,
    select(*DELIVERY_COLUMNS)
    .where(
        _OF_GROUP,
        delivery.c.topic_id == bindparam("of_topic"),
        in_states(delivery.c.state, State.INFLIGHT),
        delivery.c.visible_at_ms > bindparam("now_ms"),
    )
    .limit(literal_column("1")),
)
_LITE_TOPICS = rows_parameter("names", text=("name",))


def _of_lite_topics(dialect: Dialect) -> RowStatement[LiteRow]:
    name = delivery.c.message_group
    is_named = name.in_(select(_LITE_TOPICS.c.name)) if dialect.has_other_writers else name == bindparam("name")
    is_of = group_of(delivery) == bindparam("for_group"), delivery.c.topic_id == bindparam("of_topic")
    return RowStatement(LiteRow, select(delivery.c.message_key, name).where(*is_of, is_named))


_OF_LITE_TOPICS = PerDialect(_of_lite_topics)
_TIMED = _AMONG.with_only_columns(delivery.c.message_group).where(in_states(delivery.c.state, *TIMED))
_IS_REDRIVEN = and_(delivery.c.group_id == REDRIVEN.c.group_id, delivery.c.message_key == REDRIVEN.c.redriven_key)
_first_key = REDRIVEN.c.origin_key.label("message_key")
_REDRIVEN_STATES = RowStatement(
    DeliveryRow,
    select(*(_first_key if each is delivery.c.message_key else each for each in DELIVERY_COLUMNS))
    .join(delivery, _IS_REDRIVEN)
    .where(
        REDRIVEN.c.group_id == bindparam("for_group"),
        REDRIVEN.c.origin_key >= bindparam("first"),
        REDRIVEN.c.origin_key < bindparam("end"),
    )
    .distinct()
    .order_by(REDRIVEN.c.origin_key)
    .limit(bindparam("limit", type_=Integer)),
)
# After several redrives all rows that it finds have one key, because a message has one delivery.
_REDRIVEN_TO = (
    select(REDRIVEN.c.redriven_key)
    .join(delivery, _IS_REDRIVEN)
    .where(REDRIVEN.c.origin_key == bindparam("for_origin"), REDRIVEN.c.group_id == bindparam("for_group"))
)
_TO = REDRIVEN_TO.c
_FIRST_REDRIVEN = (
    select(func.min(_TO.redriven_key))
    .join(delivery, and_(delivery.c.group_id == _TO.group_id, delivery.c.message_key == _TO.redriven_key))
    .where(_TO.redriven_key >= bindparam("first"), _TO.redriven_key < bindparam("end"))
)
_QUEUE_ID = delivery.c.message_key.op(">>")(KEY_SHIFT)
# For joins: each delivery, with the queue id of its key.
DELIVERED = select(
    *(delivery.c[name] for name in ("group_id", "message_key", "topic_id", "state")), _QUEUE_ID.label("queue_id")
).subquery("delivered")
_FIRSTS = RowStatement(
    FirstRow,
    select(_QUEUE_ID.label("queue_id"), func.min(delivery.c.message_key).label("first_key"))
    .where(_OF_GROUP)
    .group_by(_QUEUE_ID),
)
_ORIGIN_QUEUE_ID = REDRIVEN.c.origin_key.op(">>")(KEY_SHIFT)
_REDRIVEN_FIRSTS = RowStatement(
    FirstRow,
    select(_ORIGIN_QUEUE_ID.label("queue_id"), func.min(REDRIVEN.c.origin_key).label("first_key"))
    .select_from(delivery)
    .join(REDRIVEN, _IS_REDRIVEN)
    .where(_OF_GROUP)
    .group_by(_ORIGIN_QUEUE_ID),
)
