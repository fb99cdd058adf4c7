"""What a test of a whole server looks through, and how it lets time pass."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, select, text

from popclient import Message, Producer
from popclient.admin import Admin
from popserver import EmbeddedBroker
from popserver.database import schema
from tests.support.scripted_server import until_in_thread

TOPIC, GROUP = "orders", "billing"
STEP_S = 15  # shorter than a poll of 20 s and a lapse of 35 s


def send(broker: EmbeddedBroker, *bodies: str, topic: str = TOPIC, **more: Any) -> list[str]:
    """One message each, in this order; their ids."""
    with Producer(broker.endpoint) as producer:
        return [producer.send(Message(topic, body, **more)).message_id for body in bodies]


def make_topic(broker: EmbeddedBroker, *accepts: str) -> None:
    with Admin(broker.endpoint) as admin:
        admin.create_topic(TOPIC, queue_count=1, accept_message_types=accepts)


def states(broker: EmbeddedBroker, group: str = GROUP) -> Counter[str]:
    """How many messages are in which state."""
    rows = look(broker, f"SELECT state FROM message_state WHERE consumer_group = '{group}' AND topic = '{TOPIC}'")
    return Counter(state for (state,) in rows)


def overdue(broker: EmbeddedBroker) -> timedelta:
    """How late the latest is that should have ended."""
    broker.settle()
    with Admin(broker.endpoint) as admin:
        return admin.status().oldest_overdue


def look(broker: EmbeddedBroker, query: str) -> list[tuple[Any, ...]]:
    def read(conn: Connection) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in conn.execute(text(query))]

    broker.settle()
    return broker.run(broker.app.broker.engine.reader.read(read))


def everything(broker: EmbeddedBroker) -> str:
    """One number for everything stored: equal numbers, nothing changed."""

    def read(conn: Connection) -> str:
        digest = hashlib.sha256()
        for table in schema.metadata.sorted_tables:
            for row in conn.execute(select(table).order_by(*table.primary_key)):
                digest.update(f"{table.name} {tuple(row)!r}".encode())
        return digest.hexdigest()

    broker.settle()
    return broker.run(broker.app.broker.engine.reader.read(read))


def parked(broker: EmbeddedBroker, polls: int = 1) -> None:
    """Return once so many polls wait."""
    until_in_thread(lambda: broker.app.broker.engine.wakeups.parked == polls)


def pass_time(broker: EmbeddedBroker, seconds: int) -> None:
    """Let it pass for the server, slowly enough for one push consumer to poll on."""
    for _ in range(0, seconds, STEP_S):
        parked(broker)
        broker.clock.advance(f"{STEP_S}s")


Start = Callable[[], AbstractContextManager[EmbeddedBroker]]
