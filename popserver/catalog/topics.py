"""Statements that create, change, delete and find topics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, NamedTuple, Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, exists, insert, select, update

from popserver.catalog import lookup, progress
from popserver.catalog.lookup import follows, is_named, lock, page_names, topic_not_found
from popserver.catalog.queues import (
    QueueRow,
    insert_queues,
    message_queues,
    queue_rows,
    queue_rows_of_several,
)
from popserver.database.notifications import NEW_TOPIC, TOPIC, Invalidation
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import topic as topic_table
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each
from popserver.model.errors import AlreadyExists, BadRequest, PopError, TopicClosed, TopicNotFound
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic, Topic, check_lite


class _TopicRow(NamedTuple):
    topic_id: int
    namespace: str
    name: str
    accepts: str
    created_at_ms: int
    fifo_queues: int
    lite_expires_ms: int | None
    closed_because: str | None


@dataclass(frozen=True, slots=True)
class CreateTopic(Request[Topic]):
    phase: ClassVar = Phase.CATALOG
    new: NewTopic
    or_find: bool = False


@dataclass(frozen=True, slots=True)
class UpdateTopic(Request[Topic]):
    """None leaves a value unchanged. `lite_expires_ms` 0: lite topics do not expire. `closed_because` empty: the topic
    takes messages of producers again."""

    phase: ClassVar = Phase.CATALOG
    name: Resource
    queue_count: int | None = None
    accepts: tuple[MessageType, ...] | None = None
    lite_expires_ms: int | None = None
    closed_because: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteTopic(Request[None]):
    phase: ClassVar = Phase.CATALOG
    name: Resource


class _OfTopic(Protocol):
    @property
    def topic(self) -> Topic: ...


Q = TypeVar("Q", bound=_OfTopic)
A = TypeVar("A")


def topic_by_topic(requests: Sequence[Q], carry_out: Callable[[Sequence[Q]], Sequence[A]]) -> list[A]:
    """The answers to requests, in their order. Each call of `carry_out` gets all requests of one topic."""
    answers: dict[int, A] = {}
    order = sorted(range(len(requests)), key=lambda index: requests[index].topic.topic_id)
    for _, indexes in groupby(order, key=lambda index: requests[index].topic.topic_id):
        several = list(indexes)
        answers |= zip(several, carry_out([requests[index] for index in several]), strict=True)
    return [answers[index] for index in range(len(requests))]


@carries_out_each(DeleteTopic)
def delete_topic(tx: Transaction, request: DeleteTopic) -> PopError | None:
    lock(tx)
    return delete_one_topic(tx, request.name)


def ensure_topic(tx: Transaction, new: NewTopic) -> Topic:
    """The topic of that name, created if it is missing."""
    return find_topic(tx.conn, new.name) or _insert_topic(tx, new)


def find_topic(conn: Connection, name: Resource) -> Topic | None:
    row = _TOPIC.first(conn, {"in_namespace": name.namespace, "with_name": name.name})
    return None if row is None else _topic(row, queue_rows(conn, row.topic_id))


def topics_by_id(conn: Connection, topic_ids: Collection[int]) -> dict[int, Topic]:
    """The existing ones of these topics, by id."""
    queues = queue_rows_of_several(conn, topic_ids)
    rows = _TOPICS_BY_ID.rows(conn, {"topic_ids": list(topic_ids)})
    return {row.topic_id: _topic(row, queues.get(row.topic_id, ())) for row in rows}


def names_by_id(conn: Connection, topic_ids: Collection[int]) -> dict[int, Resource]:
    """The names of these topics by id, also of deleted topics whose rows are not removed yet."""
    rows = conn.execute(_NAMES_BY_ID, {"topic_ids": list(topic_ids)}) if topic_ids else ()
    return {row.topic_id: Resource(row.namespace, row.name) for row in rows}


def page_of_topics(
    conn: Connection, namespace: str | None, after: Resource | None, limit: int
) -> list[tuple[Topic, list[QueueRow]]]:
    """The next `limit` topics after this one, by namespace and name, in one namespace or (None) in all; and their
    queues."""
    rows = (_PAGE if namespace is None else _PAGE_OF_ONE).rows(conn, page_names(namespace, after, limit))
    queues = queue_rows_of_several(conn, [row.topic_id for row in rows])
    return [(_topic(row, found), found) for row in rows for found in [queues.get(row.topic_id, [])]]


def count_topics(conn: Connection, namespace: str | None) -> int:
    """How many topics there are, in one namespace or (None) in all."""
    return lookup.count(conn, topic_table, namespace)


def topic_ids_of(conn: Connection, names: Collection[Resource]) -> dict[Resource, int]:
    """The ids of these topics, without those that do not exist."""
    rows = _NAMED_TOPICS.rows(conn, {"names": encode_rows(sorted(names))})
    return {Resource(row.namespace, row.name): row.topic_id for row in rows}


def refusal_of_sends(conn: Connection, topic: Topic) -> PopError | None:
    """Why the topic takes no messages of producers; None if it takes them."""
    row = _CLOSED_BECAUSE.first(conn, {"topic_id": topic.topic_id})
    if row is None:
        return TopicNotFound(f"topic '{topic.name}' was deleted; create it with: popmq topic create {topic.name.name}")
    return None if row.closed_because is None else topic_closed(topic.name, row.closed_because)


def topic_closed(name: Resource, because: str) -> TopicClosed:
    return TopicClosed(f"topic '{name}' is closed for producers: {because}")


def is_there(conn: Connection, topic_id: int) -> bool:
    """Whether a topic with this id exists and is not deleted."""
    return bool(conn.execute(_IS_THERE, {"topic_id": topic_id}).scalar())


def lock_a_deleted_one(conn: Connection) -> int | None:
    """Lock a deleted topic whose rows are not removed yet. None if there is none, or other servers have locked all."""
    return conn.execute(_A_DELETED_ONE).scalar()


def forget(conn: Connection, topic_id: int) -> int:
    """Remove a deleted topic, after all its rows; returns how many."""
    return conn.execute(delete(topic_table).where(topic_table.c.topic_id == topic_id)).rowcount


def lock_lite_topics(conn: Connection, topic_id: int) -> None:
    """Lock the lite topics of a topic: other transactions that add or remove some wait. Waits for them too."""
    conn.execute(_LOCK, {"of_topic": topic_id})


def lock_lite_topics_available(conn: Connection, topic_id: int) -> bool:
    """The same without waiting. False if another transaction has locked it."""
    return conn.execute(_LOCK_AVAILABLE, {"of_topic": topic_id}).first() is not None


def count_lite_topics(conn: Connection, topic_id: int) -> int:
    """How many lite topics the topic has."""
    return conn.execute(_LITE_TOPICS, {"of_topic": topic_id}).scalar() or 0


def add_lite_topics(conn: Connection, topic_id: int, count: int) -> None:
    """Add to the topic's number of lite topics, or (negative) subtract. The caller has locked it."""
    conn.execute(_ADD_LITE_TOPICS, {"of_topic": topic_id, "added": count})


