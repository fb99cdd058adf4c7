"""A store per test, once on each database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from popserver.database import migrate
from popserver.database.database import Database
from popserver.database.schema import metadata
from tests.support.open_store import OpenStore, open_store
from tests.support.postgres import PostgresServer, fresh_database


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    if request.param == "sqlite":
        with open_store(request.getfixturevalue("sqlite_url")) as opened:
            yield opened
    else:
        with emptied(request.getfixturevalue("postgres_database")) as opened:
            yield opened


@pytest.fixture(scope="session")
def postgres_database(postgres: PostgresServer) -> Iterator[Database]:
    """One database for all of these tests: emptying it is ten times cheaper than making another."""
    with fresh_database(postgres) as url:
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
        opened.conn.exec_driver_sql(f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY")
        opened.conn.close()
