"""Message queues of topics, the lock on the catalog, and the refusals for missing topics and groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Text, bindparam, insert, select, text, tuple_

from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.newest import newest_queues
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import queue
from popserver.engine.transaction import LockOrder, Locks, Transaction
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, TopicNotFound
from popserver.model.group import Mode
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue


class QueueRow(NamedTuple):
    """A queue of a topic, with its offsets."""

    topic_id: int
    queue_id: int
    number: int
    min_offset: int
    next_offset: int


def insert_queues(tx: Transaction, topic_id: int, numbers: Iterable[int]) -> None:
    rows = [{"topic_id": topic_id, "number": number, "min_offset": 0, "next_offset": 0} for number in numbers]
    tx.conn.execute(insert(queue), rows)


def queue_rows(conn: Connection, topic_id: int) -> list[QueueRow]:
    """The topic's queues, sorted by number."""
    return queue_rows_of_several(conn, [topic_id]).get(topic_id, [])


def queue_rows_of_several(conn: Connection, topic_ids: Collection[int]) -> dict[int, list[QueueRow]]:
    """The queues of several topics, by topic id."""
    return _by_topic(_QUEUES.of(conn).rows(conn, {"topics": encode_column(topic_ids)}))


def all_queue_rows(conn: Connection) -> dict[int, list[QueueRow]]:
    """The queues of every topic, including deleted ones, by topic id."""
    return _by_topic(_ALL_QUEUES.rows(conn, {}))


def message_queues(rows: Iterable[QueueRow]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(row.queue_id, row.number) for row in rows)


def _by_topic(rows: Iterable[QueueRow]) -> dict[int, list[QueueRow]]:
    queues: dict[int, list[QueueRow]] = {}
    for row in rows:
        queues.setdefault(row.topic_id, []).append(row)
    return queues


_TOPICS = rows_parameter("topics", "topic_id")
_EVERY = select(*(queue.c[name] for name in QueueRow._fields)).order_by(queue.c.number)


def _queues(dialect: Dialect) -> RowStatement[QueueRow]:
    if not dialect.has_other_writers:
        return RowStatement(QueueRow, _EVERY.where(queue.c.topic_id.in_(select(_TOPICS.c.topic_id))))
    found = newest_queues(_TOPICS, QueueRow._fields)
    return RowStatement(QueueRow, select(*(found.c[name] for name in QueueRow._fields)).order_by(found.c.number))


_QUEUES = PerDialect(_queues)
_ALL_QUEUES = RowStatement(QueueRow, _EVERY)


# Only one server at a time may change the catalog.


def lock(tx: Transaction) -> None:
    """Wait until no other server changes the catalog. So no topic gets queues while a group subscribes to it."""
    dialect_of(tx.conn).lock(tx.conn, _ONE_AT_A_TIME)


def lock_if_free(tx: Transaction) -> bool:
    """Take the same lock without waiting. False if another server holds it."""
    return dialect_of(tx.conn).try_lock(tx.conn, _IF_FREE)


# For requests that may change the catalog.
CATALOG_LOCK = Locks(LockOrder.CATALOG, lambda tx, _: lock(tx), ("catalog",))
# The number is arbitrary, but all servers must use the same.
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(482851944568)")
_IF_FREE = text("SELECT pg_try_advisory_xact_lock(482851944568)")


def is_named(table: Any, name: Resource) -> tuple[Any, ...]:
    """The conditions that find the topic or group of that name in the table."""
    return table.c.namespace == name.namespace, table.c.name == name.name, table.c.deleted_at_ms.is_(None)


def follows(table: Any) -> ColumnElement[bool]:
    """The condition for a page of topics or groups by namespace and name: those after the last of the page before."""
    last = tuple_(bindparam("after_namespace", type_=Text), bindparam("after_name", type_=Text))
    return tuple_(table.c.namespace, table.c.name) > last


def page_names(namespace: str | None, after: Resource | None, limit: int) -> dict[str, Any]:
    """The parameters for a page: after this name, in one namespace or (None) in all."""
    last = after or Resource(namespace or "", "")
    names = {"after_namespace": last.namespace, "after_name": last.name, "limit": limit}
    return names if namespace is None else names | {"in_namespace": namespace}


def topic_not_found(name: Resource, options: str = "") -> TopicNotFound:
    """`options`: those of `popmq topic create` that the topic needs."""
    return TopicNotFound(
        f"topic '{name}' does not exist; create it with: popmq topic create {as_typed(name)}{options}, or see popmq"
        " topic list"
    )


def group_not_found(name: Resource) -> ConsumerGroupNotFound:
    return ConsumerGroupNotFound(
        f"consumer group '{name}' does not exist; create it with: popmq group create {as_typed(name)},"
        " or see popmq group list"
    )


def of_another_mode(name: Resource, mode: Mode) -> BadRequest:
    return BadRequest(f"consumer group '{name}' consumes in mode {mode}, fixed at its first use; use another group")


def as_typed(name: Resource) -> str:
    return f"{name.name} --namespace {name.namespace}" if name.namespace else name.name
