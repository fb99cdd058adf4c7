"""A database that is emptied for each run: tables, connections and prepared statements are made once in a process.

In memory it is emptied down to the pages of a new one, because a disk that is full may not depend on earlier runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy.engine import make_url

from popserver.database import migrate
from popserver.database.database import Database
from popserver.database.schema import metadata
from tests.support.hostile_settings import alter

PAGES_MAX = 0xFFFFFFFE  # of a SQLite database
# A Postgres that says its disk is full at each INSERT, by the error that it has for that.
_DISK = """
DROP SCHEMA IF EXISTS simulation CASCADE;
CREATE SCHEMA simulation;
CREATE TABLE simulation.disk (is_full boolean);
INSERT INTO simulation.disk VALUES (false);
CREATE FUNCTION simulation.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT is_full FROM simulation.disk) THEN
        RAISE disk_full USING MESSAGE = 'could not extend file: No space left on device';
    END IF;
    RETURN NULL;
END $$
"""
_ON_DISK = """
CREATE TRIGGER disk BEFORE INSERT ON {name} FOR EACH STATEMENT EXECUTE FUNCTION simulation.refuse();
ALTER TABLE {name} ENABLE ALWAYS TRIGGER disk
"""
_FREE = "UPDATE simulation.disk SET is_full = false"


class Store:
    """The database of one run after the other."""

    def __init__(self, url: str = "sqlite://") -> None:
        self._url, self._name = url, make_url(url).database
        self.database = Database(url, durability="relaxed", own_process=True)
        self._is_full = False
        if self.database.is_memory:
            self._execute("PRAGMA auto_vacuum = INCREMENTAL")
        migrate.upgrade(self.database)
        if not self.database.is_memory:
            self._execute(_DISK)
            for name in metadata.tables:
                # Where a row lies decides between rows that are alike, and may not depend on when Postgres cleans up.
                self._execute(f"ALTER TABLE {name} SET (autovacuum_enabled = off)")
                self._execute(_ON_DISK.format(name=name))

    def surround(self, settings: Mapping[str, str]) -> None:
        """The database of Postgres has these settings for the connections to come, and no others."""
        if self.database.is_memory:
            return
        self._execute(f"ALTER DATABASE {self._name} RESET ALL")
        if settings:
            alter(self._url, "database", settings)

    def empty(self) -> None:
        """Remove all rows. No transaction may be open, except one that a run has left in memory."""
        self.free()
        if not self.database.is_memory:
            self.database.reading.dispose()  # the plans of a connection depend on what it has executed before
            self._execute(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY")
            return
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
        """The database cannot grow any more, as on a full disk."""
        if self._is_full:
            return
        if self.database.is_memory:
            pages = self._execute("PRAGMA page_count")
            self._is_full = self._execute(f"PRAGMA max_page_count = {pages}") == pages
        else:
            self._execute("UPDATE simulation.disk SET is_full = true")
            self._is_full = True

    def free(self) -> None:
        """It can grow again."""
        if self._is_full:
            self._is_full = False
            is_memory = self.database.is_memory
            self._execute(f"PRAGMA max_page_count = {PAGES_MAX}" if is_memory else _FREE)

    def _execute(self, words: str) -> int:
        """What a pragma answers; 0 without an answer."""
        with self.database.writing.connect() as conn:
            result = conn.exec_driver_sql(words)
            return int(result.scalar() or 0) if result.returns_rows else 0


@cache
def in_memory() -> Store:
    """The store in memory of this process."""
    return Store()
