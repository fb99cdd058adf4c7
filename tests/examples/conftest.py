"""What the tests of the examples may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from examples.flights.data import as_message
from examples.flights.groups import ARRIVALS, RADAR
from popclient import Producer, SimpleConsumer
from popclient.admin import Admin
from popclient.spark import JavaMissing
from popclient.spark.session import java_home
from popserver import embedded

FLIGHTS = 4


@pytest.fixture
def java() -> None:
    try:
        java_home()
    except JavaMissing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"spark: {missing}")


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database in which four flights have ended in both groups; the first has not arrived and is dead."""
    path = tmp_path_factory.mktemp("proof") / "popmq.db"
    with embedded(path, manual_clock=True, min_invisible="1s") as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic("flights", queue_count=1)
            admin.create_group(ARRIVALS, max_attempts=1, history="all")
            admin.create_group(RADAR, history="all")
        with Producer(broker.endpoint) as producer:
            for number in range(FLIGHTS):
                producer.send(as_message(flight(number)))
        for group, hold_s in ((ARRIVALS, 5), (RADAR, 15)):
            with SimpleConsumer(broker.endpoint, group, "flights", invisible_duration=hold_s) as consumer:
                held = [message for _ in range(FLIGHTS) for message in consumer.receive(1)]
                consumer.ack(held if group == RADAR else held[1:])
        broker.clock.advance("10s")
    return path


def flight(number: int) -> dict[str, str | None]:
    arrival = {"arr_time": "830" if number else None}
    names = ("origin", "dest", "distance", "tailnum", "time_hour")
    return {"carrier": "UA", "flight": str(number), **arrival, **dict.fromkeys(names, "x")}
