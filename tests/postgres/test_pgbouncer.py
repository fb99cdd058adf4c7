"""PgBouncer in front of Postgres: in session mode all works; transaction and statement mode are refused."""

from __future__ import annotations

import asyncio

import pytest

from popproto.v2 import definition_pb2 as pb
from tests.support.knocking import knocking
from tests.support.pgbouncer import pgbouncer
from tests.support.server_process import refused, served


async def test_two_servers_in_session_mode(postgres_url: str) -> None:
    with pgbouncer(postgres_url, "session") as url:
        async with served(url) as one, served(url) as other:
            async with knocking(one.endpoint) as client, knocking(other.endpoint) as sender:
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


@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_other_modes_are_refused(postgres_url: str, mode: str) -> None:
    with pgbouncer(postgres_url, mode) as url:
        done = refused(url)
    assert done.returncode == 1
    assert "pool_mode=session" in done.stderr, done.stderr
    assert "name Postgres itself" in done.stderr
