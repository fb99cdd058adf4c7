"""Why a message failed, as its consumer says: in the dead letter, and in the history of each attempt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import popserver
from popclient import ConsumeResult, Message, MessageView, Producer, PushConsumer, SimpleConsumer
from popclient._engine.settle import REASON_HEADER as SAID
from popclient._push.outcomes import reason_of
from popclient.admin import Admin
from popclient.listening import ConsumeStatus, Consumption
from popserver.settling.rpc import REASON_HEADER
from tests.support.scripted_server import until_in_thread

EXHAUSTED = "failed, and no attempt remains"


@pytest.fixture
def broker(database_url: str) -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded(database_url) as made:
        yield made


def listener(message: MessageView) -> ConsumeResult | None:
    if message.text == "fails":
        return ConsumeResult.FAILURE
    if message.text == "nothing":
        return None
    if message.text == "long":
        raise ValueError("x" * 1_000)
    raise KeyError("gate") if message.text == "key" else ValueError("no such\tgate\nof flight 4711")


def reasons_of(admin: Admin, group: str) -> dict[str | None, str]:
    return {each.message.text if each.message else None: each.reason for each in admin.dead_letters(group)}


@pytest.mark.parametrize("message_group", [None, "flight"])
def test_dead_letters_of_push_consumers_have_the_listeners_exception(
    broker: popserver.EmbeddedBroker, message_group: str | None
) -> None:
    bodies = ("value", "key", "nothing", "fails", "long")
    kind = "FIFO" if message_group else "NORMAL"
    with Admin(broker.endpoint) as admin, Producer(broker.endpoint) as producer:
        admin.create_topic("orders", accept_message_types=[kind])
        admin.create_group("g", max_attempts=1)
        for body in bodies:
            producer.send(Message("orders", body, message_group=message_group))
        with PushConsumer(broker.endpoint, "g", "orders", listener):
            until_in_thread(lambda: len(reasons_of(admin, "g")) == len(bodies))
        assert reasons_of(admin, "g") == {
            "value": f"{EXHAUSTED}: ValueError: no such gate",
            "key": f"{EXHAUSTED}: KeyError: 'gate'",
            "nothing": f"{EXHAUSTED}: the listener returned nothing",
            "fails": EXHAUSTED,
            "long": f"{EXHAUSTED}: " + ("ValueError: " + "x" * 1_000)[:256],
        }


def test_each_attempt_has_its_reason_in_the_history(broker: popserver.EmbeddedBroker) -> None:
    with Admin(broker.endpoint) as admin, Producer(broker.endpoint) as producer:
        admin.create_topic("orders")
        admin.create_group("g", max_attempts=2, retry_intervals=[0.01], history="all")
        message_id = producer.send("orders", "key").message_id
        with PushConsumer(broker.endpoint, "g", "orders", listener):
            until_in_thread(lambda: len(reasons_of(admin, "g")) == 1)
        found = {each.event: each.reason for each in admin.get_message(message_id).history if each.reason}
    assert found == {"RETRY": "KeyError: 'gate'", "EXHAUST": f"{EXHAUSTED}: KeyError: 'gate'"}


def test_a_simple_consumer_says_why_it_gives_up(broker: popserver.EmbeddedBroker) -> None:
    with Admin(broker.endpoint) as admin, Producer(broker.endpoint) as producer:
        for body in ("says", "does not"):
            producer.send("orders", body)
        with SimpleConsumer(broker.endpoint, group="g", topics="orders") as consumer:
            while len(reasons_of(admin, "g")) < 2:
                for message in consumer.receive(2, await_duration=1):
                    reason = "the gate\0is closed" if message.text == "says" else ""
                    consumer.forward_to_dead_letter_queue(message, reason)
        given = "forwarded by its consumer"
        assert reasons_of(admin, "g") == {"says": f"{given}: the gate is closed", "does not": given}


class Unprintable(Exception):
    """One whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("consumption", "reason"),
    [
        (Consumption(ConsumeStatus.EXCEPTION, 0.0, Unprintable()), "Unprintable"),
        (Consumption(ConsumeStatus.EXCEPTION, 0.0, ValueError()), "ValueError"),
        (Consumption(ConsumeStatus.EXCEPTION, 0.0, None), ""),
        (Consumption(ConsumeStatus.TIMEOUT, 9.0, ValueError()), "the consumption timeout of 9 s was over"),
    ],
)
def test_a_reason_is_one_line(consumption: Consumption, reason: str) -> None:
    assert reason_of(consumption, 9.0) == reason


def test_client_and_server_mean_the_same_header() -> None:
    assert SAID == REASON_HEADER
