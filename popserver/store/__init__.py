"""Memory: every operation is a plain function `(transaction, requests) → results` over SQLAlchemy Core.

Nothing here reads time or commits. Several requests of one kind travel in one call, so that one statement serves them
all (`store.transaction`).
"""

from popserver.store.database import Database

__all__ = ["Database"]
