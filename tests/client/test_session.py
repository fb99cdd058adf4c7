"""The session: handshake, coming back after every kind of break, and telling about it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock

import grpc
import pytest

from popclient import BadRequest, ClientConfig, Forbidden, NotFound, PopError, ServerError, Unauthorized, aio
from popclient._session import heartbeats
from popclient._session import session as sessions
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.group_server import GroupServer
from tests.support.scripted_server import ScriptedServer, StreamEnd, status, until


class Watch:
    """What the callbacks were told."""

    def __init__(self) -> None:
        self.lost: list[Exception] = []
        self.back = 0

    def on_disconnect(self, reason: Exception) -> None:
        self.lost.append(reason)

    def on_reconnect(self) -> None:
        self.back += 1

    def producer(self, server: ScriptedServer) -> aio.Producer:
        return aio.Producer(server.endpoints, "t", on_disconnect=self.on_disconnect, on_reconnect=self.on_reconnect)


async def test_the_session_is_open_and_healthy_after_the_handshake(server: ScriptedServer) -> None:
    watch = Watch()
    producer = watch.producer(server)
    assert not producer.healthy
    async with producer:
        assert producer.healthy
        assert len(server.settings) == 1
        await until(lambda: server.requests("Heartbeat"))
    assert not producer.healthy
    assert (watch.lost, watch.back) == ([], 0)


async def test_a_stream_whose_end_grpc_never_writes_does_not_hold_up_the_close(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC has no time limit for that."""
    never = AsyncMock(side_effect=asyncio.Event().wait)
    producer = aio.Producer(ClientConfig(server.endpoints, close_timeout=0.1))
    await producer.start()
    monkeypatch.setattr(producer._core.session._stream, "done_writing", never)
    async with asyncio.timeout(10):
        await producer.close()
    never.assert_awaited_once_with()


@pytest.mark.usefixtures("short_handshake")
async def test_a_server_that_never_answers_the_settings_is_used_without(server: ScriptedServer) -> None:
    server.answers["Telemetry"] = lambda _: None
    async with aio.Producer(server.endpoints, "t") as producer:
        assert await producer.send("t", b"x")
        assert not producer.healthy


def refuse(_: object) -> rpc.TelemetryCommand:
    return rpc.TelemetryCommand(status=status(pb.UNAUTHORIZED, "who are you?"))


# As RocketMQ's proxy refuses: without a command.
PROXY_SAYS = "process client telemetryCommand failed. group not found: g"
REFUSALS = [
    pytest.param(refuse, Unauthorized, "who are you?", id="command"),
    pytest.param(lambda _: StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, PROXY_SAYS), BadRequest, PROXY_SAYS, id="bad"),
    pytest.param(lambda _: StreamEnd(grpc.StatusCode.UNAUTHENTICATED, "who?"), Unauthorized, "who?", id="stranger"),
    pytest.param(lambda _: StreamEnd(grpc.StatusCode.PERMISSION_DENIED, "not you"), Forbidden, "not you", id="denied"),
]
Opens = Callable[[str], Any]


async def never_called(*_: Any) -> Any:
    raise AssertionError


CLIENTS: list[Opens] = [
    lambda where: aio.Producer(where, "t"),
    lambda where: aio.SimpleConsumer(where, "g", "t"),
    lambda where: aio.PushConsumer(where, "g", "t", never_called),
    lambda where: aio.PullConsumer(where, "g"),
    lambda where: aio.QueuePushConsumer(where, "g", "t", never_called),
]
KINDS = ["Producer", "SimpleConsumer", "PushConsumer", "PullConsumer", "QueuePushConsumer"]


# The queue clients ask a proxy that refuses without a command whether it knows them at all: tests/pull_client.
@pytest.mark.parametrize(
    ("opens", "answer", "kind", "words"),
    [
        pytest.param(opens, *refusal.values, id=f"{name}-{refusal.id}")
        for opens, name in zip(CLIENTS, KINDS, strict=True)
        for refusal in REFUSALS
        if refusal.id != "bad" or opens in CLIENTS[:3]
    ],
)
async def test_no_client_starts_that_is_refused(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, opens: Opens, answer: Any, kind: type[PopError], words: str
) -> None:
    """The server's own words are raised, and it is not asked again."""
    monkeypatch.setattr(sessions, "RECONNECT_PAUSE", (0.01, 0.01))
    monkeypatch.setattr(sessions, "REFUSED_PAUSE", 0.01)
    server.answers["Telemetry"] = answer
    client = opens(server.endpoints)
    with pytest.raises(PopError) as refused:
        await client.start()
    assert words in str(refused.value)
    assert type(refused.value) is kind
    assert not client.healthy
    await asyncio.sleep(0.15)
    assert len(server.settings) == 1
    await client.close()


