"""U15: a hold that lasts as long as the work on its message."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import popserver
from popclient import Message, MessageView, Producer, SimpleConsumer, aio
from popclient.admin import Admin
from popclient.keep_alive import KeepAlive
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.message_views import view_of
from tests.support.scripted_server import ScriptedServer, ServerThread, put, status, until, until_in_thread


def renewals(server: ScriptedServer) -> list[float]:
    """For how many seconds, each."""
    return [
        request.invisible_duration.ToTimedelta().total_seconds()
        for request in server.requests("ChangeInvisibleDuration")
        if not request.suspend
    ]


def has_ended(kept: KeepAlive) -> bool:
    """Will nobody renew the hold any more?"""
    return kept._renewing is not None and kept._renewing.done()


async def received(consumer: aio.SimpleConsumer, hold: float = 0.06) -> MessageView:
    [message] = await consumer.receive(1, invisible_duration=hold)
    return message


@pytest.mark.user("U15")
async def test_the_hold_is_renewed_until_the_block_ends(server: ScriptedServer) -> None:
    put(server, 1)
    async with aio.SimpleConsumer(server.endpoints, "g", "t") as consumer:
        message = await received(consumer)
        async with message.keep_alive() as kept:
            await until(lambda: len(renewals(server)) >= 3)
        made = len(renewals(server))
        assert not kept.lost
        assert set(renewals(server)) == {0.06}
        await until(lambda: has_ended(kept))
        await consumer.ack(message)
        assert len(renewals(server)) == made
    assert not server.held


async def test_acking_in_the_block_is_fine_even_while_a_renewal_is_on_its_way(server: ScriptedServer) -> None:
    put(server, 3)
    async with aio.SimpleConsumer(server.endpoints, "g", "t") as consumer:
        for settle in (
            consumer.ack,
            lambda m: consumer.change_invisible_duration(m, 60),
            consumer.forward_to_dead_letter_queue,
        ):
            gate = server.gates["ChangeInvisibleDuration"] = asyncio.Event()
            server.arrived["ChangeInvisibleDuration"].clear()
            message = await received(consumer)
            async with message.keep_alive():
                await server.arrived["ChangeInvisibleDuration"].wait()
                settling: asyncio.Future[None] = asyncio.ensure_future(settle(message))
                await until(lambda message=message: message._keeper is None)  # now it waits for the renewal alone
                assert not settling.done()
                gate.set()
                await settling


async def test_a_lost_hold_is_told_and_renewed_no_more(server: ScriptedServer) -> None:
    put(server, 1)
    refusal = rpc.ChangeInvisibleDurationResponse(status=status(pb.INVALID_RECEIPT_HANDLE))
    server.answers["ChangeInvisibleDuration"] = lambda _: refusal
    async with aio.SimpleConsumer(server.endpoints, "g", "t") as consumer:
        message = await received(consumer)
        async with message.keep_alive() as kept:
            await until(lambda: kept.lost)
            await until(lambda: has_ended(kept))
        assert len(renewals(server)) == 1


@pytest.mark.parametrize("mends", [True, False])
async def test_a_server_in_trouble_is_asked_again_while_the_hold_lasts(server: ScriptedServer, mends: bool) -> None:
    put(server, 1)
    refusal = rpc.ChangeInvisibleDurationResponse(status=status(pb.INTERNAL_SERVER_ERROR))
    server.answers["ChangeInvisibleDuration"] = lambda _: None if mends and len(renewals(server)) > 2 else refusal
    async with aio.SimpleConsumer(server.endpoints, "g", "t") as consumer:
        message = await received(consumer, 0.3)
        async with message.keep_alive() as kept:
            await until(lambda: len(renewals(server)) > 3 if mends else kept.lost)
        assert kept.lost is not mends


async def test_the_wrong_kind_of_block_says_so(server: ScriptedServer, threaded: ServerThread) -> None:
    put(server, 1)
    async with aio.SimpleConsumer(server.endpoints, "g", "t") as consumer:
        message = await received(consumer)
        with pytest.raises(TypeError, match="use `async with"), message.keep_alive():
            pass
    with pytest.raises(RuntimeError, match="not received by a SimpleConsumer"):
        view_of("x").keep_alive()

    def send_and_receive() -> MessageView:
        with Producer(threaded.endpoints) as producer, SimpleConsumer(threaded.endpoints, "g", "t") as consumer:
            producer.send("t", "x")
            return consumer.receive(1)[0]

    message = await asyncio.to_thread(send_and_receive)
    with pytest.raises(TypeError, match="use `with message"):
        async with message.keep_alive():
            pass


def test_in_threads_and_while_iterating(threaded: ServerThread) -> None:
    with Producer(threaded.endpoints) as producer:
        producer.send_many([Message("t", "1"), Message("t", "2")])
    with SimpleConsumer(threaded.endpoints, "g", "t", invisible_duration=0.06, max_messages=1) as consumer:
        for number, message in enumerate(consumer, 1):
            before = len(renewals(threaded.server))
            with message.keep_alive():
                until_in_thread(lambda at=before: len(renewals(threaded.server)) >= at + 2)
                consumer.ack(message)
            if number == 2:
                break
    assert len([r for request in threaded.server.requests("AckMessage") for r in request.entries]) == 2


@pytest.mark.user("U15")
def test_the_real_server_keeps_the_message_with_its_worker() -> None:
    with (
        popserver.embedded(min_invisible="100ms") as broker,
        Producer(broker.endpoint) as producer,
        SimpleConsumer(broker.endpoint, "g", "t", invisible_duration=0.3) as consumer,
        SimpleConsumer(broker.endpoint, "g", "t", invisible_duration=0.3) as other,
    ):
        producer.send("t", "long work")
        [message] = consumer.receive()
        first: Any = message.receipt_handle
        with message.keep_alive() as kept:
            assert other.receive(await_duration=1) == []
        assert not kept.lost
        assert message.receipt_handle != first
        consumer.ack(message)
        with Admin(broker.endpoint) as admin:
            [state] = admin.get_message(message.message_id).states
        assert (state.state, message.delivery_attempt) == ("COMMIT", 1)
