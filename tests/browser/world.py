"""A server with the flights of the demo, and with everything that the console can show about them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import popserver
from examples.flights.data import Row, as_message, flights
from popclient import ConsumeResult, Message, MessageView, Producer, PushConsumer, SimpleConsumer
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.waiting import soon

FLIGHTS = 400
# The pages that have something to show, by what they show.
PAGES = {
    "overview": "/",
    "groups": "/groups",
    "holds": "/groups/radar",
    "queues": "/groups/radar?tab=queues",
    "members": "/groups/arrivals?tab=members",
    "message groups": "/groups/gates?tab=message-groups",
    "policy": "/groups/arrivals?tab=policy",
    "activity": "/groups/arrivals?tab=activity",
    "reset": "/groups/radar/reset?topic=flights&to=BEGINNING",
    "messages": "/messages?topic=flights&tag=UA&since=6h&until=2999-01-01",
    "messages of no time": "/messages?topic=flights&since=yesterday",
    "dead letters": "/dead-letters",
    "dead letters of a group": "/dead-letters/arrivals",
    "dead letter": "/dead-letters/arrivals/1",
    "purge": "/dead-letters/arrivals/purge",
    "topics": "/topics",
    "topic": "/topics/flights",
    "scheduled": "/scheduled",
    "clients": "/clients",
    "users": "/users",
    "server": "/server",
    "nowhere": "/no/such/page",
}


class World:
    """The server, and what of it tests look for."""

    def __init__(self, broker: EmbeddedBroker, admin: Admin, producer: Producer) -> None:
        self.broker = broker
        self.admin = admin
        self.producer = producer
        self._more = itertools.cycle(_rows())

    @property
    def endpoint(self) -> str:
        return self.broker.endpoint

    def send_flights(self, number: int) -> None:
        self.producer.send_many([as_message(row) for row in itertools.islice(self._more, number)]).raise_for_failures()

    def a_dead_letter(self) -> str:
        """The id of its message."""
        return self.admin.list_dead_letters("arrivals", max_messages=1).dead_letters[0].origin_message_id

    def a_held_message(self) -> str:
        return self.admin.list_holds("radar", max_messages=1)[0].message_id


def _rows() -> list[Row]:
    """The flights of the storm in any order, with one in twenty that never arrived."""
    chance = random.Random(1)
    rows = [row for row in flights(whole_year=False) if row["arr_time"] is not None or chance.random() < 0.1]
    chance.shuffle(rows)
    return rows


def arrive(flight: MessageView) -> ConsumeResult:
    """Handles a flight; one that never arrived fails."""
    if '"arr_time": null' in flight.text:
        raise ValueError("the flight never arrived")
    return ConsumeResult.SUCCESS


@contextmanager
def world(**options: Any) -> Iterator[World]:
    """`arrivals` has dead letters, `radar` holds, `gates` has message groups, `audit` is behind."""
    with ExitStack() as stack:
        broker = stack.enter_context(popserver.embedded(min_invisible="1s", max_chart_series=200, **options))
        admin = stack.enter_context(Admin(broker.endpoint))
        _make(admin)
        producer = stack.enter_context(Producer(broker.endpoint))
        made = World(broker, admin, producer)
        made.send_flights(FLIGHTS)
        _send_others(producer)
        _begin_others(stack, broker.endpoint)
        stack.enter_context(PushConsumer(broker.endpoint, "arrivals", "flights", arrive))
        soon(lambda: len(admin.list_dead_letters("arrivals").dead_letters) >= 5)
        yield made


def _make(admin: Admin) -> None:
    admin.create_topic("flights", queue_count=8)
    admin.create_topic("gates", queue_count=2, accept_message_types=["FIFO"])
    admin.create_topic("reminders", queue_count=2, accept_message_types=["DELAY"])
    for name in ("arrivals", "radar", "gates", "audit"):
        admin.create_group(name, max_attempts=3, retry_intervals=[0.3, 0.8], fifo_retry_interval=3_600.0, history="all")


def _send_others(producer: Producer) -> None:
    chance = random.Random(7)
    for gate, turn in itertools.product(range(5), range(4)):
        producer.send("gates", f"flight {turn} at gate {gate}", message_group=f"gate-{gate}")
    for _ in range(40):
        delay = timedelta(minutes=chance.expovariate(1 / 50) + 1)
        producer.send(Message("reminders", "board now", delay=delay, keys=f"gate-{chance.randint(1, 9)}"))


def _begin_others(stack: ExitStack, endpoint: str) -> None:
    """Consumers that hold, and do not finish."""
    radar = stack.enter_context(SimpleConsumer(endpoint, "radar", "flights", invisible_duration=600))
    for index, message in enumerate(radar.receive(32)):
        if index >= 12:
            radar.ack(message)
    gates = stack.enter_context(SimpleConsumer(endpoint, "gates", "gates", invisible_duration=300))
    gates.receive(3)
    audit = stack.enter_context(SimpleConsumer(endpoint, "audit", "flights", invisible_duration=30))
    audit.ack(audit.receive(1)[0])
