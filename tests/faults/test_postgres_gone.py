"""Postgres goes away and comes back under a running server: clear answers meanwhile, and no restart."""

from __future__ import annotations

import asyncio
import time

from popproto.v2 import definition_pb2 as pb
from tests.support.postgres import fresh_database, postgres_server
from tests.support.raw_client import assert_says, raw_client
from tests.support.server_process import served
from tests.support.waiting import eventually

RECOVERY_S = 60.0
ANSWER_S = 20.0  # three calls; one that waits for a connection takes longer


async def test_clear_answers_and_recovery() -> None:
    with postgres_server(own=True) as postgres, fresh_database(postgres) as url:
        async with served(url) as server, raw_client(server.endpoint) as client:
            assert (await client.send("held")).code == pb.OK
            _, held = await client.receive()
            assert (await client.send("before")).code == pb.OK
            postgres.kill()
            for _ in range(3):
                began = time.monotonic()
                assert_says(await client.send("meanwhile"), "the database does not answer", "check that it runs")
                status, messages = await client.receive()
                assert_says(status, "the database does not answer")
                assert "postgresql://" not in status.message, "callers do not see where it is"
                assert not messages
                assert_says((await client.ack(*held))[0], "the database does not answer")
                assert time.monotonic() - began < ANSWER_S
            assert (await client.route()).code == pb.OK
            await asyncio.to_thread(postgres.restart)

            async def is_back() -> bool:
                return (await client.send("after")).code == pb.OK

            await eventually(is_back, "a send that is OK", within_s=RECOVERY_S)
            assert server.is_running
            assert [status.code for status in await client.ack(*held)] == [pb.OK]
            assert set(await client.drain(2)) == {"before", "after"}
            assert await server.stop() == 0


async def test_a_poll_that_waits_outlives_it() -> None:
    with postgres_server(own=True) as postgres, fresh_database(postgres) as url:
        async with served(url) as server, raw_client(server.endpoint) as client:
            assert (await client.send("first")).code == pb.OK
            assert await client.drain(1)
            waiting = asyncio.create_task(client.receive())
            await asyncio.sleep(0.2)
            postgres.kill()
            await asyncio.to_thread(postgres.restart)
            assert (await client.send("second")).code == pb.OK
            _, messages = await waiting
            assert [each.system_properties.message_id for each in messages] == ["second"]
