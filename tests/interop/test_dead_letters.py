"""Dead letters: an ordinary topic to every official client."""

from __future__ import annotations

import pytest

from popserver.in_process import EmbeddedBroker
from tests.interop.official import OfficialSimpleConsumer, Program, Refused
from tests.interop.seen import Lag, Seen, until

pytestmark = [pytest.mark.row("O8"), pytest.mark.row("L12")]

DEAD = "%DLQ%counters"


@pytest.fixture
def consumer(program: Program, seen: Seen) -> OfficialSimpleConsumer:
    """Member of a group that gives a message two chances."""
    seen.make_group("counters", 2)
    return program.simple("counters", "flights")


def die(broker: EmbeddedBroker, consumer: OfficialSimpleConsumer) -> str:
    """Let every delivery of the one message expire; its id."""
    for _ in range(2):
        (message,) = consumer.receive(invisible_s=10)
        broker.clock.advance("10s")
    return message.message_id


@pytest.mark.row("L7")
def test_a_dead_letter_is_read_as_a_message(
    broker: EmbeddedBroker, program: Program, consumer: OfficialSimpleConsumer, seen: Seen
) -> None:
    program.producer("flights").send("flights", "UA1545", tag="UA", keys=["1545"], properties={"origin": "EWR"})
    message_id = die(broker, consumer)
    assert seen.lag("counters", "flights") == Lag(dead_letters=1, stored=1)
    doctor = program.simple("doctors", DEAD, "UA")
    (dead,) = doctor.receive()
    assert (dead.message_id, dead.topic, dead.body, dead.tag) == (message_id, DEAD, "UA1545", "UA")
    assert dead.keys == ["1545"]
    assert dead.properties["origin"] == "EWR"
    assert dead.attempt == 1
    doctor.ack(dead)
    assert seen.lag("doctors", DEAD) == Lag(stored=1)


def test_a_dead_letter_never_comes_back_by_itself(
    broker: EmbeddedBroker, program: Program, consumer: OfficialSimpleConsumer, seen: Seen
) -> None:
    producer = program.producer("flights")
    producer.send("flights", "dies")
    die(broker, consumer)
    broker.clock.advance("24h")
    producer.send("flights", "lives")
    assert [message.body for message in consumer.receive()] == ["lives"]


def test_a_dead_letter_wakes_who_waits_for_it(
    broker: EmbeddedBroker, program: Program, consumer: OfficialSimpleConsumer, seen: Seen
) -> None:
    watcher = program.push("doctors", DEAD)
    until(lambda: seen.parked == 1)
    program.producer("flights").send("flights", "dies")
    message_id = die(broker, consumer)
    assert [message.message_id for message in watcher.hear()] == [message_id]


def test_nobody_sends_to_a_dead_letter_topic(
    broker: EmbeddedBroker, program: Program, consumer: OfficialSimpleConsumer, seen: Seen
) -> None:
    program.producer("flights").send("flights", "dies")
    die(broker, consumer)
    with pytest.raises(Refused):
        program.producer().send(DEAD, "forged")
    watcher = program.simple("doctors", DEAD)
    assert [message.body for message in watcher.receive()] == ["dies"]
