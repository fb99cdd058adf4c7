"""What popclient's consumers of lite topics tell the server, and when: before polls, again after failures, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import pytest

from popclient import ClientConfig, ConsumeResult, MessageView, aio
from popclient import _lite as lite
from popclient.errors import PopError, QuotaExceeded, TooManyRequests, Unreachable, UnsupportedByServer
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.scripted_server import ScriptedServer, StreamEnd, put, status, until

SYNC = "SyncLiteSubscription"
SOON_S = 10  # the complete set is told by itself after 30 s
BUSY = rpc.SyncLiteSubscriptionResponse(status=status(pb.TOO_MANY_REQUESTS))
Told = tuple[int, list[str]]


def told(server: ScriptedServer) -> list[Told]:
    return [(each.action, list(each.lite_topic_set)) for each in server.requests(SYNC)]


def answers(*scripted: Any) -> Callable[[Any], Any]:
    """These, one after the other, and then what the server answers by itself."""
    left = list(scripted)
    return lambda _: left.pop(0) if left else None


def simple_at(server: ScriptedServer, lite_topics: Sequence[str] = ("ada",)) -> aio.LiteSimpleConsumer:
    return aio.LiteSimpleConsumer(server.endpoints, "agents", "t", lite_topics, await_duration=1)


def push_at(server: ScriptedServer) -> aio.LitePushConsumer:
    return aio.LitePushConsumer(server.endpoints, "agents", "t", listener, ["ada"])


async def listener(_message: MessageView) -> ConsumeResult:
    return ConsumeResult.SUCCESS


def names(server: ScriptedServer) -> list[str]:
    return [name for name, _ in server.calls if name in (SYNC, "ReceiveMessage", "QueryAssignment")]


# ---- Before polls ----


async def test_iteration_subscribes_again_where_the_first_subscription_was_refused(server: ScriptedServer) -> None:
    server.answers[SYNC] = answers(BUSY, BUSY)
    put(server, 1)
    consumer = simple_at(server)
    async for message in consumer:
        assert message.text == "0"
        break
    assert names(server)[:4] == [SYNC, SYNC, SYNC, "ReceiveMessage"]
    await consumer.close()


async def test_a_receive_that_was_cancelled_in_the_subscription_leaves_it_to_the_next(server: ScriptedServer) -> None:
    gate = server.gates[SYNC] = asyncio.Event()
    put(server, 1)
    consumer = simple_at(server)
    receiving = asyncio.create_task(consumer.receive())
    await server.arrived[SYNC].wait()
    receiving.cancel()
    await asyncio.wait([receiving])
    gate.set()
    assert [each.text for each in await consumer.receive()] == ["0"]
    assert names(server)[:3] == [SYNC, SYNC, "ReceiveMessage"]
    await consumer.close()


async def test_a_subscription_after_a_failed_start_is_told_again_like_any_other(server: ScriptedServer) -> None:
    server.answers[SYNC] = answers(BUSY)
    consumer = simple_at(server)
    with pytest.raises(TooManyRequests):
        await consumer.start()
    await consumer.subscribe_lite("ben")
    server.drop_streams()
    await until(lambda: len(told(server)) == 4, SOON_S)
    assert told(server)[1:] == [
        (pb.COMPLETE_ADD, ["ada"]),
        (pb.PARTIAL_ADD, ["ben"]),
        (pb.COMPLETE_ADD, ["ada", "ben"]),
    ]
    await consumer.close()


async def test_what_is_removed_before_the_start_is_not_told(server: ScriptedServer) -> None:
    async with simple_at(server, ["ada", "ben"]) as consumer:
        await consumer.unsubscribe_lite("ben")
    assert told(server) == [(pb.COMPLETE_ADD, ["ada", "ben"]), (pb.PARTIAL_REMOVE, ["ben"])]
    server.calls.clear()
    consumer = simple_at(server, ["ada", "ben"])
    await consumer.unsubscribe_lite("ben")
    await consumer.start()
    assert told(server) == [(pb.COMPLETE_ADD, ["ada"])]
    await consumer.close()


async def test_a_push_consumer_subscribes_before_it_polls(server: ScriptedServer) -> None:
    server.answers[SYNC] = answers(BUSY)
    consumer = push_at(server)
    with pytest.raises(TooManyRequests):
        await consumer.start()
    assert names(server) == [SYNC]
    await consumer.start()
    await server.arrived["ReceiveMessage"].wait()
    assert names(server) == [SYNC, SYNC, "QueryAssignment", "ReceiveMessage"]
    await consumer.close()


async def test_a_subscription_starts_a_push_consumer(server: ScriptedServer) -> None:
    consumer = push_at(server)
    await consumer.subscribe_lite("ben")
    await server.arrived["ReceiveMessage"].wait()
    assert told(server) == [(pb.COMPLETE_ADD, ["ada"]), (pb.PARTIAL_ADD, ["ben"])]
    await consumer.close()


async def test_a_push_consumer_that_does_not_start_polls_nothing(server: ScriptedServer) -> None:
    def answer(request: rpc.QueryAssignmentRequest) -> rpc.QueryAssignmentResponse | None:
        is_second = request.topic.name == "t2"
        return rpc.QueryAssignmentResponse(status=status(pb.TOO_MANY_REQUESTS)) if is_second else None

    server.answers["QueryAssignment"] = answer
    consumer = aio.PushConsumer(server.endpoints, "agents", ["t1", "t2"], listener)
    for _ in range(2):
        with pytest.raises(TooManyRequests):
            await consumer.start()
    assert not consumer._core._polling._assignments
    del server.answers["QueryAssignment"]
    await consumer.start()
    assert len(consumer._core._polling._tasks._running) == 1
    await consumer.close()


# ---- Again ----


async def test_a_session_that_comes_back_while_the_set_is_told_makes_it_told_again(server: ScriptedServer) -> None:
    async with simple_at(server) as consumer:
        gate = server.gates[SYNC] = asyncio.Event()
        server.drop_streams()
        await until(lambda: len(told(server)) == 2)
        consumer._core.session.on_back()
        gate.set()
        await until(lambda: len(told(server)) == 3, SOON_S)


async def test_a_set_that_was_not_told_is_told_soon(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite, "RETRY_PAUSE", 0.01)
    async with simple_at(server):
        server.answers[SYNC] = answers(BUSY, BUSY)
        server.drop_streams()
        await until(lambda: len(told(server)) == 4, SOON_S)


async def test_a_subscription_without_an_answer_is_in_no_doubt_for_long(server: ScriptedServer) -> None:
    config = ClientConfig(server.endpoints, request_timeout=0.2)
    async with aio.LiteSimpleConsumer(config, "agents", "t", "ada") as consumer:
        server.gates[SYNC] = asyncio.Event()
        with pytest.raises(Unreachable):
            await consumer.subscribe_lite("ben")
        server.gates.pop(SYNC).set()
        await until(lambda: told(server)[-1] == (pb.COMPLETE_ADD, ["ada"]), SOON_S)
        assert consumer.lite_topics == {"ada"}


async def test_a_closed_client_tells_no_more(server: ScriptedServer) -> None:
    async with simple_at(server) as consumer:
        core = consumer._core
        core.session.closing = True
        core.lite._sync_again.set()
        async with asyncio.timeout(SOON_S):
            await core.lite._tasks.ended()
        core.session.closing = False


async def test_the_complete_set_does_not_overtake_a_subscription(server: ScriptedServer) -> None:
    """The client tells it by itself, while the answer to the subscription is on its way."""
    async with simple_at(server, []) as consumer:
        gate = server.gates[SYNC] = asyncio.Event()
        subscribing = asyncio.create_task(consumer.subscribe_lite("ada"))
        await until(lambda: len(told(server)) == 2)
        consumer._core.session.on_back()
        await until(lambda: len(consumer._core.lite._turn._waiters or ()) == 1)
        gate.set()
        await subscribing
        await until(lambda: len(told(server)) == 3)
    assert told(server)[1:] == [(pb.PARTIAL_ADD, ["ada"]), (pb.COMPLETE_ADD, ["ada"])]


# ---- Lost ones ----


def lost(name: str) -> rpc.TelemetryCommand:
    return rpc.TelemetryCommand(notify_unsubscribe_lite_command=rpc.NotifyUnsubscribeLiteCommand(lite_topic=name))


async def test_a_late_notice_does_not_undo_a_new_subscription(server: ScriptedServer) -> None:
    """A server that means it says so again when it is told the complete set."""
    async with simple_at(server, []) as consumer:
        await consumer.subscribe_lite("ada")
        server.say(lost("ada"))
        await until(lambda: told(server)[-1] == (pb.COMPLETE_ADD, ["ada"]), SOON_S)
        assert consumer.lite_topics == {"ada"}
        server.say(lost("ada"))
        await until(lambda: consumer.lite_topics == set())


async def test_rocketmq_gives_notice_once() -> None:
    async with ScriptedServer("") as server, simple_at(server, []) as consumer:
        await consumer.subscribe_lite("ada")
        server.say(lost("ada"))
        await until(lambda: consumer.lite_topics == set())
        assert len(told(server)) == 2


# ---- What the server allows ----


async def test_a_quota_counts_the_first_lite_topics_too(server: ScriptedServer) -> None:
    def answer(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand:
        reply.settings.subscription.lite_subscription_quota = 1
        return reply

    server.answers["Telemetry"] = answer
    consumer = simple_at(server, ["ada", "ben"])
    with pytest.raises(QuotaExceeded, match="would subscribe to 2 lite topics, at most 1 are allowed"):
        await consumer.start()
    assert not told(server)
    await consumer.close()


async def test_a_suspended_message_is_kept_alive_no_more(server: ScriptedServer) -> None:
    put(server, 1)
    async with simple_at(server) as consumer:
        gate = server.gates["ChangeInvisibleDuration"] = asyncio.Event()
        (message,) = await consumer.receive(invisible_duration=0.06)
        async with message.keep_alive():
            await server.arrived["ChangeInvisibleDuration"].wait()
            suspending = asyncio.create_task(consumer.suspend(message, 60))
            await until(lambda: message._keeper is None)
            assert len(server.requests("ChangeInvisibleDuration")) == 1
            gate.set()
            await suspending
    renewal, suspension = server.requests("ChangeInvisibleDuration")
    assert (renewal.suspend, suspension.suspend) == (False, True)
    assert suspension.receipt_handle != renewal.receipt_handle


def _ends(reply: rpc.TelemetryCommand) -> StreamEnd:
    """As RocketMQ 5.5 does."""
    kind = pb.ClientType.Name(reply.settings.client_type)
    return StreamEnd(grpc.StatusCode.INTERNAL, f"Client type is not consumer, type: {kind}")


def _rejects(_reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand:
    return rpc.TelemetryCommand(status=status(pb.UNRECOGNIZED_CLIENT_TYPE))


def _agrees(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand:
    return reply


@pytest.mark.row("O9")
@pytest.mark.parametrize(
    ("telemetry", "has_call", "simple", "push"),
    [
        (_ends, True, "LITE_SIMPLE_CONSUMER.*use LitePushConsumer", "LITE_PUSH_CONSUMER.*RocketMQ 5.5"),
        (_rejects, True, "LITE_SIMPLE_CONSUMER.*use LitePushConsumer", "LITE_PUSH_CONSUMER.*RocketMQ 5.5"),
        (_ends, False, "lite topics.*RocketMQ 5.5", "lite topics.*RocketMQ 5.5"),
        (_agrees, False, "lite topics.*RocketMQ 5.5", "lite topics.*RocketMQ 5.5"),
    ],
)
@pytest.mark.usefixtures("short_handshake")
async def test_a_server_without_them_is_named_with_the_way_out(
    telemetry: Callable[[Any], Any], has_call: bool, simple: str, push: str
) -> None:
    async with ScriptedServer("") as server:
        server.answers["Telemetry"] = telemetry
        if not has_call:
            server.answers[SYNC] = lambda _: grpc.StatusCode.UNIMPLEMENTED
        for consumer, sentence in ((simple_at(server), simple), (push_at(server), push)):
            with pytest.raises(UnsupportedByServer, match=f"{sentence}") as refused:
                await consumer.start()
            assert f"not offered by the server at {server.endpoints}" in str(refused.value)
            await consumer.close()
        assert "ReceiveMessage" not in names(server)


async def test_another_refusal_is_not_explained_away(server: ScriptedServer) -> None:
    refusal = status(pb.ILLEGAL_TOPIC, "t takes no lite topics")
    server.answers["Telemetry"] = lambda _: rpc.TelemetryCommand(status=refusal)
    consumer = simple_at(server)
    with pytest.raises(PopError, match="t takes no lite topics"):
        await consumer.start()
    await consumer.close()
