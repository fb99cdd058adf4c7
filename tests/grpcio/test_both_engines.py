"""The same calls at both gRPC engines. `make test-grpcio` runs whole rooms on the one of gRPC's library."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from popserver.model.errors import CannotListen
from popserver.transport.limits import CallLimits
from popserver.transport.listen import PLAINTEXT, Engine
from tests.http2.doors import a_wire_server
from tests.support.certificates import Authority
from tests.support.grpc_engine import ENGINES
from tests.support.running_broker import until
from tests.support.signed_server import as_, give_everything, guarded
from tests.support.tls_server import caller, certified
from tests.support.wire_server import (
    CLIENT,
    GROUP,
    LIMITS,
    TOPIC,
    WireServer,
    a_message,
    handle_of,
    headers,
    opened,
    parked,
    receive_request,
)
from tests.support.workers import workers

MIB = 1024 * 1024


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    chosen: Engine = request.param
    return chosen


@pytest.fixture
async def served(tmp_path: Path, engine: Engine) -> AsyncIterator[WireServer]:
    async with opened(tmp_path, engine=engine) as wire_server:
        yield wire_server


async def test_a_message_is_sent_received_and_acked(served: WireServer) -> None:
    assert (await served.send(a_message("m1", body=b"hello"))).status.code == pb.OK
    (message,) = await served.receive()
    assert message.body == b"hello"
    entry = wire.AckMessageEntry(message_id="m1", receipt_handle=handle_of(message))
    acked = await served.call("AckMessage", wire.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry]))
    assert acked.entries[0].status.code == pb.OK
    assert await served.receive() == []


async def test_a_large_request_and_a_large_answer(served: WireServer) -> None:
    bodies = {f"m{number}": bytes([number]) * (4 * MIB) for number in range(6)}
    sent = await served.send(*(a_message(name, body=body) for name, body in bodies.items()))
    assert sent.status.code == pb.OK
    received: dict[str, bytes] = {}
    while len(received) < len(bodies):
        received |= {each.system_properties.message_id: each.body for each in await served.receive()}
    assert received == bodies


async def test_a_stream_stays_open_and_each_frame_is_answered(served: WireServer) -> None:
    settings = wire.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing()))
    async with served.telemetry() as stream:
        for _ in range(3):
            await stream.write(settings)
            assert (await stream.read()).status.code == pb.OK
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_refused_stream_ends_with_its_reason(served: WireServer) -> None:
    async with served.telemetry(client_id=None) as stream:
        assert (await stream.read()).status.code == pb.CLIENT_ID_REQUIRED
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "x-mq-client-id" in await stream.details()


async def test_a_cancelled_poll_is_forgotten(served: WireServer) -> None:
    await served.send(a_message("m1"))
    await served.receive()  # topic and group are there now
    poll: Any = served.stub.ReceiveMessage(receive_request(poll_ms=20_000), metadata=headers(CLIENT, {}))
    await parked(served)
    poll.cancel()
    await parked(served, 0)


async def test_bytes_that_are_no_request_are_refused(served: WireServer) -> None:
    answer = wire.SendMessageResponse.FromString(await served.raw("SendMessage", b"\xff\xff\xff"))
    assert answer.status.code == pb.BAD_REQUEST
    too_long = wire.HeartbeatResponse.FromString(await served.raw("Heartbeat", bytes(5 * MIB)))
    assert too_long.status.code == pb.BAD_REQUEST
    assert "at most 4194304 bytes" in too_long.status.message
    assert (await served.send(a_message("m1"))).status.code == pb.OK


async def test_a_compressed_request_and_an_unknown_method_are_refused(served: WireServer) -> None:
    send: Any = served.channel.unary_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
    nothing: Any = served.channel.unary_unary("/apache.rocketmq.v2.MessagingService/Nothing")
    for call, options in ((send, {"compression": grpc.Compression.Gzip}), (nothing, {})):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(bytes(10_000), metadata=headers(CLIENT, {}), **options)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_who_is_refused_need_not_be_read(tmp_path: Path, engine: Engine) -> None:
    """A caller without a signature gets its refusal, whatever it sends; one with a signature is served."""
    async with guarded(tmp_path, engine=engine) as wire_server:
        await give_everything(wire_server)
        refused = await wire_server.send(a_message("m1", body=bytes(4 * MIB)))
        assert refused.status.code == pb.UNAUTHORIZED
        request = wire.SendMessageRequest(messages=[a_message("m1", body=bytes(4 * MIB))])
        assert (await wire_server.call("SendMessage", request, headers=as_("alice"))).status.code == pb.OK


async def test_a_request_that_does_not_come_is_given_up(tmp_path: Path, engine: Engine) -> None:
    async with opened(tmp_path, engine=engine, limits=LIMITS._replace(request_ms=200)) as wire_server:
        send: Any = wire_server.channel.stream_unary("/apache.rocketmq.v2.MessagingService/SendMessage")
        answer = wire.SendMessageResponse.FromString(await send(metadata=headers(CLIENT, {})))
        assert answer.status.code == pb.REQUEST_TIMEOUT


async def test_a_request_without_room_is_refused(tmp_path: Path, engine: Engine) -> None:
    async with opened(tmp_path, engine=engine) as wire_server:
        budget = wire_server.broker.engine.budgets["large requests"]
        assert budget.take(budget.limit)
        refused = await wire_server.send(a_message("m1", body=bytes(MIB)))
        assert refused.status.code == pb.TOO_MANY_REQUESTS
        assert "--max-incoming" in refused.status.message
        assert (await wire_server.send(a_message("m2"))).status.code == pb.OK
        budget.give_back(budget.limit)
        assert (await wire_server.send(a_message("m1", body=bytes(MIB)))).status.code == pb.OK
        assert budget.used == 0


async def test_the_connection_of_who_does_not_read_its_answer_ends(tmp_path: Path, engine: Engine) -> None:
    async with opened(tmp_path, engine=engine, limits=LIMITS._replace(answer_ms=300)) as wire_server:
        await wire_server.send(*(a_message(f"m{number}", body=bytes(MIB)) for number in range(4)))
        budget = wire_server.broker.engine.budgets["undelivered"]
        async with wire_server.small_window() as channel:
            call: Any = MessagingServiceStub(channel).ReceiveMessage(receive_request(), metadata=headers(CLIENT, {}))
            await until(lambda: budget.used >= 4 * MIB)
            await until(lambda: budget.used == 0)
            async with asyncio.timeout(30):
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    while await call.read() is not grpc.aio.EOF:
                        pass
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        # What was not read goes to the next one.
        assert len(await wire_server.receive(poll_ms=20_000)) == 4


async def test_a_failure_says_nothing_of_the_inside(served: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served.broker.producing.sending, "send", None)
    failed = (await served.send(a_message("m1"))).status
    assert failed.code == pb.INTERNAL_SERVER_ERROR
    assert "NoneType" not in failed.message


async def test_draining_answers_polls_and_streams_and_lets_go(tmp_path: Path, engine: Engine) -> None:
    async with opened(tmp_path, engine=engine, limits=CallLimits()) as wire_server, wire_server.telemetry() as stream:
        await stream.write(wire.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER)))
        await stream.read()
        poll = asyncio.create_task(wire_server.statuses("ReceiveMessage", receive_request(poll_ms=20_000)))
        await parked(wire_server)
        await wire_server.server.drain(60)
        assert [each.code for each in await poll] == [pb.MESSAGE_NOT_FOUND]
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_call_that_does_not_end_is_told_that_the_server_stops(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, engine=engine) as wire_server:
        begun = asyncio.Event()

        async def hang(*_: object, **_named: object) -> None:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(wire_server.broker.producing.sending, "send", hang)
        call = asyncio.create_task(wire_server.send(a_message("m1")))
        await begun.wait()
        await wire_server.server.drain(0.1)
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await call
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_tls_lets_in_who_has_a_certificate_and_nobody_else(
    tmp_path: Path, authority: Authority, engine: Engine
) -> None:
    clients = Authority(tmp_path, "clients-ca")
    listening = certified(authority, "tls", client_ca=clients.ca)
    async with opened(tmp_path, engine=engine, listening=listening) as wire_server:
        for ca, own, wanted in (
            (authority.ca, clients.issue("alice"), "OK"),
            (authority.ca, None, "UNAVAILABLE"),
            (authority.ca, authority.issue("mallory"), "UNAVAILABLE"),
            (None, None, "UNAVAILABLE"),
        ):
            async with caller(wire_server, ca, own) as one:
                assert await one.knock() == wanted


async def test_a_taken_port_is_refused_and_one_that_was_closed_is_free(engine: Engine) -> None:
    def listening(port: int = 0) -> tuple[Any, int]:
        wire_server = a_wire_server(LIMITS, engine)
        return wire_server, wire_server.listen("127.0.0.1", port, PLAINTEXT)

    first, port = listening()
    first.close()
    second, _ = listening(port)
    await second.start()
    with pytest.raises(CannotListen, match="--port"):
        listening(port)
    second.close()
    async with asyncio.timeout(30):
        while True:
            with suppress(CannotListen):
                third, _ = listening(port)
                break
            await asyncio.sleep(0.01)
    third.close()


async def test_two_workers_share_a_port(postgres_url: str, engine: Engine) -> None:
    options = ("--grpc-engine", engine, "--tls", "plaintext", "--admin", "127.0.0.1:0")
    async with workers(postgres_url, 2, *options) as server:
        assert sorted(server.running().values()) == [1, 2]
        before = set(server.running())
        await _send_and_receive(server.endpoint, "before")
        await server.reload()
        async with asyncio.timeout(60):
            while before & set(server.running()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await _send_and_receive(server.endpoint, "after")
        assert await server.stop() == 0


async def _send_and_receive(endpoint: str, message_id: str) -> None:
    async with grpc.aio.insecure_channel(endpoint, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub: Any = MessagingServiceStub(channel)
        named = headers(CLIENT, {})
        sent = await stub.SendMessage(wire.SendMessageRequest(messages=[a_message(message_id)]), metadata=named)
        assert sent.status.code == pb.OK
        frames = stub.ReceiveMessage(receive_request(poll_ms=20_000), metadata=named)
        assert [each.message.system_properties.message_id async for each in frames if each.HasField("message")] == [
            message_id
        ]