async def test_who_starts_again_asks_again(server: ScriptedServer) -> None:
    """The group was made meanwhile."""
    server.answers["Telemetry"] = lambda _: StreamEnd(grpc.StatusCode.INVALID_ARGUMENT, PROXY_SAYS)
    consumer = aio.SimpleConsumer(server.endpoints, "g", "t")
    for _ in range(2):
        with pytest.raises(BadRequest, match="group not found"):
            await consumer.start()
    del server.answers["Telemetry"]
    await consumer.start()
    assert consumer.healthy
    await consumer.close()


@pytest.mark.usefixtures("short_handshake")
async def test_a_server_that_only_fails_is_not_started_with(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may get well again while `start` waits; what it says then is raised. The session goes on trying."""
    monkeypatch.setattr(sessions, "RECONNECT_PAUSE", (0.01, 0.01))
    server.answers["Telemetry"] = lambda _: StreamEnd(grpc.StatusCode.INTERNAL, "the disk is full")
    consumer = aio.SimpleConsumer(server.endpoints, "g", "t")
    with pytest.raises(ServerError, match="the disk is full"):
        await consumer.start()
    del server.answers["Telemetry"]
    await until(lambda: consumer.healthy)
    await consumer.start()
    await consumer.close()


@pytest.mark.parametrize(("answer", "kind", "words"), REFUSALS)
@pytest.mark.parametrize("opens", [CLIENTS[2], CLIENTS[4]], ids=[KINDS[2], KINDS[4]])
async def test_a_push_consumer_that_is_refused_later_ends_and_says_why(
    caplog: pytest.LogCaptureFixture, opens: Opens, answer: Any, kind: type[PopError], words: str
) -> None:
    """Its rights were withdrawn, or its group was deleted."""
    async with GroupServer() as server:
        consumer = opens(server.endpoints)
        running = asyncio.create_task(consumer.run())
        await until(lambda: server.requests("ReceiveMessage") or server.requests("PullMessage"))
        server.say(answer(None))
        with pytest.raises(kind) as refused:
            await asyncio.wait_for(running, 20)
    assert words in str(refused.value)
    assert not consumer.healthy
    said = [entry.getMessage() for entry in caplog.records if (entry.name, entry.levelname) == ("popclient", "ERROR")]
    assert said == [f"the consumer of group g ends: {refused.value}"]


async def test_a_poll_that_finds_no_group_has_the_settings_judged_anew(server: ScriptedServer) -> None:
    """The stream of a consumer whose group was deleted stays open."""
    gone = status(pb.CONSUMER_GROUP_NOT_FOUND, "it was deleted")
    answers = iter([lambda reply: reply, lambda _: rpc.TelemetryCommand(status=gone)])
    server.answers["Telemetry"] = lambda reply: next(answers)(reply)
    server.answers["ReceiveMessage"] = lambda _: [rpc.ReceiveMessageResponse(status=gone)]
    with pytest.raises(NotFound, match="it was deleted"):
        await asyncio.wait_for(aio.PushConsumer(server.endpoints, "g", "t", never_called).run(), 20)


async def test_others_that_are_refused_later_ask_again_now_and_then(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights and groups may come back, and until then every call of the client is refused by itself."""
    watch = Watch()
    monkeypatch.setattr(sessions, "REFUSED_PAUSE", 0.01)
    async with watch.producer(server) as producer:
        server.answers["Telemetry"] = refuse
        server.drop_streams()
        await until(lambda: len(server.settings) > 3)
        assert not producer.healthy
        del server.answers["Telemetry"]
        await until(lambda: producer.healthy)


async def test_an_agreed_session_outlives_a_failing_server(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch()
    async with watch.producer(server) as producer:
        server.say(rpc.TelemetryCommand(status=status(pb.INTERNAL_SERVER_ERROR, "the disk is full")))
        await until(lambda: "the disk is full" in caplog.text)
        assert producer.healthy
    assert watch.lost == []


async def refuse_again(server: ScriptedServer) -> None:
    """Breaks the stream, and refuses the one that is opened in its place; returns when the client has heard."""
    for _ in range(2):  # what is told of the second has been heard of the first
        tried = len(server.settings)
        server.drop_streams()
        await until(lambda tried=tried: len(server.settings) > tried)


async def test_a_refused_session_tells_why_whoever_waits_and_not_the_log(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "RECONNECT_PAUSE", (0.01, 0.01))
    server.answers["Telemetry"] = refuse
    with pytest.raises(Unauthorized, match="who are you"):
        async with aio.Producer(server.endpoints, "t"):
            pass
    producer = aio.Producer(server.endpoints)
    results = await asyncio.gather(producer.start(), producer.send("t", b"x"), return_exceptions=True)
    assert [type(result) for result in results] == [Unauthorized, Unauthorized]
    await producer.close()
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


async def test_a_refusal_that_nobody_waits_for_is_logged_once(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sessions, "RECONNECT_PAUSE", (0.01, 0.01))
    monkeypatch.setattr(sessions, "REFUSED_PAUSE", 0.01)
    async with aio.Producer(server.endpoints, "t") as producer:
        for _ in range(2):
            server.answers["Telemetry"] = refuse
            await refuse_again(server)
            await refuse_again(server)
            del server.answers["Telemetry"]
            server.drop_streams()
            await until(lambda: producer.healthy)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    lost, refused, back = (f"the producer {producer.client_id} {what}" for what in ("has lost", "is refused", "is con"))
    assert [each.startswith((lost, refused, back)) for each in said] == [True] * 6
    assert [each for each in said if each.startswith(refused)] == [f"{refused}: UNAUTHORIZED (40100): who are you?"] * 2


async def test_a_defect_at_the_handshake_is_told_and_outlived(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = aio.Producer(server.endpoints)
    session = producer._core.session
    tell = session.send_settings
    defects = iter([KeyError("a defect")])

    async def fail_once() -> None:
        for defect in defects:
            raise defect
        await tell()

    monkeypatch.setattr(session, "send_settings", fail_once)
    async with asyncio.timeout(sessions.HANDSHAKE_PATIENCE - 0.5):
        with pytest.raises(PopError, match="a defect"):
            await producer.start()
    await until(lambda: producer.healthy)
    await producer.start()
    await producer.close()


async def test_writing_to_a_cancelled_stream_cancels_nobody(server: ScriptedServer) -> None:
    class Cancelled:
        async def write(self, _: object) -> None:
            raise asyncio.CancelledError

    async with aio.Producer(server.endpoints, "t") as producer:
        session = producer._core.session
        stream, session._stream = session._stream, Cancelled()  # type: ignore[assignment]
        await session.send_settings()
        session._stream = stream


async def test_a_heartbeat_that_fails_is_followed_by_the_next(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "HEARTBEAT_INTERVAL", 0.02)
    producer = aio.Producer(server.endpoints)
    beats: list[int] = []

    async def beat(number: int) -> None:
        beats.append(number)
        raise KeyError("a defect")

    monkeypatch.setattr(producer._core.session.heartbeats, "send", lambda: beat(len(beats)))
    await producer.start()
    await until(lambda: len(beats) > 3)  # the first belongs to the handshake
    await producer.close()


async def test_a_dropped_stream_is_opened_again_and_told_the_settings(server: ScriptedServer) -> None:
    watch = Watch()
    async with watch.producer(server) as producer:
        server.drop_streams()
        await until(lambda: watch.back == 1)
        assert len(watch.lost) == 1
        assert len(server.settings) == 2
        assert server.settings[1] == server.settings[0]
        assert producer.healthy


@pytest.mark.parametrize("times", [3])
async def test_a_server_that_restarts_is_waited_for(server: ScriptedServer, times: int) -> None:
    watch = Watch()
    port = server.port
    async with watch.producer(server) as producer:
        link = await producer._core.session.transport.link()
        send, tries = link.send_message, []

        def noted(*given: Any, **more: Any) -> Any:
            tries.append(given)
            return send(*given, **more)

        link.send_message = noted  # type: ignore[assignment]
        for time in range(1, times + 1):
            await server.stop()
            await until(lambda time=time: len(watch.lost) == time)
            assert not producer.healthy
            tries.clear()
            sending = asyncio.ensure_future(producer.send("t", str(time)))
            await until(lambda: len(tries) > 1)
            assert not sending.done(), "a restarting server is no error of the caller's"
            await server.start(port)
            await sending
            await until(lambda time=time: watch.back == time)
    assert [message.body for message in server.stored["t"]] == [b"1", b"2", b"3"]


async def test_a_poll_outlives_a_restart_of_the_server(server: ScriptedServer) -> None:
    port = server.port
    async with (
        aio.SimpleConsumer(server.endpoints, "g", "t") as consumer,
        aio.Producer(server.endpoints, "t") as producer,
    ):
        receiving = asyncio.ensure_future(consumer.receive())
        await until(lambda: server.requests("ReceiveMessage"))
        await server.stop()
        await server.start(port)
        await producer.send("t", b"after")
        async with asyncio.timeout(60):
            assert [message.text for message in await receiving] == ["after"]


async def test_many_restarts_under_load_lose_nothing(server: ScriptedServer) -> None:
    """U32: subscriptions that are silently dead after a reconnect are what users of other clients report."""
    port, wanted, seen = server.port, 400, set()
    config = ClientConfig(endpoints=server.endpoints, request_timeout=10)

    async def consume(consumer: aio.SimpleConsumer) -> None:
        async for message in consumer:
            await consumer.ack(message)
            seen.add(message.text)
            if len(seen) == wanted:
                return

    async def produce(producer: aio.Producer) -> None:
        for number in range(wanted):
            await producer.send("t", str(number))

    async def disturb() -> None:
        for _ in range(8):
            await asyncio.sleep(0.03)
            await server.stop()
            server.given_back.extend(server.held.values())  # the holds of a server that is gone
            server.held.clear()
            await server.start(port)

    server.answers["AckMessage"] = _ack_of_anything
    async with aio.Producer(config, "t") as producer, aio.SimpleConsumer(config, "g", "t") as consumer:
        async with asyncio.timeout(60):
            await asyncio.gather(consume(consumer), produce(producer), disturb())
    assert len(seen) == wanted


def _ack_of_anything(request: rpc.AckMessageRequest) -> rpc.AckMessageResponse:
    answer = rpc.AckMessageResponse(status=status(pb.OK))
    for entry in request.entries:
        answer.entries.add(status=status(pb.OK), message_id=entry.message_id)
    return answer


async def test_a_server_that_forgot_the_client_is_told_the_settings_again(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeats, "HEARTBEAT_INTERVAL", 0.02)
    async with aio.Producer(server.endpoints, "t"):
        server.answers["Heartbeat"] = lambda _: rpc.HeartbeatResponse(status=status(pb.UNRECOGNIZED_CLIENT_TYPE))
        await until(lambda: len(server.settings) > 1)


@pytest.mark.row("N2")
async def test_routes_are_refreshed_and_settings_told_again(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert heartbeats.HEARTBEAT_INTERVAL * heartbeats.BEATS_PER_ROUTE_REFRESH == 30
    monkeypatch.setattr(heartbeats, "HEARTBEAT_INTERVAL", 0.01)
    monkeypatch.setattr(heartbeats, "BEATS_PER_SETTINGS", 4)
    async with aio.Producer(server.endpoints, "t"):
        await until(lambda: len(server.requests("QueryRoute")) > 2 and len(server.settings) > 1)
        order = [name for name, _ in server.calls]
    assert order[0] == "QueryRoute", "the route first, then the session"


async def test_a_topic_that_is_gone_is_asked_for_again(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "HEARTBEAT_INTERVAL", 0.01)
    async with aio.Producer(server.endpoints, "t") as producer:
        gone = rpc.QueryRouteResponse(status=status(pb.TOPIC_NOT_FOUND))
        server.answers["QueryRoute"] = lambda _: gone
        await until(lambda: not producer._core.session.has_topic("t"))
        del server.answers["QueryRoute"]
        assert await producer.send("t", b"x")


async def test_commands_of_the_server_are_answered(server: ScriptedServer) -> None:
    async with aio.Producer(server.endpoints, "t"):
        server.say(rpc.TelemetryCommand(print_thread_stack_trace_command=rpc.PrintThreadStackTraceCommand(nonce="n1")))
        server.say(rpc.TelemetryCommand(verify_message_command=rpc.VerifyMessageCommand(nonce="n2")))
        await until(lambda: len(server.requests("Telemetry")) == 3)
    traces, verified = server.requests("Telemetry")[1:]
    assert traces.thread_stack_trace.nonce == "n1"
    assert "MainThread" in traces.thread_stack_trace.thread_stack_trace
    assert verified.verify_message_result.nonce == "n2"
    assert verified.status.code == pb.NOT_IMPLEMENTED


async def test_the_server_may_ask_for_a_new_stream(server: ScriptedServer) -> None:
    watch = Watch()
    async with watch.producer(server):
        server.say(rpc.TelemetryCommand(reconnect_endpoints_command=rpc.ReconnectEndpointsCommand(nonce="n")))
        await until(lambda: watch.back == 1)


async def test_who_is_asked_for_a_new_stream_opens_it_at_the_next_address(server: ScriptedServer) -> None:
    """A server that will stop says so. The one before still serves, so nothing fails."""
    async with ScriptedServer() as other:
        async with aio.Producer(f"{server.endpoints};{other.endpoints}", "t") as producer:
            assert len(server.settings) == 1
            server.say(rpc.TelemetryCommand(reconnect_endpoints_command=rpc.ReconnectEndpointsCommand(nonce="n")))
            await until(lambda: len(other.settings) == 1)
            await producer.send("t", b"x")
        assert len(other.requests("SendMessage")) == 1
        assert server.requests("SendMessage") == []


async def test_a_callback_that_fails_does_no_harm(server: ScriptedServer) -> None:
    def fail(*_: object) -> None:
        raise KeyError("mine")

    async with aio.Producer(server.endpoints, "t", on_disconnect=fail, on_reconnect=fail) as producer:
        server.drop_streams()
        await until(lambda: len(server.settings) == 2)
        await until(lambda: producer.healthy)
