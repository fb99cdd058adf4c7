"""Message groups: one after the other, and nothing overtakes a message that has failed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from popclient import ConsumeResult, MessageView, aio
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.client.push_consumers import acked, failed, given_back
from tests.support.scripted_server import ScriptedServer, status, until

SUCCESS, FAILURE = ConsumeResult.SUCCESS, ConsumeResult.FAILURE


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(fifo=True, retry_intervals=[3]) as server:
        yield server


@pytest.fixture
async def proxy() -> AsyncIterator[ScriptedServer]:
    """A server of RocketMQ's own, with intervals that a test can wait for."""
    async with ScriptedServer(capabilities="", fifo=True, retry_intervals=[0.01, 0.02]) as server:
        yield server


def put(server: ScriptedServer, names: str) -> None:
    """ "a1 b1 x": two messages with a message group, their first letter, and one without."""
    request = rpc.SendMessageRequest()
    for name in names.split():
        message = request.messages.add(topic=pb.Resource(name="t"), body=name.encode())
        message.system_properties.message_id = name
        if len(name) > 1:
            message.system_properties.message_group = name[0]
    server.store(request)


class Listener:
    """Fails what it is told to, that many times, and checks that no message group runs twice at once."""

    def __init__(self, **failures: int) -> None:
        self.failures = failures
        self.seen: list[str] = []
        self.attempts: list[int] = []
        self.running: set[str] = set()
        self.most = 0

    async def __call__(self, message: MessageView) -> ConsumeResult:
        group = message.message_group or message.text
        assert group not in self.running
        self.running.add(group)
        self.most = max(self.most, len(self.running))
        self.seen.append(message.text)
        self.attempts.append(message.delivery_attempt)
        await asyncio.sleep(0.001)
        self.running.discard(group)
        if self.failures.get(message.text, 0):
            self.failures[message.text] -= 1
            return FAILURE
        return SUCCESS

    def of(self, group: str) -> list[str]:
        return [name for name in self.seen if name[0] == group]

    def attempts_at(self, name: str) -> list[int]:
        return [attempt for seen, attempt in zip(self.seen, self.attempts, strict=True) if seen == name]


def consumer_of(server: ScriptedServer, listener: Any, **given: Any) -> aio.PushConsumer:
    return aio.PushConsumer(server.endpoints, "push", "t", listener, **given)


async def test_a_message_group_runs_in_order_and_others_beside_it(server: ScriptedServer) -> None:
    put(server, "a1 a2 b1 a3 b2 x y c1 z a4 b3 c2")
    listener = Listener()
    async with consumer_of(server, listener) as consumer:
        await until(lambda: len(acked(server)) == 12)
        await until(lambda: consumer.cached == (0, 0))
        assert consumer._core._dispatcher._backlog._groups == {}
    assert (listener.of("a"), listener.of("b"), listener.of("c")) == (
        ["a1", "a2", "a3", "a4"],
        ["b1", "b2", "b3"],
        ["c1", "c2"],
    )
    assert listener.most > 3


@pytest.mark.row("L6")
async def test_behind_a_failure_the_rest_is_given_back_and_comes_again_in_order(server: ScriptedServer) -> None:
    put(server, "a1 a2 a3 a4 b1 b2")
    listener = Listener(a2=1)
    async with consumer_of(server, listener) as consumer:
        await until(lambda: len(given_back(server)) == 2 and len(acked(server)) == 3)
        await until(lambda: consumer.cached == (0, 0))
        assert (failed(server), sorted(given_back(server))) == ([("a2", 3.0)], ["a3", "a4"])
        assert (listener.of("a"), listener.of("b")) == (["a1", "a2"], ["b1", "b2"])
        server.bring_back()
        await until(lambda: len(acked(server)) == 6)
    assert listener.of("a") == ["a1", "a2", "a2", "a3", "a4"]
    assert listener.attempts_at("a2") == [1, 2]
    assert listener.attempts_at("a3") == [1]


async def test_a_failure_is_told_before_what_is_behind_it_is_given_back(server: ScriptedServer) -> None:
    put(server, "a1 a2 a3")
    server.gates["ChangeInvisibleDuration"] = gate = asyncio.Event()
    listener = Listener(a1=1)
    async with consumer_of(server, listener):
        await server.arrived["ChangeInvisibleDuration"].wait()
        put(server, "a4")  # comes while the failure is being told: must wait its turn
        await until(lambda: "a4" in [m.system_properties.message_id for m in server.held.values()])
        assert (failed(server), given_back(server), listener.seen) == ([("a1", 3.0)], [], ["a1"])
        gate.set()
        await until(lambda: acked(server) == ["a4"])
    assert sorted(given_back(server)) == ["a2", "a3"]
    assert listener.seen == ["a1", "a4"]


async def test_of_a_batch_the_first_carries_the_failure(server: ScriptedServer) -> None:
    put(server, "a1 a2 a3 a4 a5")
    batches: list[list[str]] = []

    async def listener(messages: Sequence[MessageView]) -> ConsumeResult:
        batches.append([message.text for message in messages])
        return FAILURE

    async with consumer_of(server, listener, batch_size=2):
        await until(lambda: len(given_back(server)) == 4)
    assert batches == [["a1", "a2"]]
    assert (failed(server), sorted(given_back(server))) == ([("a1", 3.0)], ["a2", "a3", "a4", "a5"])


async def test_a_message_group_that_takes_too_long_fails_as_one(server: ScriptedServer) -> None:
    put(server, "a1 a2 b1")

    async def listener(message: MessageView) -> ConsumeResult:
        if message.text == "a1":
            await asyncio.Event().wait()
        return SUCCESS

    async with consumer_of(server, listener, consumption_timeout=0.05):
        await until(lambda: failed(server) == [("a1", 3.0)] and given_back(server) == ["a2"])
    assert acked(server) == ["b1"]


