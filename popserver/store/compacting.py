"""Giving back the space that removed messages have left in a SQLite file; while no server runs."""

from __future__ import annotations

from popserver.domain.errors import StoreUnavailable
from popserver.store.database import Database, said_plainly


def compact(database: Database) -> tuple[int, int]:
    """Write the file anew without its free pages; its size before and after, in bytes.

    Raises `StoreUnavailable` for a Postgres, and `StoreFull` where there is no room for the new copy: then the file is
    as it was.
    """
    file = database.file
    if file is None:
        raise StoreUnavailable(f"{database.name} is no SQLite file; Postgres reuses free space by itself (autovacuum)")
    with said_plainly(database.name), database.connect_writer() as conn:
        # First: what stands in the WAL alone counts as well.
        conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        before = file.stat().st_size
        conn.exec_driver_sql("VACUUM")
        conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return before, file.stat().st_size
