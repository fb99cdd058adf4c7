"""Official producers, and how their messages look on the other side."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from popserver import embedded
from popserver.in_process import EmbeddedBroker
from tests.interop.official import DEEPLY, Program, Refused, Start
from tests.interop.seen import Lag, Seen

pytestmark = pytest.mark.row("O8")

PAIRS = [(sender, receiver) for sender in DEEPLY for receiver in DEEPLY]


@pytest.mark.row("N9")
@pytest.mark.parametrize(("sender", "receiver"), PAIRS)
def test_a_message_arrives_as_it_was_sent(start: Callable[[str], Program], sender: str, receiver: str) -> None:
    sent = (
        start(sender)
        .producer("flights")
        .send(
            "flights",
            "délayed ✈ 延误",
            tag="UA",
            keys=["1545", "EWR"],
            properties={"origin": "EWR", "distance": "1400"},
        )
    )
    (message,) = start(receiver).simple("counters", "flights").receive()
    assert message.message_id == sent.message_id
    assert (message.topic, message.body, message.tag) == ("flights", "délayed ✈ 延误", "UA")
    assert message.keys == ["1545", "EWR"]
    assert message.properties == {"origin": "EWR", "distance": "1400"}
    assert message.attempt == 1
    assert not message.corrupted


@pytest.mark.row("N6")
def test_a_sent_message_is_there_when_send_returns(program: Program, seen: Seen) -> None:
    producer, consumer = program.producer("flights"), program.simple("counters", "flights")
    for number in range(20):
        producer.send("flights", f"flight {number}")
        (message,) = consumer.receive()
        assert message.body == f"flight {number}"
        consumer.ack(message)
    assert seen.lag("counters", "flights") == Lag(stored=20)


def test_offsets_count_up_in_each_queue(program: Program, seen: Seen) -> None:
    seen.make_topic("lane", queue_count=1)
    producer = program.producer()
    assert [producer.send("lane", "next").offset for _ in range(3)] == [0, 1, 2]


def test_messages_of_every_size_arrive(program: Program) -> None:
    # The Node client takes frames of at most 4 MiB, so a body of that size would never get through to it.
    bodies = [
        "x" * size for size in (1, 1_024, 1_000_000, 4 * 1024 * 1024 if program.language == "python" else 4_000_000)
    ]
    producer, consumer = program.producer("sizes"), program.simple("counters", "sizes")
    for body in bodies:
        producer.send("sizes", body)
        (message,) = consumer.receive()
        assert message.body == body
        consumer.ack(message)


def test_a_body_too_large_is_refused(program: Program, seen: Seen) -> None:
    producer, consumer = program.producer("sizes"), program.simple("counters", "sizes")
    with pytest.raises(Refused):
        producer.send("sizes", "x" * (4 * 1024 * 1024 + 1))
    producer.send("sizes", "small")
    assert [message.body for message in consumer.receive()] == ["small"]
    assert seen.lag("counters", "sizes").stored == 1


@pytest.mark.row("N3")
def test_a_missing_topic_is_refused_where_topics_do_not_make_themselves(start_at: Start, language: str) -> None:
    with embedded(manual_clock=True, auto_create=False) as broker:
        producer = start_at(language, broker.endpoint).producer()
        with pytest.raises(Refused) as refused:
            producer.send("nowhere", "hello")
    # The Python client keeps the server's reason in its log.
    assert "nowhere" in refused.value.words
    assert language == "python" or refused.value.code == 40402


@pytest.mark.parametrize(("sender", "receiver"), PAIRS)
def test_a_namespace_keeps_its_messages_to_itself(
    start: Callable[[str], Program], seen: Seen, sender: str, receiver: str
) -> None:
    senders, receivers = start(sender), start(receiver)
    senders.producer("flights", namespace="shop").send("flights", "inside")
    senders.producer("flights").send("flights", "outside")
    for namespace, body in (("shop", "inside"), ("", "outside")):
        consumer = receivers.simple("counters", "flights", namespace=namespace)
        (message,) = consumer.receive()
        assert message.body == body
        consumer.ack(message)


@pytest.mark.row("A1")
def test_nothing_leaves_the_server_unasked(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    producer = program.producer("flights")
    program.simple("counters", "flights").receive_later(1)  # the group meets the topic
    producer.send("flights", "asked for")
    program.push("counters", "elsewhere")
    for number in range(50):
        producer.send("flights", f"flight {number}")
    broker.clock.advance("20s")
    assert seen.lag("counters", "flights") == Lag(ready=50, inflight=1, stored=51)
