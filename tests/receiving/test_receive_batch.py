"""ReceiveBatch: a receive like any other, answered in one frame."""

from __future__ import annotations

import asyncio
import tracemalloc
from pathlib import Path
from typing import Any

import grpc
import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.engine.clock import ManualClock
from popserver.receiving.batch import Receive
from popserver.transport.convert import DIGESTS
from popserver.transport.limits import CallLimits
from tests.support.receiving import NOTHING, push, receive_batch
from tests.support.running_broker import until
from tests.support.wire_server import LIMITS, WireServer, a_message, advance, headers, opened, parked, receive_request

MIB = 1024 * 1024


def of_attempt(attempt_id: str, *, is_push: bool = False) -> wire.ReceiveMessageRequest:
    request = receive_request(push=is_push)
    request.attempt_id = attempt_id
    return request


def ids(messages: object) -> list[str]:
    return [message.system_properties.message_id for message in messages]  # type: ignore[attr-defined]


def attempts(messages: object) -> list[int]:
    return [message.system_properties.delivery_attempt for message in messages]  # type: ignore[attr-defined]


def unread(channel: grpc.aio.Channel, method: str = "ReceiveBatch") -> Any:
    """A call as a stream that nobody reads: a unary call of gRPC's client reads by itself."""
    service = "popmq.v1.Receiving" if method == "ReceiveBatch" else "apache.rocketmq.v2.MessagingService"
    call: Any = channel.unary_stream(f"/{service}/{method}", lambda it: it.SerializeToString())
    return call(receive_request(), metadata=headers("deaf", {}))


async def test_its_messages_are_those_of_a_stream(either_wire_server: WireServer) -> None:
    wire_server = either_wire_server
    await wire_server.send(a_message("m1", tag="AA", user_properties={"a": "1"}), a_message("m2", keys=["k"]))
    streamed = await wire_server.receive(group=pb.Resource(name="someone"))
    answer = await receive_batch(wire_server, receive_request())
    assert answer.status.code == pb.OK
    for message in (*streamed, *answer.messages):
        system = message.system_properties
        assert system.receipt_handle
        assert system.body_digest.checksum == DIGESTS[system.body_digest.type](message.body)
        system.ClearField("receipt_handle")
        system.ClearField("body_digest")
    assert list(answer.messages) == streamed
    assert len(streamed) == 2


async def test_nothing_is_message_not_found(wire_server: WireServer) -> None:
    answer = await receive_batch(wire_server, receive_request())
    assert (answer.status.code, list(answer.messages)) == (NOTHING, [])


async def test_a_batch_is_cut_to_128(either_wire_server: WireServer) -> None:
    for start in (0, 100):
        await either_wire_server.send(*(a_message(f"m{number}") for number in range(start, start + 100)))
    answers = [await receive_batch(either_wire_server, receive_request(batch_size=1_000)) for _ in range(2)]
    assert [len(answer.messages) for answer in answers] == [128, 72]
    assert len({each for answer in answers for each in ids(answer.messages)}) == 200


async def test_it_carries_as_many_bytes_as_a_stream(wire_server: WireServer) -> None:
    for number in range(6):
        await wire_server.send(a_message(f"m{number}", body=bytes(MIB)))
    answer = await receive_batch(wire_server, receive_request())
    assert (len(answer.messages), answer.ByteSize() < 5 * MIB) == (4, True)
    assert attempts((await receive_batch(wire_server, receive_request())).messages) == [1, 1], "the rest has not failed"
    budget = wire_server.broker.engine.budgets["undelivered"]
    await until(lambda: budget.used == 0)
    assert budget.peak >= 4 * MIB


