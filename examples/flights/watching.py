"""The state in the database while the demo runs, read with plain SQL without the server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Lag(NamedTuple):
    """A group's row of the view `group_lag`, in messages."""

    stored: int = 0
    ready: int = 0
    inflight: int = 0
    waiting_retry: int = 0
    dead_letters: int = 0

    @property
    def committed(self) -> int:
        return self.stored - self.ready - self.inflight - self.waiting_retry - self.dead_letters

    def is_through(self, sent: int) -> bool:
        """Whether all `sent` messages have ended."""
        return self.committed + self.dead_letters == sent


class Database:
    """The server's SQLite file, opened read-only."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn

    def lag(self, group: str) -> Lag:
        query = f"SELECT {', '.join(Lag._fields)} FROM group_lag WHERE consumer_group = ?"
        row = self._conn.execute(query, (group,)).fetchone()
        return Lag(*row) if row else Lag()

    def held_by(self, client_id: str) -> int:
        """How many messages a client holds."""
        query = "SELECT count(*) FROM delivery WHERE client_id = ? AND state = 'INFLIGHT'"
        return int(self._conn.execute(query, (client_id,)).fetchone()[0])

    def taken(self) -> int:
        """How many redriven messages have been consumed."""
        query = "SELECT count(*) FROM lineage WHERE outcome = 'COMMIT'"
        return int(self._conn.execute(query).fetchone()[0])

    def rows(self, query: str) -> list[sqlite3.Row]:
        return self._conn.execute(query).fetchall()


@contextmanager
def looking_at(path: Path) -> Iterator[Database]:
    conn = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
    conn.row_factory = sqlite3.Row
    try:
        yield Database(conn)
    finally:
        conn.close()
