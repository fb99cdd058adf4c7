"""Receives in one frame, where the server has them; and those that begin before they are asked for."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import grpc
import pytest

import popserver
from popclient import BadRequest, ConsumeResult, Message, MessageView, SimpleConsumer, aio
from popclient._session import convert
from popproto.v1 import receiving_pb2
from popproto.v2 import definition_pb2 as pb
from tests.client.push_consumers import acked, given_back
from tests.client.push_consumers import consumer_of as push_consumer_of
from tests.support.scripted_server import ScriptedServer, ServerThread, put, status, until

OFFERED = "admin,batch,receive-batch"


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer(OFFERED) as server:
        yield server


def consumer_of(server: ScriptedServer, topics: Any = "t", **given: Any) -> aio.SimpleConsumer:
    return aio.SimpleConsumer(server.endpoints, "g", topics, **given)


def bodies(messages: list[MessageView]) -> list[str]:
    return [message.text for message in messages]


def asked(server: ScriptedServer) -> list[Any]:
    return server.requests("ReceiveBatch")


async def quick(consumer: aio.SimpleConsumer, size: int = 2) -> list[str]:
    """Two full receives, right after each other: then the third begins ahead."""
    return [body for _ in range(2) for body in bodies(await consumer.receive(size))]


# ---- One frame ----


async def test_it_is_used_where_it_is_offered(server: ScriptedServer) -> None:
    put(server, 3)
    async with consumer_of(server) as consumer:
        found = await consumer.receive(2, invisible_duration=40, await_duration=7)
    [request] = asked(server)
    assert bodies(found) == ["0", "1"]
    assert (request.batch_size, request.auto_renew, bool(request.attempt_id)) == (2, False, True)
    assert abs(request.long_polling_timeout.ToTimedelta() - timedelta(seconds=7)) < timedelta(milliseconds=50)
    assert not server.requests("ReceiveMessage")


async def test_a_push_consumer_uses_it_too(server: ScriptedServer) -> None:
    put(server, 40)

    async def listener(_: MessageView) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    async with push_consumer_of(server, listener):
        await until(lambda: len(acked(server)) == 40)
    assert asked(server)[0].auto_renew
    assert not server.requests("ReceiveMessage")


async def test_a_quick_push_consumer_asks_for_more_a_slow_one_does_not(server: ScriptedServer) -> None:
    put(server, 600)
    told = asyncio.Event()

    async def listener(_: MessageView) -> ConsumeResult:
        await told.wait()
        return ConsumeResult.SUCCESS

    async with push_consumer_of(server, listener, max_cached_messages=256):
        await until(lambda: len(server.held) == 256)
        assert {request.batch_size for request in asked(server)} <= set(range(33)), "nothing is worked off yet"
        told.set()
        await until(lambda: len(acked(server)) == 600)
    assert 32 < max(request.batch_size for request in asked(server)) <= 128


async def test_polls_that_large_bodies_make_short_still_have_help(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer has at most 4 MiB of bodies: 40 of 100 KiB, though 128 messages were asked for."""
    monkeypatch.setattr("popclient._engine.flow.RecentWork.count", lambda *_: 128)
    put(server, 1_000)

    def cut(request: Any) -> None:
        request.batch_size = min(request.batch_size, 40)

    server.answers["ReceiveBatch"] = cut
    polls: list[int] = []

    async def listener(_: MessageView) -> ConsumeResult:
        polls.append(max(len(each.polls) for each in consumer._core._polling._assignments.values()))
        return ConsumeResult.SUCCESS

    consumer = push_consumer_of(server, listener)
    async with consumer:
        await until(lambda: len(acked(server)) == 1_000)
    assert max(polls[400:]) > 1


async def test_a_push_consumer_asks_for_what_it_was_told(server: ScriptedServer) -> None:
    put(server, 1)

    async def listener(_: MessageView) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    async with push_consumer_of(server, listener, receive_batch_size=50):
        await until(lambda: acked(server))
    assert {request.batch_size for request in asked(server)} == {50}


@pytest.mark.parametrize("capabilities", ["admin,batch", ""], ids=["an older PopMQ", "RocketMQ"])
async def test_other_servers_are_asked_for_a_stream(capabilities: str) -> None:
    async with ScriptedServer(capabilities) as server, consumer_of(server) as consumer:
        put(server, 8)
        assert [await quick(consumer), bodies(await consumer.receive(2))] == [["0", "1", "2", "3"], ["4", "5"]]
        assert [len(server.requests("ReceiveMessage")), len(asked(server))] == [3, 0], "and for nothing ahead"


