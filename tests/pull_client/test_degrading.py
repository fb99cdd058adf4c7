"""Against a server without queue granularity: said at once, in a sentence that helps; the other consumers go on.

The scripted server answers as a RocketMQ 5 proxy does: gRPC's UNIMPLEMENTED to the four calls of pulls and offsets, no
popmq.v1.Legacy, no capabilities, and it knows no client type PULL_CONSUMER.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import grpc
import pytest

from popclient import (
    ConsumeResult,
    Message,
    MessageQueue,
    MessageView,
    ServerError,
    Unauthorized,
    UnsupportedByServer,
    aio,
)
from popclient._queues import calls
from popclient._queues import pull as pull_call
from popclient._queues.calls import QueueEnd, QueueProgress
from popclient._queues.wire import open_session
from popclient._session.session import Session
from popclient.config import ClientConfig
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.queue_server import QueueServer
from tests.support.scripted_server import ScriptedServer, StreamEnd, status, until

MQ = MessageQueue("flights", 0)


def rejects_type(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand:
    """As newer proxies do."""
    if reply.settings.client_type != pb.PULL_CONSUMER:
        return reply
    return rpc.TelemetryCommand(status=status(pb.UNRECOGNIZED_CLIENT_TYPE, "PULL_CONSUMER is not supported"))


def fails(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand:
    """As older ones do: an exception that nobody catches."""
    if reply.settings.client_type != pb.PULL_CONSUMER:
        return reply
    return rpc.TelemetryCommand(status=status(pb.INTERNAL_SERVER_ERROR, "IllegalArgumentException"))


def agrees(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand:
    """A proxy that heeds no client type."""
    return reply


def ends(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand | StreamEnd:
    """As RocketMQ 5.5 does where the group exists."""
    if reply.settings.client_type != pb.PULL_CONSUMER:
        return reply
    return StreamEnd(grpc.StatusCode.INTERNAL, "Client type is not consumer, type: PULL_CONSUMER")


def ends_for_the_group(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand | StreamEnd:
    """As it does where the group is missing."""
    if reply.settings.client_type != pb.PULL_CONSUMER:
        return reply
    return StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, "group not found: g")


@pytest.fixture(params=[rejects_type, fails, agrees, ends, ends_for_the_group])
async def proxy(request: pytest.FixtureRequest, short_handshake: None) -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer("") as server:
        server.answers["Telemetry"] = request.param
        yield server


@pytest.mark.row("O9")
async def test_starting_says_so_at_once(proxy: ScriptedServer) -> None:
    consumer = aio.PullConsumer(proxy.endpoints, "g")
    with pytest.raises(UnsupportedByServer) as refused:
        await consumer.start()
    await consumer.close()
    sentence = str(refused.value)
    assert f"is not offered by the server at {proxy.endpoints}, which is a RocketMQ server" in sentence
    assert "consume there with SimpleConsumer or PushConsumer" in sentence


@pytest.mark.row("O9")
@pytest.mark.parametrize(
    "first",
    [
        lambda consumer: consumer.assign("flights"),
        lambda consumer: consumer.queues("flights"),
        lambda consumer: consumer.committed(MQ),
    ],
)
async def test_so_does_whatever_is_called_first(
    proxy: ScriptedServer, first: Callable[[aio.PullConsumer], Any]
) -> None:
    consumer = aio.PullConsumer(proxy.endpoints, "g")
    with pytest.raises(UnsupportedByServer, match="not offered by the server"):
        await first(consumer)
    await consumer.close()


@pytest.mark.row("O9")
async def test_the_other_consumers_go_on_working_there(proxy: ScriptedServer) -> None:
    with pytest.raises(UnsupportedByServer):
        async with aio.PullConsumer(proxy.endpoints, "g"):
            pass
    async with aio.Producer(proxy.endpoints) as producer, aio.SimpleConsumer(proxy.endpoints, "g", "flights") as simple:
        await producer.send("flights", "UA 1545")
        [message] = await simple.receive()
        await simple.ack(message)
        assert message.text == "UA 1545"
        heard: asyncio.Queue[str] = asyncio.Queue()

        async def listener(arrived: MessageView) -> ConsumeResult:
            heard.put_nowait(arrived.text)
            return ConsumeResult.SUCCESS

        async with aio.PushConsumer(proxy.endpoints, "h", "departures", listener) as push:
            await producer.send_many([Message("departures", "UA 1"), Message("departures", "UA 2")])
            assert sorted([await heard.get(), await heard.get()]) == ["UA 1", "UA 2"]
            await until(lambda: push.cached == (0, 0))


async def test_a_server_that_fails_now_is_not_taken_for_one_that_cannot() -> None:
    """It knows the call, so its refusal of the session is told as it is."""
    async with QueueServer("") as server:
        server.answers["Telemetry"] = fails
        server.answers["QueryOffset"] = lambda _: rpc.QueryOffsetResponse(status=status(pb.BAD_REQUEST))
        consumer = aio.PullConsumer(server.endpoints, "g")
        with pytest.raises(ServerError, match="IllegalArgumentException"):
            await consumer.start()
        await consumer.close()


CALLS: dict[str, Callable[[Session], Any]] = {
    "PullMessage": lambda session: pull_call.pull(
        session, "g", MQ, 0, batch_size=1, expression=None, hold=timedelta(0)
    ),
    "GetOffset": lambda session: calls.fetch_offsets(session, "g", [MQ]),
    "UpdateOffset": lambda session: calls.commit_offsets(session, "g", {MQ: QueueProgress(1)}),
    "QueryOffset": lambda session: calls.query_offset(session, MQ, QueueEnd.END),
    "ListMembers": lambda session: calls.list_members(session, "g"),
    "LockQueues": lambda session: calls.lock_queues(session, "g", [MQ]),
    "UnlockQueues": lambda session: calls.unlock_queues(session, "g", [MQ]),
    "SendBack": lambda session: calls.send_back(session, "g", MQ, 0, 0, None),
}


@pytest.mark.row("O9")
@pytest.mark.parametrize("name", CALLS)
async def test_each_call_is_named(name: str) -> None:
    async with ScriptedServer("") as proxy:
        session = _session(proxy)
        with pytest.raises(UnsupportedByServer, match=f"^{name} is not offered by the server at {proxy.endpoints}"):
            await CALLS[name](session)
        await session.close(0)


@pytest.mark.parametrize("name", ["ListMembers", "LockQueues", "UnlockQueues", "SendBack"])
async def test_a_popmq_server_without_the_service_is_named_as_such(name: str) -> None:
    def old(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand:
        reply.settings.client_properties["popmq.server"] = "0.1.0"
        return reply

    async with ScriptedServer("admin") as server:
        server.answers["Telemetry"] = old
        session = _session(server)
        with pytest.raises(UnsupportedByServer, match=rf"^{name} is not offered .* which is PopMQ 0\.1\.0; consume"):
            await CALLS[name](session)
        await session.close(0)


async def test_what_a_server_refuses_of_a_call_that_it_has_is_told_in_its_words() -> None:
    refusal = rpc.PullMessageResponse(status=status(pb.UNSUPPORTED, "class filters are not offered"))
    async with QueueServer("") as server:
        server.answers["PullMessage"] = lambda _: [refusal]
        session = _session(server)
        with pytest.raises(UnsupportedByServer, match="class filters are not offered"):
            await CALLS["PullMessage"](session)
        await session.close(0)


async def test_a_refusal_of_the_credentials_is_no_matter_of_what_is_offered(proxy: ScriptedServer) -> None:
    refusal = rpc.TelemetryCommand(status=status(pb.UNAUTHORIZED, "who are you?"))
    proxy.answers["Telemetry"] = lambda _: refusal
    session = _session(proxy)
    with pytest.raises(Unauthorized, match="who are you"):
        await open_session(session)
    await session.close(0)


def _session(server: ScriptedServer) -> Session:
    settings = pb.Subscription(group=pb.Resource(name="g"))
    return Session(ClientConfig(server.endpoints), pb.PULL_CONSUMER, "g", lambda: settings)
