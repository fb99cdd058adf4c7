"""Memory: every verb is a plain function `(transaction, requests) → results` over SQLAlchemy Core.

Nothing here reads time or commits. Several requests of one kind travel in one call, so that one statement serves them
all; the writer calls the verbs of one transaction in `ORDER`, everywhere the same, so that two servers on one database
never wait for each other in a circle.
"""

from popserver.store import catalog, due, holds, messages, reading, receiving, retention
from popserver.store.database import Database

# Catalog, then queue counters, then progress, then deliveries.
ORDER = (
    catalog.create_topic,
    catalog.update_topic,
    catalog.delete_topic,
    catalog.create_group,
    catalog.update_group,
    catalog.delete_group,
    catalog.meet,
    messages.append,
    receiving.receive,
    holds.adopt,
    holds.change_invisible,
    holds.ack,
    holds.forward,
    holds.orphan,
    due.end_due,
    retention.retain,
    catalog.purge,
    reading.read,
)

__all__ = ["ORDER", "Database"]
