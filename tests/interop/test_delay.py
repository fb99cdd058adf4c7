"""Delayed messages of the official clients, and their recall."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.in_process import EmbeddedBroker
from tests.interop.official import Program, Refused

pytestmark = pytest.mark.row("O8")


@pytest.fixture
def in_a_minute_s(broker: EmbeddedBroker) -> int:
    """These clients count a delivery time in whole seconds."""
    return broker.clock.now_ms() // 1_000 + 60


def test_it_comes_when_it_is_due(program: Program, broker: EmbeddedBroker, in_a_minute_s: int) -> None:
    producer, consumer = program.producer("flights"), program.simple("counters", "flights")
    sent = producer.send("flights", "later", deliver_at_s=in_a_minute_s)
    producer.send("flights", "now")
    broker.clock.advance("59s")
    (now,) = consumer.receive()
    assert now.body == "now"
    consumer.ack(now)
    broker.clock.advance("1s")
    (later,) = consumer.receive()
    assert (later.message_id, later.body, later.attempt, later.corrupted) == (sent.message_id, "later", 1, False)
    consumer.ack(later)


def test_a_push_consumer_hears_it(program: Program, broker: EmbeddedBroker, in_a_minute_s: int) -> None:
    consumer, producer = program.push("counters", "flights"), program.producer("flights")
    sent = producer.send("flights", "later", deliver_at_s=in_a_minute_s)
    broker.clock.advance("60s")
    (heard,) = consumer.hear()
    assert heard.message_id == sent.message_id


@pytest.mark.row("M3")
def test_a_filter_judges_it_when_it_is_due(program: Program, broker: EmbeddedBroker, in_a_minute_s: int) -> None:
    producer, consumer = program.producer("flights"), program.simple("counters", "flights", "UA")
    for tag in ("UA", "DL"):
        producer.send("flights", tag, tag=tag, deliver_at_s=in_a_minute_s)
    broker.clock.advance("60s")
    assert [message.body for message in consumer.receive()] == ["UA"]


def test_recall(program: Program, broker: EmbeddedBroker, in_a_minute_s: int) -> None:
    producer, consumer = program.producer("flights"), program.simple("counters", "flights")
    taken_back, kept = (producer.send("flights", body, deliver_at_s=in_a_minute_s) for body in ("back", "kept"))
    assert producer.recall("flights", taken_back.recall_handle) == taken_back.message_id
    broker.clock.advance("60s")
    assert [each.body for each in consumer.receive()] == ["kept"]
    for handle, code in ((kept.recall_handle, pb.PRECONDITION_FAILED), ("nonsense", pb.BAD_REQUEST)):
        refusal: Any
        with pytest.raises(Refused) as refusal:
            producer.recall("flights", handle)
        assert refusal.value.code in (None, code)
