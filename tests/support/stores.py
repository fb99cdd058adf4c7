"""A database that tests use one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from popserver.database.database import Database
from popserver.database.schema import metadata
from tests.support.open_store import OpenStore


@contextmanager
def emptied(database: Database) -> Iterator[OpenStore]:
    """A store on that database, whose schema is made; afterwards checked and empty again."""
    opened = OpenStore(database)
    try:
        yield opened
        opened.check()
    finally:
        opened.conn.exec_driver_sql(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY")
        opened.conn.close()