async def test_waiting_behind_ones_own_message_group_does_not_count_waiting_for_a_listener_does(
    server: ScriptedServer,
) -> None:
    put(server, "a1 a2 b1 b2")
    release = asyncio.Event()
    seen: list[str] = []

    async def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.text)
        try:
            await release.wait()
        except asyncio.CancelledError:
            await release.wait()
        return SUCCESS

    async with consumer_of(server, listener, consumption_timeout=0.05, concurrency=1):
        try:
            await until(lambda: failed(server) == [("a1", 3.0)])
            await until(lambda: sorted(given_back(server)) == ["a2", "b1", "b2"])
        finally:
            release.set()
    assert seen == ["a1"]


async def test_behind_a_listener_that_hangs_its_message_group_fails_again(server: ScriptedServer) -> None:
    put(server, "a1 a2")
    release = asyncio.Event()

    async def listener(_: MessageView) -> ConsumeResult:
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):  # it does not listen
                await release.wait()
        return SUCCESS

    async with consumer_of(server, listener, consumption_timeout=0.05):
        try:
            await until(lambda: failed(server) == [("a1", 3.0)] and given_back(server) == ["a2"])
            server.bring_back()
            await until(lambda: len(failed(server)) == 2)
        finally:
            release.set()
    assert [name for name, _ in failed(server)] == ["a1", "a1"]


async def test_what_is_behind_an_ack_that_came_too_late_is_given_back(server: ScriptedServer) -> None:
    put(server, "a1 a2 a3 a4")
    server.answers["AckMessage"] = lambda _: rpc.AckMessageResponse(status=status(pb.INVALID_RECEIPT_HANDLE))
    seen: list[str] = []

    async def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.text)
        if message.text == "a2":
            await until(lambda: len(given_back(server)) == 2)
        return SUCCESS

    async with consumer_of(server, listener) as consumer:
        await until(lambda: len(given_back(server)) == 2)
        await until(lambda: consumer.cached == (0, 0))
    assert seen == ["a1", "a2"]
    assert sorted(given_back(server)) == ["a3", "a4"]


async def test_closing_gives_the_rest_of_a_message_group_back(server: ScriptedServer) -> None:
    put(server, "a1 a2 a3")
    started, release = asyncio.Event(), asyncio.Event()

    async def listener(_: MessageView) -> ConsumeResult:
        started.set()
        await release.wait()
        return SUCCESS

    async with consumer_of(server, listener) as consumer:
        await started.wait()
        closing = asyncio.ensure_future(consumer.close())
        await until(lambda: sorted(given_back(server)) == ["a2", "a3"])
        release.set()
        await closing
    assert (acked(server), failed(server)) == (["a1"], [])


# ---- A server of RocketMQ's own ----


async def test_without_our_server_a_failure_is_tried_again_in_place(proxy: ScriptedServer) -> None:
    put(proxy, "a1 a2 b1 b2")
    listener = Listener(a1=2)
    async with consumer_of(proxy, listener):
        await until(lambda: len(acked(proxy)) == 4)
    assert listener.of("a") == ["a1", "a1", "a1", "a2"]
    assert listener.attempts_at("a1") == [1, 2, 3]
    assert not proxy.requests("ChangeInvisibleDuration")


async def test_without_our_server_the_client_gives_up_after_the_last_attempt(
    proxy: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popclient._push.outcomes.RETRY_AFTER_S", 0.01)
    busy = rpc.ForwardMessageToDeadLetterQueueResponse(status=status(pb.INTERNAL_SERVER_ERROR))
    forwarded = proxy.requests
    proxy.answers["ForwardMessageToDeadLetterQueue"] = lambda _: (
        busy if len(forwarded("ForwardMessageToDeadLetterQueue")) < 3 else None
    )
    put(proxy, "a1 a2")
    listener = Listener(a1=99)
    async with consumer_of(proxy, listener) as consumer:
        await until(lambda: acked(proxy) == ["a2"])
        await until(lambda: consumer.cached == (0, 0))
    assert listener.seen == ["a1", "a1", "a1", "a2"]
    told = forwarded("ForwardMessageToDeadLetterQueue")
    assert [(each.message_id, each.delivery_attempt, each.max_delivery_attempts) for each in told] == [("a1", 3, 3)] * 3


async def test_without_our_server_what_waits_for_its_next_attempt_is_given_back_at_the_end(
    proxy: ScriptedServer,
) -> None:
    proxy.retry_intervals = [60]
    put(proxy, "a1 a2")
    listener = Listener(a1=99)
    async with consumer_of(proxy, listener) as consumer:
        await until(lambda: consumer._core._dispatcher._here_later)
    assert sorted(given_back(proxy)) == ["a1", "a2"]
    assert listener.seen == ["a1"]


async def test_a_proxy_without_order_runs_message_groups_side_by_side() -> None:
    async with ScriptedServer(capabilities="", fifo=False) as proxy:
        put(proxy, "a1 a2 a3")
        together = asyncio.Barrier(3)

        async def listener(message: MessageView) -> ConsumeResult:
            async with asyncio.timeout(60):
                await together.wait()
            return FAILURE if message.text == "a2" else SUCCESS

        async with consumer_of(proxy, listener):
            await until(lambda: sorted(acked(proxy)) == ["a1", "a3"] and failed(proxy) == [("a2", 10.0)])
    assert not given_back(proxy)