async def test_an_older_server_in_the_place_of_the_one_that_was_met(server: ScriptedServer) -> None:
    put(server, 1)
    server.answers["ReceiveBatch"] = lambda _: grpc.StatusCode.UNIMPLEMENTED
    async with consumer_of(server) as consumer:
        assert bodies(await consumer.receive()) == ["0"]
    [request] = server.requests("ReceiveMessage")
    assert request.attempt_id == asked(server)[0].attempt_id


async def test_a_refusal_is_raised_in_the_servers_words(server: ScriptedServer) -> None:
    refusal = receiving_pb2.ReceiveBatchResponse(status=status(pb.ILLEGAL_INVISIBLE_TIME, "too small: 1 ms"))
    server.answers["ReceiveBatch"] = lambda _: refusal
    async with consumer_of(server) as consumer:
        with pytest.raises(BadRequest, match="too small: 1 ms"):
            await consumer.receive()


@pytest.mark.row("K9")
async def test_after_a_lost_answer_the_same_attempt_brings_the_same_messages(server: ScriptedServer) -> None:
    put(server, 3)

    def lose(request: Any) -> Any:
        del server.answers["ReceiveBatch"]
        server.answered[request.attempt_id] = server._take(request)
        return grpc.StatusCode.UNAVAILABLE

    server.answers["ReceiveBatch"] = lose
    async with consumer_of(server) as consumer:
        found = await consumer.receive()
    assert (bodies(found), len({request.attempt_id for request in asked(server)})) == (["0", "1", "2"], 1)
    assert len(server.held) == 3, "nothing else is held"


@pytest.mark.row("K9")
async def test_what_was_granted_to_a_poll_that_is_ended_is_given_back(server: ScriptedServer) -> None:
    put(server, 3)

    async def lose(request: Any) -> Any:
        del server.answers["ReceiveBatch"]
        server.answered[request.attempt_id] = server._take(request)
        await asyncio.Event().wait()

    server.answers["ReceiveBatch"] = lose
    async with consumer_of(server) as consumer:
        assert await consumer.receive(await_duration=0) == []
    assert sorted(given_back(server)) == ["t-0", "t-1", "t-2"]
    again = asked(server)[1]
    assert (again.attempt_id, again.long_polling_timeout.ToTimedelta()) == (asked(server)[0].attempt_id, timedelta(0))


# ---- Ahead ----


async def test_full_receives_in_quick_succession_let_the_next_one_begin(server: ScriptedServer) -> None:
    put(server, 8)
    async with consumer_of(server) as consumer:
        assert bodies(await consumer.receive(2)) == ["0", "1"]
        assert len(asked(server)) == 1, "one receive says nothing of a next one"
        assert bodies(await consumer.receive(2)) == ["2", "3"]
        await until(lambda: len(asked(server)) == 3)
        assert asked(server)[-1].long_polling_timeout.ToTimedelta() == timedelta(0)
        assert bodies(await consumer.receive(2)) == ["4", "5"]
        await until(lambda: len(asked(server)) == 4)
        assert bodies(await consumer.receive(2)) == ["6", "7"]


async def test_a_synchronous_consumer_too() -> None:
    with ServerThread(capabilities=OFFERED) as thread, SimpleConsumer(thread.endpoints, "g", "t") as consumer:
        put(thread.server, 6)
        for _ in range(2):
            await asyncio.to_thread(consumer.receive, 2)
        await until(lambda: len(asked(thread.server)) == 3)
        assert bodies(await asyncio.to_thread(consumer.receive, 2)) == ["4", "5"]


async def test_iteration_too(server: ScriptedServer) -> None:
    put(server, 6)
    async with consumer_of(server, max_messages=2) as consumer:
        seen = []
        async for message in consumer:
            seen.append(message.text)
            if len(seen) == 3:
                break
        await until(lambda: len(asked(server)) == 3)
    assert seen == ["0", "1", "2"]
    assert sorted(given_back(server)) == ["t-3", "t-4", "t-5"], "what waited and what came ahead"


async def test_it_brings_as_many_as_were_worked_off_lately(server: ScriptedServer) -> None:
    put(server, 400)
    async with consumer_of(server) as consumer:
        seen = [body for _ in range(40) for body in bodies(await consumer.receive(10))]
    assert seen == [str(number) for number in range(400)]
    sizes = [request.batch_size for request in asked(server)]
    assert sizes[:3] == [10, 10, 10]
    assert 10 < max(sizes) <= 120, "at most 128, in whole receives"
    assert len(sizes) < 40


async def test_a_message_group_comes_one_receive_at_a_time(server: ScriptedServer) -> None:
    """Otherwise a message would be handed out although one of its group, in a receive before, fails now."""
    put(server, 60)
    for message in server.stored["t"]:
        message.system_properties.message_group = "g"
    async with consumer_of(server) as consumer:
        came = [(await consumer.receive(2))[0].receipt_handle for _ in range(20)]
        sizes = [request.batch_size for request in asked(server)]
    assert max(sizes) > 2, "it is not known before"
    first_large = next(index for index, size in enumerate(sizes) if size > 2)
    assert set(sizes[first_large + 2 :]) == {2}
    large = [each.system_properties.receipt_handle for each in server.answered[asked(server)[first_large].attempt_id]]
    assert came[came.index(large[0]) + 1] not in large
    assert len(given_back(server)) >= len(large) - 2


