"""Transactions of the official clients, decided by the clients or by their checkers (complaint U33)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from popserver.in_process import EmbeddedBroker
from tests.interop.official import PATIENCE_S, OfficialProducer, Program, Received
from tests.interop.seen import until

pytestmark = pytest.mark.row("O8")


def test_unseen_until_it_is_committed(program: Program) -> None:
    producer = program.producer("flights", decides="UNKNOWN")
    consumer = program.simple("counters", "flights")
    half = producer.send("flights", "paid", half=True)
    assert half.transaction_id
    producer.send("flights", "other")
    (other,) = consumer.receive()
    assert other.body == "other"
    producer.end(half, "COMMIT")
    (message,) = consumer.receive()
    assert (message.message_id, message.body, message.attempt) == (half.message_id, "paid", 1)


def test_what_is_rolled_back_is_gone(program: Program, broker: EmbeddedBroker) -> None:
    producer = program.producer("flights", decides="COMMIT")
    half = producer.send("flights", "not paid", half=True)
    producer.end(half, "ROLLBACK")
    broker.clock.advance("10m")
    assert undecided(broker) == 0
    assert producer.heard.empty()


@pytest.mark.parametrize("decides", ["COMMIT", "ROLLBACK"])
def test_its_producer_is_asked(program: Program, broker: EmbeddedBroker, decides: str) -> None:
    producer = program.producer("flights", decides=decides)
    until(lambda: len(broker.app.broker.producing.transactions.producers) == 1)
    half = producer.send("flights", "paid", half=True, tag="UA", keys=["k"], properties={"p": "v"})
    broker.clock.advance("6s")
    check = asked(producer)
    assert (check.message_id, check.body, check.tag) == (half.message_id, "paid", "UA")
    assert (check.keys, check.properties, check.corrupted) == (["k"], {"p": "v"}, False)
    until(lambda: undecided(broker) == 0)
    producer.send("flights", "last")
    assert stored(broker) == (2 if decides == "COMMIT" else 1)


def test_who_does_not_know_is_asked_again(program: Program, broker: EmbeddedBroker) -> None:
    producer = program.producer("flights", decides="UNKNOWN")
    until(lambda: len(broker.app.broker.producing.transactions.producers) == 1)
    half = producer.send("flights", "paid", half=True)
    for pause in ("6s", "30s", "30s"):
        broker.clock.advance(pause)
        assert asked(producer).message_id == half.message_id
    assert undecided(broker) == 1


@pytest.mark.user("U33")
@pytest.mark.parametrize("sibling", ["python", "node"])
def test_a_sibling_answers_for_a_dead_producer(
    start: Callable[[str], Program], broker: EmbeddedBroker, language: str, sibling: str
) -> None:
    program = start(language)
    half = program.producer("flights", decides="COMMIT").send("flights", "paid", half=True)
    program.kill()
    producers = broker.app.broker.producing.transactions.producers
    until(lambda: len(producers) == 0)
    broker.clock.advance("1h")
    other = start(sibling)
    answering = other.producer("flights", decides="COMMIT")
    until(lambda: len(producers) == 1)
    # A clock that stands still wakes nobody by itself.
    until(lambda: broker.clock.advance(0) or not answering.heard.empty())
    assert asked(answering).message_id == half.message_id
    until(lambda: undecided(broker) == 0)
    (message,) = other.simple("counters", "flights").receive()
    assert message.body == "paid"


def asked(producer: OfficialProducer) -> Received:
    """The half message that the producer's checker is called with."""
    return producer.heard.get(timeout=PATIENCE_S)


def undecided(broker: EmbeddedBroker) -> int:
    return count(broker, "pending")


def stored(broker: EmbeddedBroker) -> int:
    return count(broker, "message")


def count(broker: EmbeddedBroker, table: str) -> int:
    query = f"SELECT COUNT(*) FROM {table}"
    return broker.run(broker.app.broker.engine.reader.read(lambda conn: int(conn.exec_driver_sql(query).scalar_one())))
