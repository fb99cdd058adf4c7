"""Priorities of the official clients, a hint among what is ready."""

from __future__ import annotations

import pytest

from popserver.model.topic import MessageType
from tests.interop.official import OfficialProducer, Program, Refused
from tests.interop.seen import Lag, Seen, until

pytestmark = pytest.mark.row("O8")

CONFLICT = 40014
PRIORITIES = (1, 3, 2)  # the Node client takes 0 for none


@pytest.fixture
def producer(program: Program, seen: Seen) -> OfficialProducer:
    seen.make_topic("flights", 4, MessageType.PRIORITY)
    return program.producer("flights")


def test_the_most_urgent_comes_first(producer: OfficialProducer, program: Program, seen: Seen) -> None:
    consumer = program.simple("counters", "flights")
    for priority in PRIORITIES:
        producer.send("flights", str(priority), priority=priority)
    received = [message for _ in PRIORITIES for message in consumer.receive(1)]
    assert [(message.body, message.priority) for message in received] == [("3", 3), ("2", 2), ("1", 1)]
    for message in received:
        consumer.ack(message)
    assert seen.lag("counters", "flights") == Lag(stored=3)


def test_a_listener_hears_them_all(producer: OfficialProducer, program: Program, seen: Seen) -> None:
    consumer = program.push("counters", "flights")
    for priority in PRIORITIES:
        producer.send("flights", str(priority), priority=priority)
    heard = {(message.body, message.priority) for message in consumer.hear(3)}
    assert heard == {(str(priority), priority) for priority in PRIORITIES}
    until(lambda: seen.lag("counters", "flights") == Lag(stored=3))


def test_a_topic_of_other_types_takes_none(program: Program, seen: Seen) -> None:
    seen.make_topic("flights", 4)
    with pytest.raises(Refused) as refused:
        program.producer("flights").send("flights", "urgent", priority=1)
    assert refused.value.code in (None, CONFLICT)
    assert seen.lag("counters", "flights").stored == 0
