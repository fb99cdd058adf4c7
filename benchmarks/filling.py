"""Fills a database fast: through the store's own verbs, without the wire and without waiting for the disk."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from popserver.domain.message import Message
from popserver.domain.names import Resource
from popserver.domain.topic import NewTopic
from popserver.store import Database, messages, migrate
from popserver.store.catalog import ensure_topic
from popserver.store.transaction import Transaction

_PER_TRANSACTION = 2_048


def fill(database_url: str, topic: str, count: int, body_bytes: int) -> float:
    """Store `count` messages in `topic`, spread over its queues; returns the messages stored per second."""
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        begun = time.perf_counter()
        _append_all(database, Resource("", topic), new_messages(topic, count, body_bytes), count)
        return count / (time.perf_counter() - begun)
    finally:
        database.close()


def new_messages(topic: str, count: int, body_bytes: int) -> Iterator[Message]:
    """Messages like those the load sends: a tag, a key, an id that grows with time."""
    name, body = Resource("", topic), bytes(range(256)) * (body_bytes // 256 + 1)
    body = body[:body_bytes]
    now_ms, first = time.time_ns() // 1_000_000, time.time_ns()
    for number in range(first, first + count):
        yield Message(name, f"01{number:032X}", body, tag="bench", keys=("key",), born_at_ms=now_ms, born_host="bench")


def _append_all(database: Database, name: Resource, made: Iterator[Message], count: int) -> None:
    with database.connect_writer() as conn:
        now_ms, topic = time.time_ns() // 1_000_000, None
        for rotation in range(-(-count // _PER_TRANSACTION)):
            database.begin(conn)
            tx = Transaction(conn, now_ms)
            topic = topic or ensure_topic(tx, NewTopic(name))
            batch = list(itertools.islice(made, _PER_TRANSACTION))
            messages.append(tx, [messages.Append(topic, batch, rotation)])
            conn.exec_driver_sql("COMMIT")
        if database.is_sqlite:
            conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        else:
            # What Postgres would otherwise do in the background, during the measurement.
            conn.exec_driver_sql("VACUUM (ANALYZE)")
            conn.exec_driver_sql("CHECKPOINT")
