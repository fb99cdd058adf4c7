"""popclient.sql: messages in your own database transaction, with SQLAlchemy.

`enqueue` sends a message if, and only if, your transaction commits; `ack` ends a message's hold together with your
writes, or rolls both back. Where the broker keeps its state in the same Postgres both are one SQL function each; any
other database gets an outbox table, which `Relay` (or `popmq relay`) empties. `idempotent` remembers what a consumer
has done already.

    from popclient import sql

    with Session.begin() as session:
        session.add(Order(number=42))
        sql.enqueue(session, "orders", b"42", keys="42")

Every function takes a Session or a Connection, or an AsyncSession or an AsyncConnection: then await the result. Needs
SQLAlchemy: pip install 'popmq[sql]'.
"""

from __future__ import annotations

from popclient.errors import HoldLost, OutOfOrder, UnsupportedByStore
from popclient.sql.acking import ack
from popclient.sql.enqueueing import enqueue
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
