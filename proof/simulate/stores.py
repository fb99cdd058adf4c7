"""A database that is emptied for each run: tables, connections and prepared statements are made once in a process.

In memory it is emptied down to the pages of a new one, because a disk that is full may not depend on earlier runs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from popserver.database import migrate
from popserver.database.database import Database
from popserver.database.schema import metadata

PAGES_MAX = 0xFFFFFFFE  # of a SQLite database


class Store:
    """The database of one run after the other."""

    def __init__(self, url: str = "sqlite://") -> None:
        self.database = Database(url, durability="relaxed", own_process=True)
        self._is_full = False
        if self.database.is_memory:
            self._execute("PRAGMA auto_vacuum = INCREMENTAL")
        migrate.upgrade(self.database)
        if not self.database.is_memory:
            # Where a row lies decides between rows that are alike, and may not depend on when Postgres cleans up.
            for name in metadata.tables:
                self._execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")

    def empty(self) -> None:
        """Remove all rows. No transaction may be open, except one that a run has left in memory."""
        if not self.database.is_memory:
            self.database.reading.dispose()  # the plans of a connection depend on what it has executed before
            self._execute(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY")
            return
        self.free()
        with self.database.writing.connect() as conn:
            if not self.database.has_rolled_back(conn):
                conn.exec_driver_sql("ROLLBACK")
            self.database.begin(conn)
            for table in (*metadata.tables, "sqlite_sequence"):
                conn.exec_driver_sql(f"DELETE FROM {table}")
            conn.exec_driver_sql("COMMIT")
            driver: Any = conn.connection.dbapi_connection
            driver.execute("PRAGMA incremental_vacuum").fetchall()  # each fetch removes a page

    def close(self) -> None:
        self.database.close()

    @property
    def is_full(self) -> bool:
        return self._is_full

    def fill(self) -> None:
        """The database in memory cannot grow any more, as on a full disk; on Postgres nothing happens."""
        if self.database.is_memory and not self._is_full:
            pages = self._execute("PRAGMA page_count")
            self._is_full = self._execute(f"PRAGMA max_page_count = {pages}") == pages

    def free(self) -> None:
        """It can grow again."""
        if self._is_full:
            self._is_full = False
            self._execute(f"PRAGMA max_page_count = {PAGES_MAX}")

    def _execute(self, words: str) -> int:
        """What a pragma answers; 0 without an answer."""
        with self.database.writing.connect() as conn:
            result = conn.exec_driver_sql(words)
            return int(result.scalar() or 0) if result.returns_rows else 0


@cache
def in_memory() -> Store:
    """The store in memory of this process."""
    return Store()
