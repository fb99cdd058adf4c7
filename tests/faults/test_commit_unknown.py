"""The connection breaks during a COMMIT: the server says that it does not know, and a repetition is safe."""

from __future__ import annotations

import asyncio

import pytest

from popproto.v2 import definition_pb2 as pb
from tests.faults.commit_proxy import CommitProxy, Cut, line_to
from tests.support.final_state import looking, unfinished
from tests.support.raw_client import TOPIC, RawClient, assert_says, raw_client
from tests.support.server_process import served
from tests.support.waiting import eventually


@pytest.mark.parametrize("where", Cut)
async def test_a_send(postgres_url: str, where: Cut) -> None:
    async with line_to(postgres_url) as (line, url), served(url) as server, raw_client(server.endpoint) as client:
        assert (await client.send("before")).code == pb.OK
        await _unknown(client, line, where, "m")
        assert (await client.send("m")).code == pb.OK
        assert (await client.send("m")).code == pb.OK
        assert set(await client.drain(2)) == {"before", "m"}
        assert _left(postgres_url) == 0


async def test_what_was_stored_all_the_same_reaches_a_waiting_poll(postgres_url: str) -> None:
    async with line_to(postgres_url) as (line, url), served(url) as server, raw_client(server.endpoint) as client:
        assert (await client.send("before")).code == pb.OK
        assert await client.drain(1)
        waiting = asyncio.create_task(client.receive())
        await asyncio.sleep(0.2)
        await _unknown(client, line, Cut.AFTER, "m")
        _, messages = await waiting
        assert [each.system_properties.message_id for each in messages] == ["m"]


async def test_an_ack(postgres_url: str) -> None:
    async with line_to(postgres_url) as (line, url), served(url) as server, raw_client(server.endpoint) as client:
        assert (await client.send("m")).code == pb.OK
        _, messages = await client.receive()
        line.cut_next(Cut.AFTER)
        assert_says((await client.ack(*messages))[0], "unknown")
        assert [status.code for status in await client.ack(*messages)] == [pb.OK]
        assert _left(postgres_url) == 0


async def test_a_receive(postgres_url: str) -> None:
    """The hold nobody knows of is withdrawn, however long it was to be; its attempt does not count."""
    async with line_to(postgres_url) as (line, url), served(url) as server, raw_client(server.endpoint) as client:
        assert (await client.send("before")).code == pb.OK
        # Now the group is there: the next commit is the grant's.
        assert await client.drain(1)
        assert (await client.send("m")).code == pb.OK
        line.cut_next(Cut.AFTER)
        status, messages = await client.receive()
        assert_says(status, "unknown")
        assert not messages

        async def comes_back() -> bool:
            _, again = await client.receive()
            return [each.system_properties.delivery_attempt for each in again] == [1]

        await eventually(comes_back, "the first attempt that counts", within_s=5)


async def _unknown(client: RawClient, line: CommitProxy, where: Cut, message_id: str) -> None:
    line.cut_next(where)
    assert_says(await client.send(message_id), "during a commit", "unknown", "not stored twice")
    assert line.has_cut.is_set()


def _left(database_url: str) -> int:
    """What is still to be consumed, by the database's own account."""
    with looking(database_url) as conn:
        return unfinished(conn, TOPIC.name)
