"""Official clients and popclient at the same broker: what one sends the other reads, and they share a group's work."""

from __future__ import annotations

import pytest

import popclient
from popserver.in_process import EmbeddedBroker
from tests.interop.official import Program
from tests.interop.seen import Lag, Seen, until

pytestmark = pytest.mark.row("O8")


def test_popclient_sends_and_an_official_client_reads(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    with popclient.Producer(broker.endpoint) as producer:
        sent = producer.send("flights", b"UA1545", tag="UA", keys="1545", properties={"origin": "EWR"})
    consumer = program.simple("counters", "flights", "UA")
    (message,) = consumer.receive()
    assert message.message_id == sent.message_id
    assert (message.body, message.tag, message.keys) == ("UA1545", "UA", ["1545"])
    assert message.properties["origin"] == "EWR"
    assert not message.corrupted
    consumer.ack(message)
    assert seen.lag("counters", "flights") == Lag(stored=1)


def test_popclient_pushes_through_an_official_push_consumer(
    broker: EmbeddedBroker, program: Program, seen: Seen
) -> None:
    consumer = program.push("counters", "flights")
    with popclient.Producer(broker.endpoint) as producer:
        sent = {receipt.message_id for receipt in (producer.send("flights", str(number)) for number in range(40))}
    assert {message.message_id for message in consumer.hear(40)} == sent
    until(lambda: seen.lag("counters", "flights") == Lag(stored=40))


def test_an_official_client_sends_and_popclient_reads(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    sent = program.producer("flights").send(
        "flights", "délayed ✈", tag="UA", keys=["1545"], properties={"origin": "EWR"}
    )
    with popclient.SimpleConsumer(broker.endpoint, "counters", "flights") as consumer:
        (message,) = consumer.receive()
        assert message.message_id == sent.message_id
        assert (message.body.decode(), message.tag, list(message.keys)) == ("délayed ✈", "UA", ["1545"])
        assert message.properties["origin"] == "EWR"
        consumer.ack(message)
    assert seen.lag("counters", "flights") == Lag(stored=1)


@pytest.mark.row("K3")
def test_they_share_a_group(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    producer = program.producer("flights")
    sent = {producer.send("flights", str(number)).message_id for number in range(40)}
    official = program.simple("counters", "flights")
    with popclient.SimpleConsumer(broker.endpoint, "counters", "flights") as own:
        theirs = [message.message_id for message in official.receive(16)]
        ours: list[str] = []
        while len(theirs) + len(ours) < len(sent):
            ours += [message.message_id for message in own.receive(16)]
    assert theirs
    assert ours
    assert sorted(theirs + ours) == sorted(sent)
