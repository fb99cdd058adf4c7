"""Idempotency keys from end to end: a repeat under another id gets the first one's receipt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

import popserver
from popclient import BadRequest, Message, Producer, SimpleConsumer, aio
from popclient.admin import Admin
from popserver import EmbeddedBroker


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
            assert [topic.message_count for topic in admin.list_topics()] == [0]


def test_a_window_of_its_own() -> None:
    for window, repeated in (("1m", True), ("0s", False)):
        with (
            popserver.embedded(manual_clock=True, idempotency_window=window) as broker,
            Producer(broker.endpoint) as producer,
        ):
            ids = [producer.send("orders", "x", idempotency_key="k").message_id for _ in range(2)]
            assert (ids[0] == ids[1]) is repeated
            broker.clock.advance("1m")
            assert producer.send("orders", "x", idempotency_key="k").message_id not in ids