async def test_receives_that_are_not_full_begin_none(server: ScriptedServer) -> None:
    put(server, 3)
    async with consumer_of(server) as consumer:
        assert await quick(consumer) == ["0", "1", "2"]
        put(server, 1, first=3)
        assert bodies(await consumer.receive(2)) == ["3"]
    assert [bool(request.long_polling_timeout.ToTimedelta()) for request in asked(server)] == [True] * 3


async def test_nor_do_slow_ones(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popclient._engine.flow.PACE_SPAN", 0.0)
    put(server, 6)
    async with consumer_of(server) as consumer:
        await quick(consumer)
        assert bodies(await consumer.receive(2)) == ["4", "5"]
    assert all(request.long_polling_timeout.ToTimedelta() for request in asked(server))


async def test_a_topic_begins_when_its_turn_is_next(server: ScriptedServer) -> None:
    for topic in "ab":
        put(server, 6, topic)
    async with consumer_of(server, ["a", "b"]) as consumer:
        seen = [(await consumer.receive(2))[0].topic for _ in range(6)]
    assert seen == ["a", "b"] * 3
    ahead = [request for request in asked(server) if not request.long_polling_timeout.ToTimedelta()]
    assert [request.message_queue.topic.name for request in ahead][:2] == ["a", "b"]


async def test_topics_share_what_was_worked_off_lately(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popclient._engine.flow.PACE_SPAN", math.inf)  # all of it is lately
    for topic in "ab":
        put(server, 200, topic)
    handed_out = 0
    ahead: list[tuple[int, int]] = []

    def note(request: Any) -> None:
        if not request.long_polling_timeout.ToTimedelta():
            ahead.append((request.batch_size, handed_out))

    server.answers["ReceiveBatch"] = note
    async with consumer_of(server, ["a", "b"]) as consumer:
        for _ in range(60):
            handed_out += len(await consumer.receive(2))
    assert max(size for size, _ in ahead) > 2
    assert all(size <= max(2, done // 2) for size, done in ahead), "half for each topic, or one receive"


async def test_what_nobody_asks_for_is_given_back(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popclient._simple.polls.UNUSED_PATIENCE_S", 0.02)
    put(server, 10)
    async with consumer_of(server) as consumer:
        await quick(consumer)
        await until(lambda: sorted(given_back(server)) == ["t-4", "t-5"])
        before = len(asked(server))
        again = await quick(consumer) + bodies(await consumer.receive(2))
    assert again == ["4", "5", "6", "7", "8", "9"]
    assert all(each.long_polling_timeout.ToTimedelta() for each in asked(server)[before:]), "none begins for a while"


async def test_the_end_of_the_consumer_gives_it_back(server: ScriptedServer) -> None:
    put(server, 6)
    async with consumer_of(server) as consumer:
        await quick(consumer)
        await until(lambda: len(server.held) == 6)
    assert sorted(given_back(server)) == ["t-4", "t-5"]


@pytest.mark.parametrize("other", [{"max_messages": 3}, {"max_messages": 2, "invisible_duration": 60}])
async def test_a_receive_of_another_kind_does_not_get_it(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    monkeypatch.setattr("popclient._simple.polls.UNUSED_PATIENCE_S", 0.2)
    put(server, 9)
    async with consumer_of(server) as consumer:
        await quick(consumer)
        await until(lambda: len(server.held) == 6)
        found = await consumer.receive(**other)
        assert not {"4", "5"} & set(bodies(found))
        await until(lambda: {"t-4", "t-5"} <= set(given_back(server)))  # and later ones, if the machine is slow


async def test_what_has_waited_for_half_of_its_hold_is_not_handed_out(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an event loop that stood still, or a laptop that slept."""
    put(server, 8)
    async with consumer_of(server, invisible_duration=30) as consumer:
        await quick(consumer)
        await until(lambda: len(server.held) == 6)
        late = convert.now() + timedelta(seconds=15)
        came_ahead = {each.system_properties.receipt_handle for each in server.answered[asked(server)[2].attempt_id]}
        monkeypatch.setattr("popclient._session.convert.now", lambda: late)
        found = await consumer.receive(2)
        assert not came_ahead & {message.receipt_handle for message in found}, "though it may be the same messages"
        await until(lambda: {"t-4", "t-5"} <= set(given_back(server)))


@pytest.mark.parametrize("await_duration", [0, 0.5, 1])
@pytest.mark.parametrize("code", [pb.MESSAGE_NOT_FOUND, pb.INTERNAL_SERVER_ERROR], ids=["empty", "failed"])
async def test_a_receive_that_waits_for_one_that_brings_nothing_asks_itself(
    server: ScriptedServer, code: int, await_duration: float
) -> None:
    """Even if its time is shorter than what is worth a second poll elsewhere: this is its first."""
    put(server, 6)
    nothing = receiving_pb2.ReceiveBatchResponse(status=status(code))
    gate = server.gates["ReceiveBatch"] = asyncio.Event()
    gate.set()
    async with consumer_of(server) as consumer:
        await consumer.receive(2)
        server.answers["ReceiveBatch"] = lambda each: None if each.long_polling_timeout.ToTimedelta() else nothing
        await consumer.receive(2)
        gate.clear()
        following = asyncio.ensure_future(consumer.receive(2, await_duration=await_duration))
        await until(lambda: len(asked(server)) == 3)
        gate.set()
        assert bodies(await following) == ["4", "5"]


async def test_its_holds_count_from_its_first_request(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server repeats what it has granted to the first one; the holds do not begin anew."""
    put(server, 6)
    began = convert.now()

    def lose(request: Any) -> Any:
        if request.long_polling_timeout.ToTimedelta():
            return None
        del server.answers["ReceiveBatch"]
        server.answered[request.attempt_id] = server._take(request)
        monkeypatch.setattr("popclient._session.convert.now", lambda: began + timedelta(seconds=10))
        return grpc.StatusCode.UNAVAILABLE

    async with consumer_of(server, invisible_duration=60) as consumer:
        await consumer.receive(2)
        server.answers["ReceiveBatch"] = lose
        await consumer.receive(2)
        found = await consumer.receive(2)
        assert bodies(found) == ["4", "5"]
        assert len({request.attempt_id for request in asked(server)}) == 3
        assert all(message.invisible_until < began + timedelta(seconds=65) for message in found)


async def test_its_failure_is_not_the_next_receives(server: ScriptedServer) -> None:
    put(server, 6)
    failure = receiving_pb2.ReceiveBatchResponse(status=status(pb.INTERNAL_SERVER_ERROR, "once"))
    gate = server.gates["ReceiveBatch"] = asyncio.Event()
    gate.set()
    async with consumer_of(server) as consumer:
        await consumer.receive(2)
        server.answers["ReceiveBatch"] = lambda each: None if each.long_polling_timeout.ToTimedelta() else failure
        await consumer.receive(2)
        gate.clear()
        following = asyncio.ensure_future(consumer.receive(2))
        await until(lambda: len(asked(server)) == 3)
        gate.set()
        assert bodies(await following) == ["4", "5"]


# ---- With the real server ----


@pytest.mark.row("K9")
async def test_a_consumer_that_stops_burns_no_attempt_and_leaves_nothing_held(
    shared: popserver.EmbeddedBroker, topic: str
) -> None:
    async with aio.Producer(shared.endpoint) as producer:
        (await producer.send_many([Message(topic, str(number)) for number in range(20)])).raise_for_failures()
    async with aio.SimpleConsumer(shared.endpoint, "g", topic) as first:
        begun = [message for _ in range(3) for message in await first.receive(4)]
        await first.ack(begun)
    seen: dict[str, int] = {}
    async with aio.SimpleConsumer(shared.endpoint, "g", topic) as second, asyncio.timeout(60):
        while len(seen) < 8:
            for message in await second.receive():
                seen[message.text] = message.delivery_attempt
                await second.ack(message)
    assert (len(begun), set(seen.values())) == (12, {1})
    assert not set(bodies(begun)) & set(seen)


@pytest.mark.row("K5")
async def test_message_groups_stay_in_order_when_messages_fail(shared: popserver.EmbeddedBroker, topic: str) -> None:
    groups, each = 6, 20
    messages = [
        Message(topic, str(number), message_group=f"g{group}") for number in range(each) for group in range(groups)
    ]
    async with aio.Producer(shared.endpoint) as producer:
        (await producer.send_many(messages)).raise_for_failures()
    done: Counter[str | None] = Counter()
    async with aio.SimpleConsumer(shared.endpoint, "g", topic) as consumer, asyncio.timeout(60):
        while done.total() < groups * each:
            failed: set[str | None] = set()
            for message in await consumer.receive(4, await_duration=1):
                group, number = message.message_group, int(message.text)
                if group in failed or (message.delivery_attempt == 1 and number % 7 == 3):
                    failed.add(group)
                    await consumer.change_invisible_duration(message, 0)
                    continue
                assert number == done[group], f"of {group}, which has come to {done[group]}"
                await consumer.ack(message)
                done[group] += 1
