"""Receiving and settling: what is received is never lost, neither in a cancelled call nor in a closed consumer."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import math
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

from popclient import (
    BadRequest,
    ClientClosed,
    ClientConfig,
    FilterExpression,
    InvalidReceiptHandle,
    MessageView,
    MultipleResults,
    NotFound,
    UnexpectedAnswer,
    aio,
)
from popclient._simple.polls import Poll
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.scripted_server import OK, ScriptedServer, put, status, until


def consumer_of(server: ScriptedServer, topics: Any = "t", **given: Any) -> aio.SimpleConsumer:
    return aio.SimpleConsumer(server.endpoints, "g", topics, **given)


def bodies(messages: list[MessageView]) -> list[str]:
    return [message.text for message in messages]


# ---- Receive ----


async def test_a_receive_asks_for_what_it_was_told(server: ScriptedServer) -> None:
    put(server, 3)
    topics = {"t": FilterExpression("a || b")}
    async with consumer_of(server, topics) as consumer:
        asked = datetime.now(UTC)
        found = await consumer.receive(2, invisible_duration=timedelta(seconds=40), await_duration=7)
    [request] = server.requests("ReceiveMessage")
    assert bodies(found) == ["0", "1"]
    assert (request.batch_size, request.auto_renew) == (2, False)
    assert request.invisible_duration.ToTimedelta() == timedelta(seconds=40)
    assert abs(request.long_polling_timeout.ToTimedelta() - timedelta(seconds=7)) < timedelta(milliseconds=50)
    assert (request.filter_expression.type, request.filter_expression.expression) == (pb.TAG, "a || b")
    assert (request.group.name, request.message_queue.topic.name) == ("g", "t")
    assert request.attempt_id
    assert timedelta(0) <= found[0].invisible_until - asked - timedelta(seconds=40) < timedelta(seconds=1)


async def test_a_sql_filter_is_sent_as_one(server: ScriptedServer) -> None:
    put(server, 1)
    async with consumer_of(server, {"t": FilterExpression.sql("a > 3")}) as consumer:
        await consumer.receive()
    filtered = server.requests("ReceiveMessage")[0].filter_expression
    assert (filtered.type, filtered.expression) == (pb.SQL, "a > 3")


async def test_settings_tell_group_and_subscriptions(server: ScriptedServer) -> None:
    async with consumer_of(server, ["a", "b"]):
        sent = server.settings[0]
    assert (sent.client_type, sent.subscription.group.name) == (pb.SIMPLE_CONSUMER, "g")
    assert [entry.topic.name for entry in sent.subscription.subscriptions] == ["a", "b"]


async def test_nothing_there_is_an_empty_list_after_the_await_duration(server: ScriptedServer) -> None:
    async with consumer_of(server) as consumer, asyncio.timeout(15):
        assert await consumer.receive(await_duration=0.05) == []


async def test_a_poll_left_behind_by_a_short_await_is_taken_up(server: ScriptedServer) -> None:
    async with consumer_of(server) as consumer:
        assert await consumer.receive(await_duration=0) == []
        waiting = asyncio.ensure_future(consumer.receive())
        await asyncio.sleep(0)
        put(server, 2)
        assert bodies(await waiting) == ["0", "1"]
    assert len(server.requests("ReceiveMessage")) == 1


async def test_a_message_has_everything(server: ScriptedServer) -> None:
    message = pb.Message(topic=pb.Resource(name="t"), user_properties={"k": "v"}, body=gzip.compress(b"plain"))
    system = message.system_properties
    system.message_id, system.tag, system.message_group, system.receipt_handle = "id", "tag", "group", "handle"
    system.keys.extend(["a", "b"])
    system.queue_id, system.queue_offset, system.delivery_attempt, system.priority = 3, 42, 2, 7
    system.body_encoding, system.message_type, system.born_host = pb.GZIP, pb.FIFO, "host"
    system.body_digest.type = pb.MD5
    system.body_digest.checksum = hashlib.md5(message.body).hexdigest().upper()
    for stamp, second in ((system.born_timestamp, 1), (system.store_timestamp, 2), (system.delivery_timestamp, 3)):
        stamp.FromSeconds(second)
    system.dead_letter_queue.topic, system.dead_letter_queue.message_id = "from", "origin"
    frames = [rpc.ReceiveMessageResponse(status=OK), rpc.ReceiveMessageResponse(message=message)]
    server.answers["ReceiveMessage"] = lambda _: frames
    async with consumer_of(server) as consumer:
        [view] = await consumer.receive()
    assert (view.topic, view.message_id, view.tag, view.keys) == ("t", "id", "tag", ("a", "b"))
    assert (view.body, view.text, view.properties, view.corrupted) == (b"plain", "plain", {"k": "v"}, False)
    assert (view.queue_id, view.queue_offset, view.delivery_attempt, view.priority) == (3, 42, 2, 7)
    assert (view.message_group, view.message_type, view.born_host) == ("group", "FIFO", "host")
    assert view.born_timestamp == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert view.store_timestamp == datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert view.delivery_timestamp == datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    assert view.dead_letter_queue == ("from", "origin")


@pytest.mark.row("N9")
async def test_the_repr_tells_id_queue_and_offset(server: ScriptedServer) -> None:
    put(server, 1)
    async with consumer_of(server) as consumer:
        [view] = await consumer.receive()
    assert repr(view) == "<MessageView t-0 topic='t' queue=0 offset=0 attempt=1 tag=None 1 bytes>"
    assert (view.tag, view.message_group, view.store_timestamp, view.dead_letter_queue) == (None, None, None, None)


def test_the_packed_body_of_the_cpp_client_is_a_zlib_stream() -> None:
    wire = pb.Message(body=zlib.compress(b"plain"))
    wire.system_properties.body_encoding = pb.GZIP
    assert MessageView(wire, datetime.now(UTC)).body == b"plain"


@pytest.mark.parametrize(("kind", "checksum"), [(pb.CRC32, "0352441C2"), (pb.CRC32, "352441c2"), (pb.MD5, "00")])
def test_a_body_that_differs_from_its_digest_is_corrupted(kind: Any, checksum: str) -> None:
    wire = pb.Message(body=b"abc")
    wire.system_properties.body_digest.type = kind
    wire.system_properties.body_digest.checksum = checksum
    assert MessageView(wire, datetime.now(UTC)).corrupted is (kind == pb.MD5)


async def test_a_refused_receive_raises_the_servers_sentence(server: ScriptedServer) -> None:
    refusal = status(pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small: 1 ms")
    server.answers["ReceiveMessage"] = lambda _: [rpc.ReceiveMessageResponse(status=refusal)]
    async with consumer_of(server) as consumer:
        with pytest.raises(BadRequest, match="too small: 1 ms"):
            await consumer.receive()


async def test_bad_parameters_are_named(server: ScriptedServer) -> None:
    async with consumer_of(server) as consumer:
        with pytest.raises(ValueError, match="max_messages is 0"):
            await consumer.receive(0)
        with pytest.raises(ValueError, match="invisible_duration is -1"):
            await consumer.receive(invisible_duration=-1)
        with pytest.raises(TypeError, match="duration is None; it must be seconds or a timedelta"):
            await consumer.change_invisible_duration(MessageView.unheld(pb.Message()), None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least one topic"):
        consumer_of(server, [])
    with pytest.raises(TypeError, match=r"max_messages is 1\.5; it must be a whole number, at least 1"):
        consumer_of(server, max_messages=1.5)
    with pytest.raises(ValueError, match="await_duration is nan"):
        consumer_of(server, await_duration=math.nan)
    with pytest.raises(TypeError, match=r"topics\['a'\] is 5"):
        consumer_of(server, {"a": 5})
    with pytest.raises(TypeError, match="expression is 5; a filter is a text"):
        FilterExpression(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="type is 'sql'; it must be 'TAG' or 'SQL'"):
        FilterExpression("a > 3", "sql")  # type: ignore[arg-type]


async def test_an_unknown_topic_is_told_on_entering(server: ScriptedServer) -> None:
    server.answers["QueryRoute"] = lambda _: rpc.QueryRouteResponse(status=status(pb.TOPIC_NOT_FOUND, "make it"))
    with pytest.raises(NotFound, match="make it"):
        async with consumer_of(server):
            pass


async def test_a_receive_that_breaks_before_a_message_is_repeated(server: ScriptedServer) -> None:
    put(server, 1)
    answers = iter([[rpc.ReceiveMessageResponse(status=OK), grpc.StatusCode.UNAVAILABLE]])
    server.answers["ReceiveMessage"] = lambda _: next(answers, None)
    async with consumer_of(server) as consumer:
        assert bodies(await consumer.receive()) == ["0"]


async def test_what_came_before_a_receive_broke_is_handed_out_at_once(server: ScriptedServer) -> None:
    put(server, 3)
    frames = [rpc.ReceiveMessageResponse(message=server._hold(message)) for message in server.stored["t"]]
    server.answers["ReceiveMessage"] = lambda _: [*frames[:2], grpc.StatusCode.UNAVAILABLE]
    async with consumer_of(server) as consumer:
        assert bodies(await consumer.receive()) == ["0", "1"]
    assert len(server.requests("ReceiveMessage")) == 1


async def test_a_hold_counts_from_the_first_message_not_from_the_end_of_a_slow_stream(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived: list[MessageView] = []

    def arrive(wire: pb.Message, invisible_until: datetime) -> MessageView:
        arrived.append(MessageView(wire, invisible_until))
        return arrived[-1]

    monkeypatch.setattr("popclient._engine.receive.MessageView", arrive)
    put(server, 2)
    first, second = (rpc.ReceiveMessageResponse(message=server._hold(message)) for message in server.stored["t"])
    gate = asyncio.Event()
    server.answers["ReceiveMessage"] = lambda _: [first, gate.wait(), second]
    async with consumer_of(server, invisible_duration=30) as consumer:
        receiving = asyncio.ensure_future(consumer.receive())
        await until(lambda: arrived)
        released_at = datetime.now(UTC)
        gate.set()
        received = await receiving
    assert bodies(received) == ["0", "1"]
    assert all(view.invisible_until < released_at + timedelta(seconds=30) for view in received)


# ---- Several topics ----


async def test_topics_take_turns(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    # However long an answer takes, the next topic is not asked as well.
    monkeypatch.setattr("popclient._simple.core.HEDGE", 60)
    for topic in "abc":
        put(server, 4, topic)
    async with consumer_of(server, ["a", "b", "c"]) as consumer:
        seen = [(await consumer.receive(2))[0].topic for _ in range(6)]
    assert seen == ["a", "b", "c"] * 2
    assert len(server.requests("ReceiveMessage")) == 6, "a topic with messages is not asked for more than was wanted"


async def test_no_long_poll_is_spent_on_an_empty_topic(server: ScriptedServer) -> None:
    put(server, 4, "c")
    async with consumer_of(server, ["a", "b", "c"]) as consumer, asyncio.timeout(15):
        seen = [message.message_id for _ in range(4) for message in await consumer.receive(1)]
        assert seen == [f"c-{n}" for n in range(4)]
        put(server, 1, "a")
        assert [message.topic for message in await consumer.receive(1)] == ["a"]
    # The end of the consumer repeats what is on its way.
    attempts = {request.attempt_id: request.message_queue.topic.name for request in server.requests("ReceiveMessage")}
    polls = list(attempts.values())
    assert (polls.count("a"), polls.count("b")) == (1, 1), "one parked poll for each empty topic serves all receives"


@pytest.mark.row("K9")
async def test_what_the_server_granted_to_a_poll_that_is_ended_is_given_back(server: ScriptedServer) -> None:
    put(server, 3)
    server.grant_without_answer()
    async with consumer_of(server) as consumer:
        assert await consumer.receive(await_duration=0) == []
    assert len({request.attempt_id for request in server.requests("ReceiveMessage")}) == 1
    changes = server.requests("ChangeInvisibleDuration")
    assert sorted(request.message_id for request in changes if request.suspend) == ["t-0", "t-1", "t-2"]


# ---- Giving up ----


async def test_a_cancelled_receive_loses_nothing(server: ScriptedServer) -> None:
    async with consumer_of(server) as consumer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.receive(), 0.05)
        put(server, 2)
        assert bodies(await consumer.receive()) == ["0", "1"]
    assert len(server.requests("ReceiveMessage")) == 1


async def test_what_a_cancelled_receive_brings_goes_back_when_nobody_asks(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popclient._simple.polls.UNUSED_PATIENCE_S", 0.02)
    async with consumer_of(server) as consumer:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.receive(), 0.05)
        put(server, 2)
        await until(lambda: len(server.given_back) == 2)
        assert all(change.suspend for change in server.requests("ChangeInvisibleDuration"))
        assert len(await consumer.receive()) == 2


async def test_what_a_left_poll_has_brought_goes_back_however_long_closing_takes(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popclient._simple.polls.UNUSED_PATIENCE_S", 0.05)
    consumer = consumer_of(server, ["a", "b"])
    polls = consumer._core._polls
    ask, drop_stray = polls._ask, polls._drop_unused
    dropped = asyncio.Event()

    async def slow_to_end(poll: Poll) -> None:
        try:
            await ask(poll)
        finally:
            if poll.topic == "b":
                await dropped.wait()

    def drop(poll: Poll) -> None:
        drop_stray(poll)
        dropped.set()

    monkeypatch.setattr(polls, "_ask", slow_to_end)
    monkeypatch.setattr(polls, "_drop_unused", drop)
    left = asyncio.create_task(consumer.receive())
    await until(lambda: len(server.requests("ReceiveMessage")) == 2)
    left.cancel()
    put(server, 2, "a")
    await until(lambda: any(poll.messages for poll in polls._all))
    await consumer.close()
    assert len(server.given_back) == 2


# ---- Ack, hold, dead letter ----


async def test_concurrent_acks_travel_together(server: ScriptedServer) -> None:
    put(server, 32)
    async with consumer_of(server) as consumer:
        await asyncio.gather(*map(consumer.ack, await consumer.receive()))
    assert [len(request.entries) for request in server.requests("AckMessage")] == [32]
    assert not server.held


async def test_an_ack_that_fails_fails_alone(server: ScriptedServer) -> None:
    put(server, 3)
    async with consumer_of(server) as consumer:
        messages = await consumer.receive()
        del server.held[messages[1].receipt_handle]
        outcomes = await asyncio.gather(*map(consumer.ack, messages), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), InvalidReceiptHandle, type(None)]
    assert len(server.requests("AckMessage")) == 1


async def test_acking_several_tells_which_failed(server: ScriptedServer) -> None:
    put(server, 3)
    async with consumer_of(server) as consumer:
        messages = await consumer.receive()
        del server.held[messages[1].receipt_handle]
        with pytest.raises(MultipleResults, match="1 of 3 messages were not acked") as raised:
            await consumer.ack(messages)
        await consumer.ack([])
    [(message, why)] = raised.value.failures
    assert message is messages[1]
    assert isinstance(why, InvalidReceiptHandle)


async def test_acks_are_matched_by_their_handles(server: ScriptedServer) -> None:
    put(server, 3)

    def backwards(request: rpc.AckMessageRequest) -> rpc.AckMessageResponse:
        made = server.ack(request)
        turned = list(reversed(made.entries))
        del made.entries[:]
        made.entries.extend(turned)
        return made

    server.answers["AckMessage"] = backwards
    async with consumer_of(server) as consumer:
        messages = await consumer.receive()
        del server.held[messages[0].receipt_handle]
        with pytest.raises(MultipleResults) as raised:
            await consumer.ack(messages)
    assert [message for message, _ in raised.value.failures] == [messages[0]]


@pytest.mark.parametrize("answers", [1, 2])
async def test_one_handle_acked_twice_at_once_has_two_outcomes(server: ScriptedServer, answers: int) -> None:
    put(server, 2)

    def answer(request: rpc.AckMessageRequest) -> rpc.AckMessageResponse:
        made = server.ack(request)
        if answers == 1:  # a server that drops the repeat
            del made.entries[1]
        return made

    server.answers["AckMessage"] = answer
    async with consumer_of(server) as consumer:
        one, other = await consumer.receive()
        outcomes = await asyncio.gather(*map(consumer.ack, [one, one, other]), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [
        type(None),
        InvalidReceiptHandle if answers == 2 else type(None),
        type(None),
    ]


async def test_an_ack_that_the_server_does_not_mention_is_not_taken_for_done(server: ScriptedServer) -> None:
    put(server, 2)

    def answer(request: rpc.AckMessageRequest) -> rpc.AckMessageResponse:
        made = server.ack(request)
        del made.entries[0]
        return made

    server.answers["AckMessage"] = answer
    async with consumer_of(server) as consumer:
        messages = await consumer.receive()
        outcomes = await asyncio.gather(*map(consumer.ack, messages), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [UnexpectedAnswer, type(None)]


@pytest.mark.parametrize("wrong", ["handle", ["x"], 5, None])
async def test_only_messages_are_acked(server: ScriptedServer, wrong: Any) -> None:
    async with consumer_of(server) as consumer:
        with pytest.raises(TypeError, match="ack takes messages"):
            await consumer.ack(wrong)


async def test_a_refused_batch_of_acks_is_sent_one_by_one(server: ScriptedServer) -> None:
    put(server, 3)

    def answer(request: rpc.AckMessageRequest) -> rpc.AckMessageResponse:
        if len(request.entries) > 1:
            return rpc.AckMessageResponse(status=status(pb.BAD_REQUEST))
        return server.ack(request)

    server.answers["AckMessage"] = answer
    async with consumer_of(server) as consumer:
        await consumer.ack(await consumer.receive())
    assert [len(request.entries) for request in server.requests("AckMessage")] == [3, 1, 1, 1]


async def test_changing_the_invisible_duration_renews_the_handle_in_place(server: ScriptedServer) -> None:
    put(server, 1)
    async with consumer_of(server) as consumer:
        [message] = await consumer.receive()
        old = message.receipt_handle
        await consumer.change_invisible_duration(message, 60)
        assert message.receipt_handle != old
        assert message.invisible_until - datetime.now(UTC) > timedelta(seconds=55)
        await consumer.ack(message)
    assert server.requests("AckMessage")[0].entries[0].receipt_handle == message.receipt_handle
    assert not server.requests("ChangeInvisibleDuration")[0].HasField("suspend")


async def test_a_failed_change_keeps_the_old_handle(server: ScriptedServer) -> None:
    put(server, 1)
    server.answers["ChangeInvisibleDuration"] = lambda _: rpc.ChangeInvisibleDurationResponse(
        status=status(pb.INVALID_RECEIPT_HANDLE)
    )
    async with consumer_of(server) as consumer:
        [message] = await consumer.receive()
        before = (message.receipt_handle, message.invisible_until)
        with pytest.raises(InvalidReceiptHandle):
            await consumer.change_invisible_duration(message, 60)
        assert (message.receipt_handle, message.invisible_until) == before


async def test_forwarding_to_the_dead_letter_queue(server: ScriptedServer) -> None:
    put(server, 1)
    async with consumer_of(server) as consumer:
        [message] = await consumer.receive()
        await consumer.forward_to_dead_letter_queue(message)
    [request] = server.requests("ForwardMessageToDeadLetterQueue")
    assert (request.receipt_handle, request.message_id) == (message.receipt_handle, "t-0")
    assert (request.delivery_attempt, request.max_delivery_attempts) == (1, 3)


# ---- Iteration and the end ----


async def test_iteration_hands_out_one_after_the_other_until_closed(server: ScriptedServer) -> None:
    put(server, 40)
    seen = []
    async with consumer_of(server) as consumer:
        async for message in consumer:
            seen.append(message.text)
            await consumer.ack(message)
            if len(seen) == 40:
                asyncio.get_running_loop().call_later(0.05, asyncio.ensure_future, consumer.close())
    assert seen == [str(number) for number in range(40)]
    assert not server.held


async def test_tasks_that_iterate_one_consumer_share_what_it_receives(server: ScriptedServer) -> None:
    put(server, 2)
    async with consumer_of(server) as consumer, asyncio.timeout(60):
        messages = list(await asyncio.gather(anext(aiter(consumer)), anext(aiter(consumer))))
    assert sorted(bodies(messages)) == ["0", "1"]
    assert len(server.requests("ReceiveMessage")) == 1


async def test_iteration_survives_a_server_that_fails_for_a_while(server: ScriptedServer) -> None:
    put(server, 1)
    answers = iter([[rpc.ReceiveMessageResponse(status=status(pb.TOO_MANY_REQUESTS))]] * 2)
    server.answers["ReceiveMessage"] = lambda _: next(answers, None)
    async with consumer_of(server) as consumer:
        async for message in consumer:
            assert message.text == "0"
            break


async def test_iteration_tells_what_will_not_pass(server: ScriptedServer) -> None:
    server.answers["ReceiveMessage"] = lambda _: [rpc.ReceiveMessageResponse(status=status(pb.FORBIDDEN, "no"))]
    async with consumer_of(server) as consumer:
        with pytest.raises(Exception, match="FORBIDDEN"):
            async for _ in consumer:
                pass


async def test_a_message_is_handed_out_with_half_its_hold_left_or_not_at_all(server: ScriptedServer) -> None:
    put(server, 3)
    async with consumer_of(server, invisible_duration=30) as consumer:
        seen = []
        async for message in consumer:
            seen.append(message)
            if len(seen) == 2:
                break
            stale, lost = list(consumer._core._ready)
            for view in (stale, lost):
                view._renew_hold(view.receipt_handle, datetime.now(UTC) + timedelta(seconds=14))
            del server.held[stale.receipt_handle]
        assert bodies(seen) == ["0", "2"], "the hold of the second was lost, that of the third was renewed"
        assert seen[1].invisible_until - datetime.now(UTC) > timedelta(seconds=29)


async def test_what_waits_for_half_of_its_hold_goes_back(server: ScriptedServer) -> None:
    """Its attempt does not count. It would if its hold ended in the client."""
    put(server, 8)
    async with consumer_of(server, invisible_duration=0.2, max_messages=8) as consumer:
        await consumer.ack(await anext(aiter(consumer)))
        await until(lambda: len(server.given_back) == 7)
    assert all(change.suspend for change in server.requests("ChangeInvisibleDuration"))


async def test_only_what_has_waited_goes_back_and_then_less_is_received(server: ScriptedServer) -> None:
    put(server, 20)
    async with consumer_of(server, invisible_duration=30, max_messages=8) as consumer:
        iterating = aiter(consumer)
        for _ in range(3):
            await consumer.ack(await anext(iterating))
        core = consumer._core
        core.give_back_late()
        assert len(core._ready) == 5, "more than half of their hold is left"
        for view in core._ready:
            view._renew_hold(view.receipt_handle, datetime.now(UTC) + timedelta(seconds=14))
        core.give_back_late()
        await until(lambda: len(server.given_back) == 5)
        await consumer.ack(await anext(iterating))
    assert [each.batch_size for each in server.requests("ReceiveMessage")] == [8, 2], "three were handed out in time"


async def test_closing_gives_back_what_was_not_handed_out(server: ScriptedServer) -> None:
    put(server, 10)
    async with consumer_of(server) as consumer:
        async for message in consumer:
            await consumer.ack(message)
            break
    changes = server.requests("ChangeInvisibleDuration")
    assert len(changes) == len(server.given_back) == 9
    assert all(change.suspend and not change.invisible_duration.ToTimedelta() for change in changes)
    assert [name for name, _ in server.calls][-1] == "NotifyClientTermination"
    assert server.requests("NotifyClientTermination")[0].group.name == "g"
    await until(lambda: not server.streams)


async def test_closing_ends_a_waiting_receive_and_iteration(server: ScriptedServer) -> None:
    consumer = consumer_of(server)
    receiving = asyncio.ensure_future(consumer.receive())
    iterating = asyncio.ensure_future(anext(aiter(consumer), "ended"))
    await until(lambda: len(server.requests("ReceiveMessage")) == 2)
    async with asyncio.timeout(15):
        await consumer.close()
    with pytest.raises(ClientClosed):
        await receiving
    assert await iterating == "ended"
    with pytest.raises(ClientClosed):
        await consumer.receive()


async def test_closing_flushes_acks_and_is_bounded(server: ScriptedServer) -> None:
    put(server, 2)
    config = ClientConfig(endpoints=server.endpoints, close_timeout=0.1, request_timeout=600)
    consumer = aio.SimpleConsumer(config, "g", "t")
    messages = await consumer.receive()
    server.gates["AckMessage"] = asyncio.Event()
    acking = asyncio.ensure_future(consumer.ack(messages))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await consumer.close()
    with pytest.raises(MultipleResults):
        await acking
    with pytest.raises(ClientClosed):
        await consumer.ack(messages[0])
    assert len(server.requests("AckMessage")) == 1


async def test_an_interrupted_closing_leaves_nothing_behind(server: ScriptedServer) -> None:
    put(server, 1)
    consumer = consumer_of(server)
    messages = await consumer.receive()
    server.gates["AckMessage"] = asyncio.Event()
    acking = asyncio.ensure_future(consumer.ack(messages))
    await until(lambda: server.requests("AckMessage"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.close(), 0.05)
    with pytest.raises(MultipleResults):
        await asyncio.wait_for(acking, 60)
    await until(lambda: not server.streams)
