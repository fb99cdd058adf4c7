"""Answers that clients do not take."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from tests.support.running_broker import until
from tests.support.wire_server import CLIENT, LIMITS, WireServer, a_message, headers, opened, receive_request
from tests.transport.small_budgets import permissive

MIB = 1024 * 1024


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[WireServer]:
    async with opened(tmp_path, limits=LIMITS._replace(answer_ms=300, poll_ms_max=500)) as wire_server:
        yield wire_server


async def fill(wire_server: WireServer, count: int) -> None:
    for number in range(count):
        await wire_server.send(a_message(f"m{number}", body=bytes(MIB)))


async def inflight(wire_server: WireServer) -> int:
    query = "SELECT count(*) FROM delivery WHERE state = 'INFLIGHT' AND holder <> 'ORPHAN'"
    return int(await wire_server.broker.engine.reader.read(lambda conn: conn.exec_driver_sql(query).scalar_one()))


async def test_who_does_not_read_is_given_up_and_loses_nothing(impatient: WireServer) -> None:
    wire_server, budget = impatient, impatient.broker.engine.budgets["undelivered"]
    await fill(wire_server, 8)
    async with wire_server.small_window() as channel:
        stub = MessagingServiceStub(channel)
        calls = [stub.ReceiveMessage(receive_request(), metadata=headers(f"c{number}", {})) for number in range(4)]
        await until(lambda: budget.used >= 4 * MIB)
        assert budget.used <= 8 * MIB
        async with asyncio.timeout(60):
            while await inflight(wire_server):  # noqa: ASYNC110 - the database has no event
                await asyncio.sleep(0.02)
        for call in calls:
            call.cancel()
    await until(lambda: budget.used == 0)


async def test_a_read_answer_ends_its_use_of_the_budget(impatient: WireServer) -> None:
    await fill(impatient, 3)
    budget = impatient.broker.engine.budgets["undelivered"]
    assert len(await impatient.receive()) == 3
    await until(lambda: budget.used == 0)
    assert budget.peak == 3 * MIB


async def test_a_receive_without_room_waits_and_is_refused_at_its_polling_time(impatient: WireServer) -> None:
    await fill(impatient, 1)
    budget = impatient.broker.engine.budgets["undelivered"]
    impatient.broker.engine.undelivered.carry(budget.limit)
    (refused,) = await impatient.statuses("ReceiveMessage", receive_request(poll_ms=300))
    assert refused.code == pb.TOO_MANY_REQUESTS
    assert "--max-undelivered" in refused.message
    assert budget.refused == 1
    waiting = asyncio.create_task(impatient.receive(poll_ms=500))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    impatient.broker.engine.undelivered.carried(budget.limit)
    assert len(await waiting) == 1


async def test_the_connection_of_who_does_not_read_ends(tmp_path: Path) -> None:
    """In the mode in which the front stands between: what gRPC still holds for it goes at once."""
    async with opened(
        tmp_path, limits=LIMITS._replace(answer_ms=300, poll_ms_max=500), listening=permissive(tmp_path)
    ) as wire_server:
        await fill(wire_server, 4)
        budget = wire_server.broker.engine.budgets["undelivered"]
        async with wire_server.small_window() as channel:
            call: Any = MessagingServiceStub(channel).ReceiveMessage(receive_request(), metadata=headers(CLIENT, {}))
            await until(lambda: budget.used >= 4 * MIB)
            await until(lambda: budget.used == 0)
            async with asyncio.timeout(30):
                assert await call.code() is grpc.StatusCode.UNAVAILABLE