async def test_the_writer_counts_no_frame_per_message(wire_server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for callers as long as the loop needs for its answers (engine.batch)."""
    submit, frames = wire_server.broker.engine.writer.submit, list[int]()

    def noting(request: Any, **more: Any) -> Any:
        if isinstance(request, Receive):
            frames.append(more.get("frames", 0))
        return submit(request, **more)

    monkeypatch.setattr(wire_server.broker.engine.writer, "submit", noting)
    await wire_server.send(a_message())
    await wire_server.receive(batch_size=32)
    await receive_batch(wire_server, receive_request(batch_size=32, group=pb.Resource(name="others"), poll_ms=0))
    assert frames == [32, 0]


# ---- Waiting ----


async def test_a_polling_time_of_zero_does_not_wait(tmp_path: Path) -> None:
    """Not even the shortest poll; the clock stands still."""
    async with opened(tmp_path, limits=CallLimits(), clock=ManualClock()) as wire_server:
        answer = await receive_batch(wire_server, receive_request(poll_ms=0))
        assert answer.status.code == NOTHING


@pytest.mark.row("A4")
@pytest.mark.parametrize("poll_ms", [1, 20_000, None])
async def test_any_other_waits_until_a_message_comes(tmp_path: Path, poll_ms: int | None) -> None:
    async with opened(tmp_path, limits=CallLimits(), clock=ManualClock()) as wire_server:
        poll = asyncio.create_task(receive_batch(wire_server, receive_request(poll_ms=poll_ms)))
        await parked(wire_server)
        await wire_server.send(a_message())
        assert ids((await poll).messages) == ["m1"]


async def test_a_client_that_leaves_frees_its_poll(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=CallLimits(), clock=ManualClock()) as wire_server:
        poll = asyncio.create_task(receive_batch(wire_server, receive_request(poll_ms=20_000)))
        await parked(wire_server)
        poll.cancel()
        await parked(wire_server, 0)
        await wire_server.send(a_message())
        answer = await receive_batch(wire_server, receive_request())
        assert (ids(answer.messages), attempts(answer.messages)) == (["m1"], [1])


# ---- A lost answer ----


@pytest.mark.row("K9")
@pytest.mark.parametrize("is_push", [False, True], ids=["simple", "push"])
async def test_a_repetition_gets_the_same_messages(either_wire_server: WireServer, is_push: bool) -> None:
    wire_server = either_wire_server
    await wire_server.send(a_message("m1"), a_message("m2"))
    lost = await receive_batch(wire_server, of_attempt("a-1", is_push=is_push))
    before = await wire_server.digest()
    again = await receive_batch(wire_server, of_attempt("a-1", is_push=is_push))
    assert list(again.messages) == list(lost.messages)
    assert attempts(again.messages) == [1, 1]
    assert await wire_server.digest() == before, "it is a read"
    assert (await receive_batch(wire_server, of_attempt("a-2", is_push=is_push))).status.code == NOTHING


@pytest.mark.row("K9")
async def test_either_call_repeats_the_other(wire_server: WireServer) -> None:
    """As when a client turns to an older server of the same database."""
    await wire_server.send(a_message())
    (lost,) = (await receive_batch(wire_server, of_attempt("a-1", is_push=True), "pusher")).messages
    (again,) = await push(wire_server, "pusher", attempt_id="a-1")
    for each in (lost, again):
        each.system_properties.ClearField("body_digest")  # the older call has MD5
    assert again == lost


@pytest.mark.row("K9")
async def test_a_failure_of_the_server_gives_the_messages_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path, clock=ManualClock()) as wire_server:
        await wire_server.send(a_message())

        def broken(*_: object) -> None:
            raise ZeroDivisionError

        with monkeypatch.context() as broke:
            broke.setattr("popserver.transport.convert.fill_delivered", broken)
            answer = await receive_batch(wire_server, receive_request())
            assert answer.status.code == pb.INTERNAL_SERVER_ERROR
        await advance(wire_server, 1_000)
        assert attempts((await receive_batch(wire_server, receive_request())).messages) == [2]


async def test_what_is_not_read_comes_again(tmp_path: Path) -> None:
    """As a stream's messages do: after 1 s, at the next attempt."""
    limits = LIMITS._replace(answer_ms=200)
    async with opened(tmp_path, limits=limits, clock=ManualClock()) as wire_server:
        for number in range(4):
            await wire_server.send(a_message(f"m{number}", body=bytes(MIB)))
        budget = wire_server.broker.engine.budgets["undelivered"]
        async with wire_server.small_window() as channel:
            call = unread(channel)
            await until(lambda: budget.used >= 4 * MIB)
            await until(lambda: budget.used == 0)
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
        await advance(wire_server, 1_000)
        again = await receive_batch(wire_server, receive_request())
        assert (len(again.messages), set(attempts(again.messages))) == (4, {2})
        call.cancel()


@pytest.mark.parametrize("end", ["the client cancels", "it does not read"])
@pytest.mark.parametrize("method", ["ReceiveBatch", "ReceiveMessage"])
async def test_a_short_answer_that_is_not_taken_comes_again_too(tmp_path: Path, method: str, end: str) -> None:
    """It is written at once, and waits for the client's window."""
    async with opened(tmp_path, limits=LIMITS._replace(answer_ms=200), clock=ManualClock()) as wire_server:
        for number in range(4):
            await wire_server.send(a_message(f"m{number}", body=bytes(8_000)))
        budget = wire_server.broker.engine.budgets["undelivered"]
        async with wire_server.small_window() as channel:
            call = unread(channel, method)
            await until(lambda: budget.used > 0)
            if end == "the client cancels":
                call.cancel()
            await until(lambda: budget.used == 0)
        await advance(wire_server, 1_000)
        again = await receive_batch(wire_server, receive_request())
        assert (len(again.messages), set(attempts(again.messages))) == (4, {2})


@pytest.mark.parametrize(("count", "properties", "body"), [(4, 1, MIB), (32, 8, 1)], ids=["bodies", "properties"])
async def test_what_is_not_read_is_counted_as_it_is(tmp_path: Path, count: int, properties: int, body: int) -> None:
    """Not the bodies twice, as they were read and as they are sent; and the properties too."""
    async with opened(tmp_path, clock=ManualClock()) as wire_server:
        pairs = {f"p{number}": "x" * 1_000 for number in range(properties)}
        for number in range(count):
            await wire_server.send(a_message(f"m{number}", body=bytes(body), user_properties=pairs))
        budget = wire_server.broker.engine.budgets["undelivered"]
        tracemalloc.start()
        try:
            call = unread(wire_server.channel)
            await until(lambda: budget.used > 0)
            taken = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert taken < 1.5 * budget.used
        assert budget.used > count * (body + properties * 1_000)
        call.cancel()
