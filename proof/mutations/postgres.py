"""One Postgres for all forks of a room whose tests use it, so that no fork has to start one.

The tests find it by the variable with which a machine names its own. Each fork makes databases whose names have its
process id; the host drops what an ended fork leaves. This module imports nothing of the project that is mutated.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import psycopg
from psycopg import sql

from tests.support.postgres import (
    TEMPLATE_VARIABLE,
    URL_VARIABLE,
    database_names,
    fresh_database,
    postgres_server,
)

_LEFT = "SELECT datname FROM pg_database WHERE datname LIKE %s"


@contextmanager
def shared_postgres() -> Iterator[None]:
    """Tests of this process and of its forks use a Postgres that ends afterwards, and copy an empty store of it.

    The store is empty in each sense until a fork has called `make_template`.
    """
    with (
        postgres_server() as server,
        fresh_database(server) as template,
        mock.patch.dict(os.environ, {URL_VARIABLE: server.url, TEMPLATE_VARIABLE: template}),
    ):
        yield


def make_template() -> int:
    """In a fork: give the database that others copy its schema. Returns the exit code."""
    from popserver.database import migrate
    from popserver.database.database import Database

    database = Database(os.environ[TEMPLATE_VARIABLE])
    migrate.upgrade(database)
    database.close()
    return 0


def drop_databases(pid: int) -> None:
    """Drop the databases that the tests of an ended process have left, whoever is still connected to them."""
    with psycopg.connect(os.environ[URL_VARIABLE], autocommit=True, connect_timeout=60) as conn:
        for (name,) in conn.execute(_LEFT, (database_names(pid).replace("_", r"\_") + "%",)).fetchall():
            conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