@carries_out_each(CreateTopic)
def create_topic(tx: Transaction, request: CreateTopic) -> Topic | PopError:
    lock(tx)
    found = find_topic(tx.conn, request.new.name)
    if found is None:
        return _insert_topic(tx, request.new)
    if request.or_find:
        return found
    return AlreadyExists(
        f"topic '{found.name}' exists already, with {len(found.queues)} queues; change it with: popmq topic update"
    )


def _insert_topic(tx: Transaction, new: NewTopic) -> Topic:
    topic_id = tx.conn.execute(
        insert(topic_table).returning(topic_table.c.topic_id),
        {
            "namespace": new.name.namespace,
            "name": new.name.name,
            "accepts": ",".join(new.accepts),
            "created_at_ms": tx.now_ms,
            "fifo_queues": new.queue_count,
            "lite_expires_ms": new.lite_expires_ms,
        },
    ).scalar_one()
    insert_queues(tx, topic_id, range(new.queue_count))
    tx.invalidate(Invalidation(NEW_TOPIC, *new.name))  # pulls may still be held at a deleted one of that name
    queues = message_queues(queue_rows(tx.conn, topic_id))
    return Topic(topic_id, new.name, queues, new.accepts, tx.now_ms, new.queue_count, new.lite_expires_ms)


@carries_out_each(UpdateTopic)
def update_topic(tx: Transaction, request: UpdateTopic) -> Topic | PopError:
    lock(tx)
    found = find_topic(tx.conn, request.name)
    if found is None:
        return topic_not_found(request.name)
    if refusal := _refusal(found, request):
        return refusal
    have = len(found.queues)
    is_closed = bool(found.closed_because if request.closed_because is None else request.closed_because)
    if request.queue_count is not None and request.queue_count > have:
        insert_queues(tx, found.topic_id, range(have, request.queue_count), is_closed=is_closed)
        progress.begin_in_new_queues(tx.conn, found.topic_id)
    values: dict[str, object] = {}
    if request.accepts is not None:
        values["accepts"] = ",".join(request.accepts)
    if request.lite_expires_ms is not None:
        values["lite_expires_ms"] = request.lite_expires_ms or None
    if request.closed_because is not None:
        values["closed_because"] = request.closed_because or None
    if values:
        tx.conn.execute(update(topic_table).where(topic_table.c.topic_id == found.topic_id).values(**values))
    tx.ready_topics.add(found.topic_id)
    tx.invalidate(Invalidation(TOPIC, *found.name))
    return find_topic(tx.conn, request.name) or topic_not_found(request.name)


