"""popclient.sql: messages in your own database transaction, with SQLAlchemy.

`enqueue` sends a message if, and only if, your transaction commits; `ack` is committed together with your writes, or
rolled back with them. If the broker keeps its state in the same Postgres, each is one SQL function. Any other database
gets an outbox table, which `Relay` (or `popmq relay`) empties. `idempotent` records which messages a consumer has done.

    from popclient import sql

    with Session.begin() as session:
        session.add(Order(number=42))
        sql.enqueue(session, "orders", b"42", keys="42")

Every function takes a Session or a Connection. With an AsyncSession or an AsyncConnection, await the result. Needs
SQLAlchemy: pip install 'popmq[sql]'.
"""

from __future__ import annotations

from popclient.errors import HoldLost, OutOfOrder, UnsupportedByStore
from popclient.sql.in_transaction import ack, enqueue
from popclient.sql.once import first_time, forget_processed, idempotent
from popclient.sql.relay import Relay
from popclient.sql.tables import metadata, outbox, processed

__all__ = [
    "HoldLost",
    "OutOfOrder",
    "Relay",
    "UnsupportedByStore",
    "ack",
    "enqueue",
    "first_time",
    "forget_processed",
    "idempotent",
    "metadata",
    "outbox",
    "processed",
]
