"""A broker with messages that have died, for drivers that do the nightly work (redrive_driver), and its result."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import popserver
from popclient import Message, Producer, SimpleConsumer
from popclient.admin import Admin
from popclient.errors import NotFound
from tests.spark.redrive_driver import GROUP
from tests.spark.stream_job import wait_for

TOPIC = "flights"
DEAD = 100
MENDABLE = 60
MENDED = Counter(f"flight {i}: delay null" for i in range(MENDABLE))


@contextmanager
def broker_with_dead_letters(url: str) -> Iterator[popserver.EmbeddedBroker]:
    """With DEAD dead letters of the group; one attempt is all it gives."""
    with popserver.embedded(url, manual_clock=True) as broker:
        with Admin(broker.endpoint) as admin:
            admin.create_topic(TOPIC)
            admin.create_group(GROUP, max_attempts=1)
        with Producer(broker.endpoint) as producer:
            bodies = [f"flight {i}: delay {'NaN' if i < MENDABLE else 'unknown'}" for i in range(DEAD)]
            producer.send_many(Message(TOPIC, body, tag="UA") for body in bodies).raise_for_failures()
        with SimpleConsumer(broker.endpoint, GROUP, TOPIC, await_duration=1) as consumer:
            held = 0
            while held < DEAD:
                held += len(consumer.receive())
            broker.clock.advance("31s")
        wait_for(lambda: dead_in(broker.endpoint) == DEAD)
        yield broker


def dead_in(endpoint: str) -> int:
    with Admin(endpoint) as admin:
        return sum(1 for _ in admin.dead_letters(GROUP, without_bodies=True))


def consumed(endpoint: str) -> Counter[str]:
    """The bodies of all that the group has to do now; each is done."""
    bodies: Counter[str] = Counter()
    with SimpleConsumer(endpoint, GROUP, TOPIC, await_duration=1) as consumer:
        while messages := consumer.receive():
            for message in messages:
                bodies[message.text] += 1
                consumer.ack(message)
    return bodies


def sent_by_plan(endpoint: str, driver: subprocess.Popen[bytes] | subprocess.Popen[str] | None = None) -> int:
    """How many messages the first night's plan has sent back; `driver` must still run."""
    assert driver is None or driver.poll() is None, "the driver has ended too early"
    with Admin(endpoint) as admin:
        try:
            return admin.redrive_plan("nightly-0").redriven
        except NotFound:
            return 0
