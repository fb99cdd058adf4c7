"""A URL whose hosts are different databases is refused, at the start or when the second one is reached."""

from __future__ import annotations

import psycopg
import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.database.database import Database
from popserver.model.errors import StoreUnavailable
from tests.support.postgres import PostgresServer
from tests.support.raw_client import assert_says, raw_client
from tests.support.server_process import refused, served
from tests.support.waiting import eventually


def test_at_the_start(own_postgres: PostgresServer, other_postgres: PostgresServer) -> None:
    done = refused(_both(own_postgres, other_postgres))
    assert done.returncode == 1
    assert "are different databases" in done.stderr
    assert "the primary and its standbys" in done.stderr
    with psycopg.connect(other_postgres.url) as conn:
        assert conn.execute("SELECT to_regclass('message')").fetchone() == (None,), "nothing is made in it"


async def test_when_the_second_one_is_reached(own_postgres: PostgresServer, other_postgres: PostgresServer) -> None:
    other_postgres.stop()
    async with served(_both(own_postgres, other_postgres)) as server, raw_client(server.endpoint) as client:
        assert (await client.send("m")).code == pb.OK
        other_postgres.restart()
        own_postgres.stop()

        async def is_refused() -> bool:
            return "different databases" in (await client.send("n")).message

        await eventually(is_refused, "the refusal", within_s=60)
        own_postgres.restart()

        async def is_back() -> bool:
            return (await client.send("n")).code == pb.OK

        await eventually(is_back, "a send that is OK", within_s=60)
        assert set(await client.drain(2)) == {"m", "n"}


async def test_a_session_that_became_read_only_is_left(own_postgres: PostgresServer) -> None:
    async with served(own_postgres.url) as server, raw_client(server.endpoint) as client:
        assert (await client.send("m")).code == pb.OK
        with psycopg.connect(own_postgres.url, autocommit=True) as conn:
            conn.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            conn.execute("SELECT pg_reload_conf()")

        async def is_refused() -> bool:
            return (await client.send("n")).code != pb.OK

        await eventually(is_refused, "a refusal", within_s=60)
        assert_says(await client.send("n"), "read-only", "repeat")
        with psycopg.connect(own_postgres.url, autocommit=True) as conn:
            conn.execute("SET default_transaction_read_only = off")
            conn.execute("ALTER SYSTEM RESET default_transaction_read_only")
            conn.execute("SELECT pg_reload_conf()")

        async def is_back() -> bool:
            return (await client.send("n")).code == pb.OK

        await eventually(is_back, "a send that is OK", within_s=60)


def test_a_standby_alone_is_no_database_for_a_server(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url, autocommit=True) as conn:
        conn.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        conn.execute("SELECT pg_reload_conf()")
    with pytest.raises(StoreUnavailable, match="read-only"):
        Database(own_postgres.url).connect_writer()


def _both(one: PostgresServer, other: PostgresServer) -> str:
    return f"postgresql://postgres@127.0.0.1:{one._port},127.0.0.1:{other._port}/postgres"
