"""The lock of the catalog, conditions by the names of topics and groups, and the refusals for missing ones."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, Text, bindparam, func, select, text, tuple_

from popserver.database.dialect import dialect_of
from popserver.engine.transaction import LockOrder, Locks, Transaction
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, TopicNotFound
from popserver.model.group import Mode
from popserver.model.names import Resource

# Only one server at a time may change the catalog.


def lock(tx: Transaction) -> None:
    """Lock the catalog, and wait for other servers. So no topic gets queues while a group subscribes to it."""
    dialect_of(tx.conn).lock(tx.conn, _ONE_AT_A_TIME)


def lock_if_free(tx: Transaction) -> bool:
    """Lock the catalog without waiting. False if another server has locked it."""
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


def count(conn: Connection, table: Any, namespace: str | None) -> int:
    """How many topics or groups there are, in one namespace or (None) in all."""
    counted = select(func.count()).select_from(table).where(table.c.deleted_at_ms.is_(None))
    return conn.execute(counted if namespace is None else counted.where(table.c.namespace == namespace)).scalar_one()


def a_deleted_one(id_column: Any) -> Select[Any]:
    """A query that locks a deleted topic or group whose rows are not removed yet.

    It skips locked ones. So only one server removes the rows of each, and servers do not wait for each other.
    """
    deleted = select(id_column).where(id_column.table.c.deleted_at_ms.is_not(None)).limit(1)
    return deleted.with_for_update(skip_locked=True)


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
