"""Idempotency keys from end to end: a repeat under another id gets the first one's receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

import popserver
from popclient import BadRequest, Message, Producer, SimpleConsumer, Unreachable, UnsupportedByServer, aio
from popclient._producer import core
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.scripted_server import ScriptedServer


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with popserver.embedded(manual_clock=True) as running:
        yield running


def test_a_repeat_gets_the_first_ones_receipt(broker: EmbeddedBroker) -> None:
    with Producer(broker.endpoint) as producer, SimpleConsumer(broker.endpoint, "g", "orders") as consumer:
        first = producer.send("orders", "first", idempotency_key="order-42", properties={"a": "b"})
        again = Message("orders", "again", idempotency_key="order-42")
        assert producer.send(again) == first
        assert producer.send_many([again, again]).receipts == [first, first]
        by_property = producer.send("orders", "by property", properties={"popmq.idempotency-key": "order-42"})
        assert by_property == first
        assert producer.send("other", "elsewhere", idempotency_key="order-42") != first
        (message,) = consumer.receive()
        assert (message.text, message.properties) == ("first", {"a": "b", "popmq.idempotency-key": "order-42"})
        consumer.ack(message)
        broker.clock.advance("24h")
        later = producer.send(again)
        assert later.message_id != first.message_id
        (message,) = consumer.receive()
        assert message.text == "again"


def test_keys_of_delayed_and_half_messages() -> None:
    with popserver.embedded() as broker:
        _delayed_and_half(broker)


def _delayed_and_half(broker: EmbeddedBroker) -> None:
    with Admin(broker.endpoint) as admin:
        admin.create_topic("orders", accept_message_types=["NORMAL", "DELAY", "TRANSACTION"])
    with Producer(broker.endpoint) as producer:
        delayed = Message("orders", "x", delay=timedelta(hours=1), idempotency_key="delayed")
        first = producer.send(delayed)
        assert first.recall_handle
        assert producer.send(delayed).message_id == first.message_id
        assert producer.send("orders", "x", idempotency_key="delayed").message_id == first.message_id
        producer.recall("orders", first)
        assert producer.send(delayed).message_id != first.message_id
        half = Message("orders", "x", idempotency_key="half")
        with pytest.raises(ZeroDivisionError), producer.transaction(half):
            _ = 1 // 0
        with producer.transaction(half) as transaction:
            committed = transaction.message_id
        assert producer.send(half).message_id == committed


async def test_many_at_once(broker: EmbeddedBroker) -> None:
    async with aio.Producer(broker.endpoint) as one, aio.Producer(broker.endpoint) as other:
        sends = [
            producer.send("orders", f"{number}", idempotency_key=f"order-{number % 10}")
            for number in range(200)
            for producer in (one, other)
        ]
        receipts = await asyncio.gather(*sends)
    assert len({receipt.message_id for receipt in receipts}) == 10


@pytest.mark.parametrize(("key", "why"), [(" ", "is blank"), ("ü" * 128, "has 256 bytes, at most 255"), ("a\n", "")])
def test_a_key_that_is_none(broker: EmbeddedBroker, key: str, why: str) -> None:
    with Producer(broker.endpoint) as producer:
        with pytest.raises(BadRequest, match=rf"ILLEGAL_MESSAGE_PROPERTY_KEY \(40007\): .*{why}"):
            producer.send("orders", "x", idempotency_key=key)
        with Admin(broker.endpoint) as admin:
            assert admin.list_topics() == [], "a refused message creates no topic"


def test_a_window_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # As other clients do, which send keys to any server.
    monkeypatch.setattr(core, "IDEMPOTENCY", "batch")
    for window, repeated in (("1m", True), ("0s", False)):
        with (
            popserver.embedded(manual_clock=True, idempotency_window=window) as broker,
            Producer(broker.endpoint) as producer,
        ):
            ids = [producer.send("orders", "x", idempotency_key="k").message_id for _ in range(2)]
            assert (ids[0] == ids[1]) is repeated
            broker.clock.advance("1m")
            assert producer.send("orders", "x", idempotency_key="k").message_id not in ids


@pytest.mark.row("O9")
async def test_no_key_goes_to_a_server_that_heeds_none() -> None:
    """It would be without effect, and the producer would believe in it."""
    async with ScriptedServer("admin,batch") as server, aio.Producer(server.endpoints) as producer:
        for message in (
            Message("orders", "x", idempotency_key="order-42"),
            Message("orders", "x", properties={"popmq.idempotency-key": "order-42"}),
        ):
            for _ in range(2):  # with a topic that is new, and with one that is known
                with pytest.raises(UnsupportedByServer, match="heeds no idempotency key"):
                    await producer.send(message)
        result = await producer.send_many([Message("orders", "y"), Message("orders", "x", idempotency_key="a")])
        assert [type(failure) for _, failure in result.failures] == [UnsupportedByServer]
    assert [message.body for message in server.stored["orders"]] == [b"y"]


@pytest.mark.usefixtures("short_handshake")
async def test_a_key_waits_for_a_server_that_has_not_said_what_it_does() -> None:
    async with ScriptedServer("") as server:
        server.answers["Telemetry"] = lambda _: None
        async with aio.Producer(server.endpoints) as producer:
            with pytest.raises(Unreachable, match="has not said yet"):
                await producer.send("orders", "x", idempotency_key="order-42")


def test_a_server_without_a_window_says_so() -> None:
    with popserver.embedded(idempotency_window="0s") as broker, Producer(broker.endpoint) as producer:
        with pytest.raises(UnsupportedByServer, match="--idempotency-window 0s"):
            producer.send("orders", "x", idempotency_key="order-42")
        with pytest.raises(UnsupportedByServer), producer.transaction(Message("orders", "x", idempotency_key="a")):
            pass