def _refusal(found: Topic, request: UpdateTopic) -> BadRequest | None:
    """Why the topic cannot be changed like this; None if it can."""
    have, accepts = len(found.queues), request.accepts or found.accepts
    if request.queue_count is not None and request.queue_count < have:
        return BadRequest(
            f"topic '{found.name}' has {have} queues, and their number only grows; {request.queue_count} are too few"
        )
    if MessageType.FIFO in found.accepts and MessageType.FIFO not in accepts:
        return BadRequest(
            f"topic '{found.name}' accepts FIFO messages, and may have some whose order must be kept; keep FIFO among"
            " its types, or create another topic"
        )
    if found.is_lite != (MessageType.LITE in accepts):
        return BadRequest(
            f"topic '{found.name}' takes {' and '.join(found.accepts)} messages, and a topic neither becomes nor ceases"
            " to be one of lite topics; create another topic"
        )
    try:
        check_lite(found.name, accepts, request.lite_expires_ms or None)
    except BadRequest as refusal:
        return refusal
    return None


def delete_one_topic(tx: Transaction, name: Resource) -> PopError | None:
    named = is_named(topic_table, name)
    deleted = tx.conn.execute(update(topic_table).where(*named).values(deleted_at_ms=tx.now_ms)).rowcount
    if deleted:
        tx.invalidate(Invalidation(TOPIC, *name))
    return None if deleted else topic_not_found(name)


def _topic(row: _TopicRow, queues: Iterable[QueueRow]) -> Topic:
    accepts = tuple(MessageType(kind) for kind in row.accepts.split(","))
    name = Resource(row.namespace, row.name)
    queues_of = message_queues(queues)
    rest = row.created_at_ms, row.fifo_queues, row.lite_expires_ms, row.closed_because
    return Topic(row.topic_id, name, queues_of, accepts, *rest)


# For joins by `topic_id`: the topics that are not deleted.
EXISTING = (
    select(*(topic_table.c[name] for name in ("topic_id", "namespace", "name", "accepts", "lite_expires_ms")))
    .where(topic_table.c.deleted_at_ms.is_(None))
    .subquery("existing_topic")
)
_A_DELETED_ONE = lookup.a_deleted_one(topic_table.c.topic_id)


def exists_with(topic_id: ColumnElement[int]) -> ColumnElement[bool]:
    """The condition that a topic has this id and is not deleted."""
    return exists().where(topic_table.c.topic_id == topic_id, topic_table.c.deleted_at_ms.is_(None))


class _ClosedRow(NamedTuple):
    closed_because: str | None


_CLOSED_BECAUSE = RowStatement(
    _ClosedRow,
    select(topic_table.c.closed_because).where(
        topic_table.c.topic_id == bindparam("topic_id"), topic_table.c.deleted_at_ms.is_(None)
    ),
)
_IS_THERE = select(exists_with(bindparam("topic_id")))
_IS_IT = topic_table.c.topic_id == bindparam("of_topic")
_LOCK = select(topic_table.c.topic_id).where(_IS_IT).with_for_update()
_LOCK_AVAILABLE = select(topic_table.c.topic_id).where(_IS_IT).with_for_update(skip_locked=True)
_LITE_TOPICS = select(topic_table.c.lite_topics).where(_IS_IT)
_ADD_LITE_TOPICS = update(topic_table).where(_IS_IT).values(lite_topics=topic_table.c.lite_topics + bindparam("added"))
_existing = select(*(topic_table.c[name] for name in _TopicRow._fields)).where(topic_table.c.deleted_at_ms.is_(None))
_TOPIC = RowStatement(
    _TopicRow,
    _existing.where(topic_table.c.namespace == bindparam("in_namespace"), topic_table.c.name == bindparam("with_name")),
)
_TOPICS_BY_ID = RowStatement(
    _TopicRow, _existing.where(topic_table.c.topic_id.in_(bindparam("topic_ids", expanding=True)))
)
_NAMES_BY_ID = select(topic_table.c.topic_id, topic_table.c.namespace, topic_table.c.name).where(
    topic_table.c.topic_id.in_(bindparam("topic_ids", expanding=True))
)
_in_order = _existing.order_by(topic_table.c.namespace, topic_table.c.name)
_paged = _in_order.where(follows(topic_table)).limit(bindparam("limit"))
_PAGE = RowStatement(_TopicRow, _paged)
_PAGE_OF_ONE = RowStatement(_TopicRow, _paged.where(topic_table.c.namespace == bindparam("in_namespace")))
_NAMES = rows_parameter("names", text=("namespace", "name"))
_has_name = and_(_NAMES.c.namespace == topic_table.c.namespace, _NAMES.c.name == topic_table.c.name)
_NAMED_TOPICS = RowStatement(_TopicRow, _existing.join(_NAMES, _has_name))
