"""The tests' own Postgres: it starts, hands out empty databases, and survives being killed."""

from __future__ import annotations

import psycopg

from tests.support.postgres import PostgresServer, fresh_database, postgres_server


def test_every_test_has_a_database_of_its_own(postgres: PostgresServer) -> None:
    with fresh_database(postgres) as one, fresh_database(postgres) as other:
        with psycopg.connect(one) as conn:
            conn.execute("CREATE TABLE only_here (i int)")
        with psycopg.connect(other) as conn:
            assert conn.execute("SELECT to_regclass('only_here')").fetchone() == (None,)


def test_a_killed_server_comes_back_with_what_was_committed() -> None:
    with postgres_server(own=True) as server, fresh_database(server) as url:
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute("CREATE TABLE kept (i int)")
            conn.execute("INSERT INTO kept VALUES (1)")
            killed = server.pid
            server.kill()
        server.restart()
        assert server.pid != killed
        with psycopg.connect(url) as conn:
            assert conn.execute("SELECT i FROM kept").fetchall() == [(1,)]
