"""The server as a whole: health, reflection, one port of its own, and how it leaves."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.model.budget import Budget
from popserver.model.errors import CannotListen
from popserver.services.server import build
from popserver.transport.limits import CallLimits
from popserver.transport.listen import address_of
from tests.support.waiting import eventually
from tests.support.wire_server import (
    LIMITS,
    TOPIC,
    VERSION,
    WireServer,
    a_message,
    headers,
    opened,
    parked,
    receive_request,
)

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING


async def reflected(wire_server: WireServer, request: ServerReflectionRequest) -> ServerReflectionResponse:
    call = ServerReflectionStub(wire_server.channel).ServerReflectionInfo()
    await call.write(request)
    await call.done_writing()
    answer: ServerReflectionResponse = await call.read()
    return answer


async def test_reflection_lists_every_service_and_knows_it(wire_server: WireServer) -> None:
    answer = await reflected(wire_server, ServerReflectionRequest(list_services=""))
    listed = {service.name for service in answer.list_services_response.service}
    assert {"apache.rocketmq.v2.MessagingService", "grpc.health.v1.Health"} <= listed
    for name in listed:
        known = await reflected(wire_server, ServerReflectionRequest(file_containing_symbol=name))
        assert known.file_descriptor_response.file_descriptor_proto, name


async def test_an_address_gets_half_of_the_health_watches(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=LIMITS._replace(watches_max=4)) as wire_server:
        health = HealthStub(wire_server.channel)
        watches = [health.Watch(HealthCheckRequest()) for _ in range(2)]
        for watch in watches:
            assert (await watch.read()).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await health.Watch(HealthCheckRequest()).read()
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "--max-watches" in str(refused.value.details())
        assert (await health.Check(HealthCheckRequest())).status == SERVING
        budget = wire_server.broker.engine.budgets["health watches"]
        assert (budget.used, budget.refused) == (2, 1)
        watches[0].cancel()
        await eventually(partial(_is_used, budget, 1), "room for a watch", within_s=30)
        assert (await health.Watch(HealthCheckRequest()).read()).status == SERVING
        watches[1].cancel()


async def test_an_address_gets_half_of_the_reflection_streams(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=LIMITS._replace(watches_max=2)) as wire_server:
        looks = ServerReflectionStub(wire_server.channel).ServerReflectionInfo()
        await looks.write(ServerReflectionRequest(list_services=""))
        await looks.read()
        # Nothing is written: a write that meets the refusal is an internal error of gRPC.
        refused = ServerReflectionStub(wire_server.channel).ServerReflectionInfo()
        assert await refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        await looks.done_writing()
        assert await looks.read() is grpc.aio.EOF
        await reflected(wire_server, ServerReflectionRequest(list_services=""))


async def test_what_is_no_question_to_health_is_refused(wire_server: WireServer) -> None:
    check: Any = wire_server.channel.unary_unary("/grpc.health.v1.Health/Check")
    for data in (b"\xff\xff", bytes(100_000)):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await check(data)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert (await HealthStub(wire_server.channel).Check(HealthCheckRequest())).status == SERVING


async def _is_used(budget: Budget, amount: int) -> bool:
    return budget.used == amount


async def test_a_taken_port_is_said_plainly(wire_server: WireServer) -> None:
    with pytest.raises(CannotListen) as refused:
        build(wire_server.broker, host="127.0.0.1", port=wire_server.server.port, limits=LIMITS, version=VERSION)
    assert f"127.0.0.1:{wire_server.server.port}" in refused.value.sentence
    assert "--port" in refused.value.sentence


async def test_an_ipv6_address_stands_in_brackets(wire_server: WireServer) -> None:
    assert wire_server.server.address == f"127.0.0.1:{wire_server.server.port}"
    assert address_of("::1", 8081) == "[::1]:8081"


async def test_draining_answers_and_lets_go(tmp_path: Path) -> None:
    """Health first, parked polls empty, streams ended well, and no later than the time allowed."""
    async with opened(tmp_path, limits=CallLimits()) as wire_server, wire_server.telemetry() as stream:
        await stream.write(wire.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER)))
        await stream.read()
        watch = HealthStub(wire_server.channel).Watch(HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        poll = asyncio.create_task(wire_server.statuses("ReceiveMessage", receive_request(poll_ms=20_000)))
        await parked(wire_server)
        drained = asyncio.create_task(wire_server.server.drain(600))
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()
        (status,) = await poll
        assert status.code == pb.MESSAGE_NOT_FOUND
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK
        await asyncio.wait_for(drained, 60)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await wire_server.stub.QueryRoute(wire.QueryRouteRequest(topic=TOPIC), metadata=headers("c", {}), timeout=5)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_was_taken_in_is_finished_and_nothing_else(tmp_path: Path) -> None:
    """Of calls that come while the server leaves, each is either stored and said to be, or neither."""
    async with opened(tmp_path) as wire_server:
        sends = [asyncio.create_task(wire_server.send(a_message(f"m{number}"))) for number in range(20)]
        await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait_for(wire_server.server.drain(600), 60)
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        stored = [each for each in outcomes if isinstance(each, wire.SendMessageResponse)]
        refused = [each for each in outcomes if isinstance(each, grpc.aio.AioRpcError)]
        assert len(stored) + len(refused) == 20
        assert {each.status.code for each in stored} == {pb.OK}
        assert {each.code() for each in refused} <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        count = await wire_server.broker.engine.reader.read(
            lambda conn: conn.exec_driver_sql("SELECT count(*) FROM message").scalar()
        )
        assert count == len(stored)


async def test_no_call_of_a_burst_is_dropped(wire_server: WireServer) -> None:
    """gRPC's default is to drop calls at random once a thousand wait to be taken up."""
    request = wire.HeartbeatRequest(client_type=pb.PRODUCER)
    answers = await asyncio.gather(*(wire_server.call("Heartbeat", request) for _ in range(3_000)))
    assert {answer.status.code for answer in answers} == {pb.OK}
