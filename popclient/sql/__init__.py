"""popclient.sql: messages in your own database transaction, with SQLAlchemy.

`enqueue` sends a message if, and only if, your transaction commits; `ack` is committed together with your writes, or
rolled back with them. If the broker keeps its state in the same Postgres, each is one SQL function. Any other database
gets an outbox table, which `Relay` (or `popmq relay`, or `popclient.aio.Relay`) empties. `idempotent` records which
messages a consumer has done.

    from popclient import sql

    with Session.begin() as session:
        session.add(Order(number=42))
        sql.enqueue(session, "orders", b"42", keys="42")

Every function takes a Session or a Connection. With an AsyncSession or an AsyncConnection, await the result. Needs
SQLAlchemy: pip install 'popmq[sql]'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popclient.errors import HoldLost, OutOfOrder, UnsupportedByStore
from popclient.sql.in_transaction import ack, enqueue
from popclient.sql.once import first_time, forget_processed, idempotent
from popclient.sql.tables import metadata, outbox, processed

if TYPE_CHECKING:
    from popclient._sync.relay import Relay
else:

    def __getattr__(name: str) -> object:
        """The relay is loaded when first named: it is made of this package."""
        if name != "Relay":
            raise AttributeError(f"module 'popclient.sql' has no attribute {name!r}")
        from popclient._sync.relay import Relay

        return Relay

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


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
