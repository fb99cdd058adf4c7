"""Sending: each message its own outcome, together or alone, tried again when that may help."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import grpc
import pytest

from popclient import (
    BadRequest,
    ClientClosed,
    ClientConfig,
    Message,
    MultipleResults,
    NotFound,
    PayloadTooLarge,
    PopError,
    Producer,
    SendReceipt,
    Tls,
    TooManyRequests,
    UnexpectedAnswer,
    Unreachable,
    aio,
)
from popclient.sql import enqueue
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.scripted_server import OK, ScriptedServer, status, until


def bodies(request: rpc.SendMessageRequest) -> list[bytes]:
    return [message.body for message in request.messages]


def refusing(server: ScriptedServer, unwanted: bytes, code: int, times: int = 99) -> None:
    """The server stores everything but bodies of that text, which it refuses some times."""
    left = [times]

    def answer(request: rpc.SendMessageRequest) -> rpc.SendMessageResponse:
        made = rpc.SendMessageResponse(status=status(pb.MULTIPLE_RESULTS))
        for message in request.messages:
            if message.body == unwanted and left[0]:
                left[0] -= 1
                made.entries.add(status=status(code, "no"), message_id=message.system_properties.message_id)
            else:
                made.entries.append(server.store(rpc.SendMessageRequest(messages=[message])).entries[0])
        return made

    server.answers["SendMessage"] = answer


async def test_a_message_arrives_as_it_was_sent(server: ScriptedServer) -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    async with aio.Producer(server.endpoints) as producer:
        receipt = await producer.send(
            "t", "päper", tag="UA", keys=["a", "b"], properties={"origin": "JFK"}, delivery_timestamp=due
        )
        await producer.send(Message("t", b"2", keys="one", message_group="g", trace_context="00-1", message_id="mine"))
        await producer.send(Message("t", b"3", priority=3))
    first, second, third = server.stored["t"]
    system = first.system_properties
    assert receipt == SendReceipt(system.message_id, 0)
    assert first.body == "päper".encode()
    assert dict(first.user_properties) == {"origin": "JFK"}
    assert (system.tag, list(system.keys), system.message_type) == ("UA", ["a", "b"], pb.DELAY)
    assert system.delivery_timestamp.ToDatetime(UTC) == due
    assert abs(system.born_timestamp.ToDatetime(UTC) - datetime.now(UTC)) < timedelta(minutes=1)
    assert (system.body_encoding, bool(system.born_host)) == (pb.IDENTITY, True)
    assert not system.HasField("message_group")
    system = second.system_properties
    assert (system.message_id, system.message_group, system.message_type) == ("mine", "g", pb.FIFO)
    assert (list(system.keys), system.trace_context) == (["one"], "00-1")
    assert (third.system_properties.priority, third.system_properties.message_type) == (3, pb.PRIORITY)


def test_a_message_shows_the_beginning_of_its_body() -> None:
    assert repr(Message("t", b"x", tag="a", delay=5)) == "Message(topic='t', body=b'x', tag='a', delay=5)"
    assert repr(Message("t", "y" * 4_000_000)) == f"Message(topic='t', body='{'y' * 60}'… (4,000,000))"


def test_what_excludes_each_other_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="message_group and priority exclude each other"):
        Message("t", b"x", message_group="g", priority=1)
    for beyond in (-1, 32_768, 2**40):
        with pytest.raises(ValueError, match=f"priority {beyond} is not within 0 and 32767"):
            Message("t", b"x", priority=beyond)
    with pytest.raises(ValueError, match="no time zone"):
        Message("t", b"x", delivery_timestamp=datetime(2030, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    "properties, says",
    [
        ({"seat": "1", "table": 7}, "property 'table' is 7; the value of a property is a str, such as '7'"),
        ({"table": b"7"}, "property 'table' is b'7'; the value of a property is a str"),
        ({"table": None}, "property 'table' is None; the value of a property is a str"),
        ({7: "table"}, "the name of property 7 is no str"),
        ([("table", "7")], r"properties is \[.*\]; give a mapping of names to values"),
    ],
)
def test_properties_that_are_no_texts_are_named(properties: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        Message("bills", "12.50", properties=properties)


async def test_a_message_and_fields_at_once_are_refused(server: ScriptedServer) -> None:
    async with aio.Producer(server.endpoints) as producer:
        with pytest.raises(TypeError, match="not both"):
            await producer.send(Message("t", b"x"), b"y")  # type: ignore[call-overload]


async def test_concurrent_sends_travel_together_and_each_gets_its_own_receipt(server: ScriptedServer) -> None:
    async with aio.Producer(server.endpoints, "t") as producer:
        receipts = await asyncio.gather(*(producer.send("t", str(n)) for n in range(200)))
    assert [len(request.messages) for request in server.requests("SendMessage")] == [128, 72]
    stored = {m.system_properties.message_id: (m.body, at) for at, m in enumerate(server.stored["t"])}
    assert [stored[r.message_id] for r in receipts] == [(str(n).encode(), r.offset) for n, r in enumerate(receipts)]


async def test_bodies_beyond_four_mebibytes_take_another_request(server: ScriptedServer) -> None:
    async with aio.Producer(server.endpoints, "t") as producer:
        big = bytes(3 * 1024 * 1024)
        await asyncio.gather(producer.send("t", big), producer.send("t", big), producer.send("t", bytes(5 << 20)))
    assert [len(request.messages) for request in server.requests("SendMessage")] == [1, 1, 1]


async def test_topics_and_kinds_travel_apart(server: ScriptedServer) -> None:
    async with aio.Producer(server.endpoints, ["a", "b"]) as producer:
        messages = [Message("a", b"1"), Message("b", b"2"), Message("a", b"3", message_group="g"), Message("a", b"4")]
        await producer.send_many(messages)
    assert sorted(map(bodies, server.requests("SendMessage"))) == [[b"1", b"4"], [b"2"], [b"3"]]


async def test_without_the_capability_every_message_has_its_own_request() -> None:
    async with ScriptedServer(capabilities="") as server, aio.Producer(server.endpoints, "t") as producer:
        await producer.send_many([Message("t", str(n)) for n in range(100)])
        await producer.send_many([Message("t", str(n), message_group=str(n % 5)) for n in range(50)])
        assert {len(request.messages) for request in server.requests("SendMessage")} == {1}
        assert len(server.requests("SendMessage")) == 150
        for group in range(5):
            sent = [int(m.body) for m in server.stored["t"][100:] if m.system_properties.message_group == str(group)]
            assert sent == sorted(sent)


async def test_settings_name_the_client(server: ScriptedServer) -> None:
    async with aio.Producer(server.endpoints, "t"):
        sent = server.settings[0]
    assert sent.client_type == pb.PRODUCER
    assert sent.client_properties["popmq.client"]
    assert (sent.user_agent.language, [topic.name for topic in sent.publishing.topics]) == (pb.PYTHON, ["t"])


async def test_a_failing_message_fails_alone(server: ScriptedServer) -> None:
    refusing(server, b"3", pb.ILLEGAL_MESSAGE_KEY)
    async with aio.Producer(server.endpoints, "t") as producer:
        results = await producer.send_many([Message("t", str(n)) for n in range(6)])
    assert len(server.requests("SendMessage")) == 1
    assert not results.ok
    assert len(results.receipts) == 5
    [(message, why)] = results.failures
    assert (message.body, type(why), why.name, why.sentence) == ("3", BadRequest, "ILLEGAL_MESSAGE_KEY", "no")
    assert results[3] is why
    assert repr(results) == "<SendResults stored=5 failed=1>"
    with pytest.raises(MultipleResults, match="1 of 6 messages were not stored") as raised:
        results.raise_for_failures()
    assert raised.value.failures == [(message, why)]


async def test_a_busy_server_gets_the_message_again_under_the_same_id(server: ScriptedServer) -> None:
    refusing(server, b"1", pb.TOO_MANY_REQUESTS, times=2)
    async with aio.Producer(server.endpoints, "t") as producer:
        receipts = await asyncio.gather(*(producer.send("t", str(n)) for n in range(3)))
    assert list(map(bodies, server.requests("SendMessage"))) == [[b"0", b"1", b"2"], [b"1"], [b"1"]]
    tries = [request.messages[-1 if len(request.messages) == 1 else 1] for request in server.requests("SendMessage")]
    assert {message.system_properties.message_id for message in tries} == {receipts[1].message_id}


async def test_after_three_attempts_it_fails(server: ScriptedServer) -> None:
    refusing(server, b"1", pb.TOO_MANY_REQUESTS)
    async with aio.Producer(server.endpoints, "t") as producer:
        with pytest.raises(TooManyRequests):
            await producer.send("t", b"1")
    assert len(server.requests("SendMessage")) == 3


async def test_what_cannot_help_is_not_tried_again(server: ScriptedServer) -> None:
    refusing(server, b"1", pb.MESSAGE_BODY_TOO_LARGE)
    async with aio.Producer(server.endpoints, "t") as producer:
        with pytest.raises(PayloadTooLarge):
            await producer.send("t", b"1")
    assert len(server.requests("SendMessage")) == 1


async def test_a_message_group_keeps_its_order_over_a_retry(server: ScriptedServer) -> None:
    refusing(server, b"0", pb.TOO_MANY_REQUESTS, times=1)
    async with aio.Producer(server.endpoints, "t") as producer:
        first = asyncio.ensure_future(producer.send("t", b"0", message_group="g"))
        await until(lambda: server.requests("SendMessage"))
        await asyncio.gather(first, producer.send("t", b"1", message_group="g"))
    assert [message.body for message in server.stored["t"]] == [b"0", b"1"]


@pytest.mark.parametrize("whole", [pb.MESSAGE_CORRUPTED, pb.MESSAGE_BODY_TOO_LARGE, pb.NOT_IMPLEMENTED])
async def test_a_refused_batch_is_sent_one_by_one(server: ScriptedServer, whole: int) -> None:
    def answer(request: rpc.SendMessageRequest) -> Any:
        if len(request.messages) == 1:
            return server.store(request)
        return rpc.SendMessageResponse(status=status(whole))

    server.answers["SendMessage"] = answer
    async with aio.Producer(server.endpoints, "t") as producer:
        results = await producer.send_many([Message("t", str(n)) for n in range(4)])
    assert results.ok
    assert [len(request.messages) for request in server.requests("SendMessage")] == [4, 1, 1, 1, 1]


@pytest.mark.parametrize("whole", [pb.INTERNAL_SERVER_ERROR, pb.TOO_MANY_REQUESTS, grpc.StatusCode.INTERNAL])
async def test_a_server_that_fails_gets_the_whole_batch_again(server: ScriptedServer, whole: Any) -> None:
    failures = iter([whole if isinstance(whole, grpc.StatusCode) else rpc.SendMessageResponse(status=status(whole))])
    server.answers["SendMessage"] = lambda _: next(failures, None)
    async with aio.Producer(server.endpoints, "t") as producer:
        results = await producer.send_many([Message("t", str(n)) for n in range(4)])
    assert results.ok
    assert [len(request.messages) for request in server.requests("SendMessage")] == [4, 4]


async def test_what_may_have_been_stored_is_not_sent_again(server: ScriptedServer) -> None:
    server.answers["SendMessage"] = lambda _: rpc.SendMessageResponse(status=OK)
    async with aio.Producer(server.endpoints, "t") as producer:
        results = await producer.send_many([Message("t", str(n)) for n in range(4)])
    assert {type(why) for _, why in results.failures} == {UnexpectedAnswer}
    assert len(results.failures) == 4
    assert len(server.requests("SendMessage")) == 1


async def test_too_few_results_are_an_unexpected_answer(server: ScriptedServer) -> None:
    server.answers["SendMessage"] = lambda _: rpc.SendMessageResponse(status=OK)
    async with aio.Producer(server.endpoints, "t") as producer:
        with pytest.raises(UnexpectedAnswer, match="0 results for 1 messages"):
            await producer.send("t", b"x")


async def test_cancelling_one_caller_does_not_cancel_the_others(server: ScriptedServer) -> None:
    server.gates["SendMessage"] = asyncio.Event()
    async with aio.Producer(server.endpoints, "t") as producer:
        sends = [asyncio.ensure_future(producer.send("t", str(n))) for n in range(3)]
        await until(lambda: server.requests("SendMessage"))
        late = [asyncio.ensure_future(producer.send("t", f"late {n}")) for n in range(3)]
        await asyncio.sleep(0)
        sends[0].cancel()
        late[1].cancel()
        server.gates["SendMessage"].set()
        outcomes = await asyncio.gather(*sends, *late, return_exceptions=True)
    assert [type(o) for o in outcomes[:3]] == [asyncio.CancelledError, SendReceipt, SendReceipt]
    assert [type(o) for o in outcomes[3:]] == [SendReceipt, asyncio.CancelledError, SendReceipt]
    assert list(map(bodies, server.requests("SendMessage")))[1] == [b"late 0", b"late 2"]


async def test_an_unknown_topic_is_told_to_every_waiting_caller_and_asked_again(server: ScriptedServer) -> None:
    server.answers["QueryRoute"] = lambda _: rpc.QueryRouteResponse(status=status(pb.TOPIC_NOT_FOUND, "make it"))
    async with aio.Producer(server.endpoints) as producer:
        outcomes = await asyncio.gather(*(producer.send("t", b"x") for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [NotFound] * 3
        del server.answers["QueryRoute"]
        assert await producer.send("t", b"x")
    assert len(server.requests("QueryRoute")) == 2


async def test_a_topic_learnt_later_is_told_in_the_settings(server: ScriptedServer) -> None:
    async with aio.Producer(server.endpoints, "a") as producer:
        await producer.send("b", b"x")
        await until(lambda: len(server.settings) == 2)
    assert [topic.name for topic in server.settings[1].publishing.topics] == ["a", "b"]


async def test_closing_sends_what_waits_then_says_goodbye(server: ScriptedServer) -> None:
    producer = aio.Producer(server.endpoints)
    sends = [asyncio.ensure_future(producer.send("t", str(n))) for n in range(5)]
    await asyncio.sleep(0)
    await producer.close()
    assert len(await asyncio.gather(*sends)) == 5
    assert [name for name, _ in server.calls][-1] == "NotifyClientTermination"
    await producer.close()
    with pytest.raises(ClientClosed):
        await producer.send("t", b"late")


async def test_closing_is_bounded(server: ScriptedServer) -> None:
    server.gates["SendMessage"] = asyncio.Event()
    config = ClientConfig(endpoints=server.endpoints, close_timeout=0.1, request_timeout=600)
    producer = aio.Producer(config, "t")
    await producer.start()
    send = asyncio.ensure_future(producer.send("t", b"x"))
    await until(lambda: server.requests("SendMessage"))
    async with asyncio.timeout(60):
        await producer.close()
    with pytest.raises(ClientClosed):
        await send


async def test_nobody_there_fails_within_one_deadline() -> None:
    gone = await ScriptedServer().start()
    await gone.stop()
    producer = aio.Producer(ClientConfig(endpoints=gone.endpoints, request_timeout=0.2))
    async with asyncio.timeout(60):
        with pytest.raises(Unreachable):
            await producer.send("t", b"x")
        await producer.close()


async def test_an_interrupted_closing_leaves_nothing_behind(server: ScriptedServer) -> None:
    server.gates["SendMessage"] = asyncio.Event()
    producer = aio.Producer(server.endpoints, "t")
    await producer.start()
    send = asyncio.ensure_future(producer.send("t", b"x"))
    await until(lambda: server.requests("SendMessage"))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(producer.close(), 0.05)
    with pytest.raises(ClientClosed):
        await asyncio.wait_for(send, 60)
    await until(lambda: not server.streams)


async def test_what_keeps_a_client_from_connecting_is_told_to_every_send(server: ScriptedServer) -> None:
    producer = aio.Producer(ClientConfig(server.endpoints, tls=Tls(ca="/nope.pem")))
    async with asyncio.timeout(60):
        for _ in range(2):
            with pytest.raises(PopError, match=r"nope\.pem' cannot be read"):
                await producer.send("t", b"x")
        with pytest.raises(PopError, match=r"nope\.pem' cannot be read"):
            await producer.start()
        await producer.close()


async def test_a_defect_in_a_retry_is_told(server: ScriptedServer) -> None:
    async with aio.Producer(server.endpoints, "t") as producer, asyncio.timeout(60):
        outcomes = iter([[TooManyRequests()]])

        async def exchange(_: object) -> list[Any]:
            try:
                return next(outcomes)
            except StopIteration:
                raise KeyError("a defect") from None

        producer._core._sender._exchange = exchange
        with pytest.raises(PopError, match="a defect") as told:
            await producer.send("t", b"x")
    assert not told.value.retryable


@pytest.mark.parametrize("wrong", [{"keys": [1]}, {"tag": 1}, {"body": 1}])
async def test_what_is_no_text_is_refused_with_its_name(server: ScriptedServer, wrong: dict[str, Any]) -> None:
    async with aio.Producer(server.endpoints) as producer:
        with pytest.raises(TypeError, match=rf"^{next(iter(wrong))}.* is 1; it must be"):
            await producer.send(Message(**{"topic": "t", "body": b"x", **wrong}))
        with pytest.raises(TypeError, match=r"^body is \{.*it must be bytes or str"):
            await producer.send(Message(topic="t", body=cast("Any", {"number": 42})))


def test_a_client_belongs_to_one_event_loop() -> None:
    async def sends(server: ScriptedServer) -> aio.Producer:
        await server.start()
        producer = aio.Producer(server.endpoints)
        await producer.send("t", b"x")
        return producer

    async def is_refused(producer: aio.Producer) -> None:
        for topic in ("t", "u"):
            with pytest.raises(PopError, match="another event loop") as told:
                await asyncio.wait_for(producer.send(topic, b"x"), 60)
            assert not told.value.retryable

    with asyncio.Runner() as own, asyncio.Runner() as another:
        server = ScriptedServer()
        producer = own.run(sends(server))
        another.run(is_refused(producer))
        own.run(producer.close())
        own.run(server.stop())


@pytest.mark.parametrize("send", [Producer.send, aio.Producer.send, enqueue], ids=["sync", "aio", "sql"])
def test_its_fields_are_in_its_signature(send: Callable[..., object]) -> None:
    named = set(inspect.signature(send).parameters)
    assert {"tag", "keys", "properties", "message_group", "delivery_timestamp", "priority", "delay"} <= named
    assert "fields" not in named
