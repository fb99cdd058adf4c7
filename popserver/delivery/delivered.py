"""Which messages of a group have deliveries: of a queue, of a range of messages, of lite topics. Reads and locks.

Ranges are read by the primary key, in the order of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Integer,
    ScalarSelect,
    Subquery,
    and_,
    bindparam,
    func,
    literal_column,
    select,
)

from popserver.database.newest import group_of
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import delivery, in_states
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction
from popserver.messages.redrives import REDRIVEN
from popserver.model.group import Group
from popserver.model.states import TIMED, State, shown_as


class MessageGroupOfTopic(NamedTuple):
    """A message group that has deliveries."""

    topic_id: int
    message_group: str


class HoldRow(NamedTuple):
    """A hold of a client, and its end."""

    client_id: str
    visible_at_ms: int


class StateRow(NamedTuple):
    """A delivery and its state."""

    message_key: int
    state: str
    attempt: int
    client_id: str


def pages(conn: Connection, group_id: int, first: int, end: int) -> Iterator[Sequence[int]]:
    """The messages with first <= key < end that have a delivery in the group, in pages."""
    names = {"for_group": group_id, "first": first, "end": end, "limit": STEP_ROWS_MAX}
    while page := conn.execute(_PAGE, names).scalars().all():
        yield page
        names["first"] = page[-1] + 1


def states(conn: Connection, group_id: int, first: int, end: int, limit: int) -> list[StateRow]:
    """Up to `limit` deliveries with first <= key < end, with their states."""
    return _STATES.rows(conn, {"for_group": group_id, "first": first, "end": end, "limit": limit})


def redriven_states(conn: Connection, group_id: int, first: int, end: int, limit: int) -> list[StateRow]:
    """The same for redriven messages: `message_key` is their first place, and that is in the range."""
    return _REDRIVEN_STATES.rows(conn, {"for_group": group_id, "first": first, "end": end, "limit": limit})


def redriven_to(conn: Connection, group: Group, origin_key: int) -> int | None:
    """The place of the redriven message's delivery in the group; None if it has none."""
    found: int | None = conn.execute(_REDRIVEN_TO, {"for_group": group.group_id, "for_origin": origin_key}).scalar()
    return found


def first_redriven(conn: Connection, first: int, end: int) -> int | None:
    """The first place with first <= key < end of a redriven message that has a delivery, of any group."""
    found: int | None = conn.execute(_FIRST_REDRIVEN, {"first": first, "end": end}).scalar()
    return found


def of_these(conn: Connection, group_id: int, keys: Iterable[int]) -> set[int]:
    """Those of these messages that have a delivery in the group; each is found by its whole key."""
    return set(conn.execute(_THESE, _named(group_id, keys)).scalars())


def lock(tx: Transaction, group_id: int, keys: Iterable[int]) -> set[int]:
    """The same: locks the rows, without those that another transaction has."""
    return set(tx.conn.execute(_LOCK, _named(group_id, keys)).scalars())


def lock_ready_of_these(tx: Transaction, group_id: int, keys: Iterable[int]) -> set[int]:
    """Of these messages those that are READY again; locks the rows, without those that another transaction has."""
    return set(tx.conn.execute(_LOCK_READY_OF_THESE, _named(group_id, keys)).scalars())


def first_needed(tx: Transaction, group_id: int, first: int, end: int) -> int | None:
    """The first message with first <= key < end that is held, waits for a retry, or is locked by another transaction.

    Locks the deliveries that are READY again.
    """
    names = {"for_group": group_id, "first": first, "end": end}
    ready = set(tx.conn.execute(_LOCK_READY, names).scalars())
    return next((key for key in tx.conn.execute(_ALL, names).scalars() if key not in ready), None)


def ready_in_order(conn: Connection, group_id: int, first: int, end: int) -> list[MessageGroupOfTopic]:
    """The message groups with deliveries that are READY again."""
    return _READY_IN_ORDER.rows(conn, {"for_group": group_id, "first": first, "end": end})


def first_inside(group_id: ColumnElement[int]) -> ScalarSelect[int]:
    """The first message of the group with :first <= key < :end that has a delivery; NULL if none has.

    A scalar: Postgres may read a whole table for an EXISTS.
    """
    found = select(delivery.c.message_key).where(delivery.c.group_id == group_id, *_INSIDE)
    return found.order_by(delivery.c.message_key).limit(1).scalar_subquery()


def held_in_topic(conn: Connection, group_id: int, topic_id: int, now_ms: int) -> HoldRow | None:
    """A hold of the group in this topic, if there is one."""
    return _HELD_IN_TOPIC.first(conn, {"for_group": group_id, "of_topic": topic_id, "now_ms": now_ms})


