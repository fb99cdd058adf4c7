"""Who may change what exists: one server at a time."""

from __future__ import annotations

from sqlalchemy import text

from popserver.store.dialect import dialect_of
from popserver.store.transaction import LockOrder, Locks, Transaction


def lock(tx: Transaction) -> None:
    """Wait until no other server changes what exists: none adds queues to a topic while a group meets it on another."""
    dialect_of(tx.conn).lock(tx.conn, _ONE_AT_A_TIME)


def lock_if_free(tx: Transaction) -> bool:
    """Keep what exists as it is until the transaction ends, unless another server is changing it; never waits."""
    return dialect_of(tx.conn).try_lock(tx.conn, _IF_FREE)


# What a request declares that may change what exists on its way.
CATALOG_LOCK = Locks(LockOrder.CATALOG, lambda tx, _: lock(tx), ("catalog",))
# Any number, as long as every server takes the same.
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(482851944568)")
_IF_FREE = text("SELECT pg_try_advisory_xact_lock(482851944568)")
