"""With a synchronous standby nothing is answered OK before the standby has it, whatever ends the wait."""

from __future__ import annotations

import asyncio

import psycopg

from popproto.v2 import definition_pb2 as pb
from tests.support.postgres import PostgresServer
from tests.support.raw_client import assert_says, raw_client
from tests.support.server_process import served
from tests.support.waiting import eventually

_WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = 'popmq' AND wait_event = 'SyncRep'"

# Said when a transaction commits.
_WARNING = """
CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE WARNING ''mind the gap''; RETURN NULL; END';
CREATE CONSTRAINT TRIGGER warns AFTER INSERT ON message DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION warn();
"""


async def test_a_wait_that_is_cancelled_is_not_ok(own_postgres: PostgresServer) -> None:
    """Postgres itself says OK then, with a warning; and shows the message to the request that repeats it."""
    async with served(own_postgres.url) as server, raw_client(server.endpoint) as client:
        assert (await client.send("before")).code == pb.OK
        own_postgres.let_commits_wait()
        sending = asyncio.create_task(client.send("m"))
        await eventually(lambda: _waits(own_postgres), "a commit that waits for a standby", within_s=30)
        while not sending.done():  # a heartbeat's commit may have waited first
            _execute(own_postgres, f"SELECT pg_cancel_backend(pid) FROM ({_WAITING}) AS waiting")
            await asyncio.sleep(0.1)
        assert_says(await sending, "with a warning", "repeat the request")
        again = asyncio.create_task(client.send("m"))
        await eventually(lambda: _waits(own_postgres), "the repeated one waits as well", within_s=30)
        assert not again.done()
        own_postgres.let_commits_pass()
        assert (await again).code == pb.OK
        assert set(await client.drain(2)) == {"before", "m"}


async def test_another_server_does_not_say_ok_either(own_postgres: PostgresServer) -> None:
    """It finds the message of a commit that nobody has waited for, and has nothing to write."""
    async with (
        served(own_postgres.url) as one,
        served(own_postgres.url) as other,
        raw_client(one.endpoint) as client,
        raw_client(other.endpoint) as repeating,
    ):
        for each in (client, repeating):  # the topic is known, and each has a connection that waited once
            assert (await each.send("before")).code == pb.OK
        own_postgres.let_commits_wait()
        sending = asyncio.create_task(client.send("m"))
        await eventually(lambda: _waits(own_postgres), "a commit that waits for a standby", within_s=30)
        while not sending.done():
            _execute(own_postgres, f"SELECT pg_terminate_backend(pid) FROM ({_WAITING}) AS waiting")
            await asyncio.sleep(0.1)
        assert (await sending).code == pb.INTERNAL_SERVER_ERROR
        again = asyncio.create_task(repeating.send("m"))
        await eventually(lambda: _waits(own_postgres), "a commit that waits for a standby", within_s=30)
        done, _ = await asyncio.wait({again}, timeout=1.0)
        assert not done
        own_postgres.let_commits_pass()
        assert (await again).code == pb.OK
        assert set(await client.drain(2)) == {"before", "m"}


async def test_a_warning_of_something_else_is_no_doubt(own_postgres: PostgresServer) -> None:
    async with served(own_postgres.url) as server, raw_client(server.endpoint) as client:
        assert (await client.send("before")).code == pb.OK
        _execute(own_postgres, _WARNING)
        assert (await client.send("m")).code == pb.OK


async def test_a_statement_timeout_does_not_end_the_wait(own_postgres: PostgresServer) -> None:
    _execute(own_postgres, "ALTER ROLE postgres SET statement_timeout = '200ms'")
    async with served(own_postgres.url) as server, raw_client(server.endpoint) as client:
        own_postgres.let_commits_wait()
        sending = asyncio.create_task(client.send("m"))
        await eventually(lambda: _waits(own_postgres), "a commit that waits for a standby", within_s=30)
        done, _ = await asyncio.wait({sending}, timeout=0.6)
        assert not done
        own_postgres.let_commits_pass()
        assert (await sending).code == pb.OK


async def _waits(postgres: PostgresServer) -> bool:
    with psycopg.connect(postgres.url) as conn:
        return conn.execute(_WAITING.encode()).fetchone() is not None


def _execute(postgres: PostgresServer, statement: str) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as conn:
        conn.execute("SET synchronous_commit = local")
        conn.execute(statement.encode())