def timed_lite_topics(conn: Connection, topic_id: int, groups: Sequence[int], names: Iterable[str]) -> set[str]:
    """Those of these lite topics with messages that are held or wait for a retry, in any of these groups."""
    given = {"groups": encode_rows([(each,) for each in groups]), "names": encode_rows([(each,) for each in names])}
    return set(conn.execute(_TIMED_LITE, given | {"of_topic": topic_id}).scalars())


def lite_topics_of_groups() -> Subquery:
    """Each lite topic in `names` with each group in `groups`: that is how the index of message groups is read."""
    groups, names = rows_parameter("groups", "group_id"), rows_parameter("names", text=("name",))
    return select(groups.c.group_id, names.c.name).join(names, names.c.name == names.c.name).subquery("members")


def _named(group_id: int, keys: Iterable[int]) -> dict[str, Any]:
    return {"for_group": group_id, "keys": encode_rows([(key,) for key in keys])}


_OF_GROUP = delivery.c.group_id == bindparam("for_group")
_INSIDE = delivery.c.message_key >= bindparam("first"), delivery.c.message_key < bindparam("end")
_ALL = select(delivery.c.message_key).where(_OF_GROUP, *_INSIDE).order_by(delivery.c.message_key)
_PAGE = _ALL.limit(bindparam("limit", type_=Integer))
_STATES = RowStatement(
    StateRow,
    select(*(delivery.c[name] for name in StateRow._fields))
    .where(_OF_GROUP, *_INSIDE)
    .order_by(delivery.c.message_key)
    .limit(bindparam("limit", type_=Integer)),
)
_KEYS = rows_parameter("keys", "message_key")
# Each row by its whole key: there may be many other rows between two named ones.
_THESE = select(delivery.c.message_key).where(_OF_GROUP, delivery.c.message_key.in_(select(_KEYS.c.message_key)))
_LOCK = _THESE.with_for_update(skip_locked=True)
_IS_READY = in_states(delivery.c.state, *shown_as(State.READY))
_LOCK_READY_OF_THESE = _THESE.where(_IS_READY).order_by(delivery.c.message_key).with_for_update(skip_locked=True)
_LOCK_READY = select(delivery.c.message_key).where(_OF_GROUP, *_INSIDE, _IS_READY).with_for_update(skip_locked=True)
_READY_IN_ORDER = RowStatement(
    MessageGroupOfTopic,
    select(delivery.c.topic_id, delivery.c.message_group)
    .where(_OF_GROUP, *_INSIDE, delivery.c.message_group.is_not(None), _IS_READY)
    .distinct(),
)
_HELD_IN_TOPIC = RowStatement(
    HoldRow,
    select(delivery.c.client_id, delivery.c.visible_at_ms)
    .where(
        _OF_GROUP,
        delivery.c.topic_id == bindparam("of_topic"),
        in_states(delivery.c.state, State.INFLIGHT),
        delivery.c.visible_at_ms > bindparam("now_ms"),
    )
    .limit(literal_column("1")),
)
_LITE_TOPICS = lite_topics_of_groups()
_TIMED_LITE = (
    select(delivery.c.message_group)
    .join(
        _LITE_TOPICS,
        and_(
            group_of(delivery) == _LITE_TOPICS.c.group_id,
            delivery.c.topic_id == bindparam("of_topic"),
            delivery.c.message_group == _LITE_TOPICS.c.name,
        ),
    )
    .where(in_states(delivery.c.state, *TIMED))
)
_IS_REDRIVEN = and_(delivery.c.group_id == REDRIVEN.c.group_id, delivery.c.message_key == REDRIVEN.c.redriven_key)
_REDRIVEN_STATES = RowStatement(
    StateRow,
    select(REDRIVEN.c.origin_key.label("message_key"), delivery.c.state, delivery.c.attempt, delivery.c.client_id)
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
_REDRIVEN_TO = (
    select(REDRIVEN.c.redriven_key)
    .join(delivery, _IS_REDRIVEN)
    .where(REDRIVEN.c.origin_key == bindparam("for_origin"), REDRIVEN.c.group_id == bindparam("for_group"))
    .order_by(REDRIVEN.c.dead_letter_id.desc())
    .limit(1)
)
_FIRST_REDRIVEN = (
    select(func.min(REDRIVEN.c.redriven_key))
    .join(delivery, _IS_REDRIVEN)
    .where(REDRIVEN.c.redriven_key >= bindparam("first"), REDRIVEN.c.redriven_key < bindparam("end"))
)
