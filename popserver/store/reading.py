"""Looking, inside the writer's transaction: for a database in memory, which has no second connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection

from popserver.domain.errors import PopError
from popserver.store.transaction import Transaction


def read(tx: Transaction, looks: Sequence[Callable[[Connection], Any]]) -> list[Any | PopError]:
    """What each look finds; a look that finds nothing of that name raises, and is the only one to fail."""
    return [_look(tx.conn, look) for look in looks]


def _look(conn: Connection, look: Callable[[Connection], Any]) -> Any | PopError:
    try:
        return look(conn)
    except PopError as error:
        return error
