"""A database that tests use one after the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from popserver.database import migrate
from popserver.database.database import Database
from popserver.database.schema import metadata
from tests.support.open_store import OpenStore
from tests.support.postgres import TEMPLATE_VARIABLE, PostgresServer, fresh_database


@contextmanager
def a_database(server: PostgresServer) -> Iterator[Database]:
    """A database with an empty store."""
    with fresh_database(server, like=os.environ.get(TEMPLATE_VARIABLE, "")) as url:
        database = Database(url, durability="relaxed")
        migrate.upgrade(database)
        yield database
        database.close()


@contextmanager
def emptied(database: Database) -> Iterator[OpenStore]:
    """A store on that database, whose schema is made; afterwards checked and empty again."""
    opened = OpenStore(database)
    try:
        yield opened
        opened.check()
    finally:
        # Only what has been written: Postgres makes new files for each table that it truncates.
        used = opened.conn.exec_driver_sql(_USED, (list(metadata.tables),)).scalars().all()
        if used:
            opened.conn.exec_driver_sql(f"TRUNCATE {', '.join(used)} RESTART IDENTITY")
        opened.conn.close()


_USED = "SELECT relname FROM pg_class WHERE relname = ANY(%s) AND relkind = 'r' AND pg_relation_size(oid) > 0"
