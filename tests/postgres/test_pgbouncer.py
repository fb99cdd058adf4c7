"""PgBouncer in front of Postgres: in session mode all works; transaction and statement mode are refused."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from sqlalchemy.engine import make_url

from popproto.v2 import definition_pb2 as pb
from tests.postgres.pgbouncer import pgbouncer
from tests.support.postgres import PostgresServer
from tests.support.raw_client import raw_client
from tests.support.server_process import refused, served
from tests.support.standby import standby_of
from tests.support.waiting import eventually


async def test_two_servers_in_session_mode(postgres_url: str) -> None:
    with pgbouncer(postgres_url, "session") as url:
        async with served(url) as one, served(url) as other:
            async with raw_client(one.endpoint) as client, raw_client(other.endpoint) as sender:
                for number in range(10):  # often enough for the driver to prepare its statements
                    assert (await client.send(f"m{number}")).code == pb.OK
                assert len(await client.drain(10)) == 10
                waiting = asyncio.create_task(client.receive(poll_ms=20_000))
                await asyncio.sleep(0.2)
                assert (await sender.send("told by a notification")).code == pb.OK
                _, messages = await waiting
                assert [each.system_properties.message_id for each in messages] == ["told by a notification"]
            assert await other.stop() == 0
            assert await one.stop() == 0


async def test_a_pooler_that_met_its_host_as_a_standby(own_postgres: PostgresServer) -> None:
    """It goes on saying so after a failover."""
    with standby_of(own_postgres) as standby:
        with pgbouncer(own_postgres.url, "session") as before, pgbouncer(standby.url, "session") as after:
            hosts = ",".join(f"127.0.0.1:{make_url(url).port}" for url in (after, before))
            async with (
                served(f"postgresql://postgres@{hosts}/postgres") as server,
                raw_client(server.endpoint) as client,
            ):
                assert (await client.send("before")).code == pb.OK
                own_postgres.kill()
                with psycopg.connect(standby.url, autocommit=True) as conn:
                    conn.execute("SELECT pg_promote()")
                with pytest.raises(psycopg.OperationalError, match="read-only"):
                    psycopg.connect(after, target_session_attrs="read-write")

                async def is_back() -> bool:
                    return (await client.send("after")).code == pb.OK

                await eventually(is_back, "a send that is OK", within_s=60)
        own_postgres.restart()


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_other_modes_are_refused(postgres_url: str, mode: str) -> None:
    with pgbouncer(postgres_url, mode) as url:
        done = refused(url)
    assert done.returncode == 1
    assert "pool_mode=session" in done.stderr, done.stderr
    assert "name Postgres itself" in done.stderr
