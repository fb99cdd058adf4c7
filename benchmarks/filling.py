"""Fill a database fast: by the server's own operations, without gRPC and without waiting for the disk."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection, make_url, text

from popserver.catalog import groups, topics
from popserver.database import migrate
from popserver.database.database import Database
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction
from popserver.filters import tags
from popserver.messages.stored import Append, append
from popserver.model.group import Group, Mode, NewGroup
from popserver.model.message import Message
from popserver.model.names import Resource
from popserver.model.retry import HOUR_MS, Holder
from popserver.model.topic import MessageType, NewTopic
from popserver.producing import pending
from popserver.producing.rules import CheckPolicy
from popserver.receiving import receive
from popserver.receiving.batch import Receive

TAGS = ("9E", "AA", "AS", "B6", "DL", "EV", "HA", "MQ", "UA", "WN")
_PER_TRANSACTION = 2_048
_READ_BYTES = 16 * 1024 * 1024


def fill(database_url: str, topic: str, count: int, body_bytes: int, *, packs: bool = True) -> float:
    """Store `count` messages in `topic`, spread over its queues; returns the messages stored per second.

    Without `packs` their bodies are of random bytes, which Postgres cannot compress.
    """
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        made = new_messages(topic, count, body_bytes)
        if not packs:
            made = (each._replace(body=os.urandom(body_bytes)) for each in made)
        begun = time.perf_counter()
        append_all(database, Resource("", topic), made, count)
        return count / (time.perf_counter() - begun)
    finally:
        database.close()


def fill_over_time(database_url: str, topic: str, count: int, body_bytes: int) -> None:
    """Store `count` messages in `topic`, spread over its queues, with stored times over the last 24 hours."""
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        made = new_messages(topic, count, body_bytes)
        # A few in every queue must differ in their times, however few there are.
        per_transaction = min(_PER_TRANSACTION, -(-count // 64))
        append_all(database, Resource("", topic), made, count, span_ms=24 * HOUR_MS, per_transaction=per_transaction)
    finally:
        database.close()


def read_through(database_url: str) -> None:
    """Read a whole database into memory, so that later queries do not measure the disk."""
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        with Path(str(url.database)).open("rb") as file:
            while file.read(_READ_BYTES):
                pass
        return
    database = Database(database_url)
    try:
        with database.reading.connect() as conn:
            # By the index, because Postgres does not keep the pages of a sequential scan.
            conn.execute(text("SET enable_seqscan = off"))
            conn.execute(
                text("SELECT sum(length(body)) FROM (SELECT body FROM message ORDER BY message_key) AS m")
            ).scalar()
    finally:
        database.close()


def fill_for_filters(database_url: str, topic: str, count: int, body_bytes: int) -> None:
    """Store `count` messages in `topic`, each with properties, and one of ten with any of the `TAGS`."""
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        made = new_messages(topic, count, body_bytes)
        append_all(database, Resource("", topic), map(_with_properties, made, itertools.count()), count)
    finally:
        database.close()


def fill_in_order(database_url: str, topic: str, count: int, body_bytes: int, groups: int) -> None:
    """Store `count` messages in `topic`, spread over `groups` message groups."""
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        made = new_messages(topic, count, body_bytes)
        in_order = (_in_group(each, number, groups) for number, each in enumerate(made))
        append_all(database, Resource("", topic), in_order, count, (MessageType.FIFO,))
    finally:
        database.close()


def fill_delayed(database_url: str, topic: str, count: int, body_bytes: int) -> None:
    """Store `count` messages in `topic` that are due in an hour to thirty days."""
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        _pend_all(database, Resource("", topic), new_messages(topic, count, body_bytes), count)
    finally:
        database.close()


def fill_held(database_url: str, topic: str, count: int, body_bytes: int) -> None:
    """Store `count` messages in `topic`, all held by a consumer for twelve hours."""
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        append_all(database, Resource("", topic), new_messages(topic, count, body_bytes), count)
        _hold_all(database, Resource("", topic), count)
    finally:
        database.close()


def new_messages(topic: str, count: int, body_bytes: int) -> Iterator[Message]:
    """Messages like those of the load: a tag, a key, an id that grows with time."""
    name, body = Resource("", topic), bytes(range(256)) * (body_bytes // 256 + 1)
    body = body[:body_bytes]
    now_ms, first = time.time_ns() // 1_000_000, time.time_ns()
    for number in range(first, first + count):
        yield Message(name, f"01{number:032X}", body, tag="bench", keys=("key",), born_at_ms=now_ms, born_host="bench")


def _with_properties(made: Message, number: int) -> Message:
    tag = TAGS[number % len(TAGS)]
    properties = {
        "carrier": tag,
        "origin": "JFK",
        "destination": "LAX",
        "tailnum": f"N{number % 5_000}",
        "distance": str(1_000 + number % 2_000),
        "delay": str(number % 180),
    }
    return made._replace(tag=tag, properties=properties)


def _in_group(made: Message, number: int, groups: int) -> Message:
    # Scattered, but for the same number always the same.
    return made._replace(message_type=MessageType.FIFO, message_group=f"sender-{number * 7_919 % 1_000_003 % groups}")


def append_all(
    database: Database,
    name: Resource,
    made: Iterator[Message],
    count: int,
    accepts: tuple[MessageType, ...] = (MessageType.NORMAL,),
    *,
    span_ms: int = 0,
    per_transaction: int = _PER_TRANSACTION,
) -> None:
    """`span_ms`: the time from the first transaction's moment to now, which is the last one's."""
    with database.connect_writer() as conn:
        begun_ms, topic = time.time_ns() // 1_000_000 - span_ms, None
        transactions = -(-count // per_transaction)
        for step in range(transactions):
            database.begin(conn)
            tx = Transaction.at(conn, begun_ms + span_ms * (step + 1) // transactions)
            topic = topic or topics.ensure_topic(tx, NewTopic(name, accepts=accepts))
            batch = list(itertools.islice(made, per_transaction))
            append(tx, [Append(topic, batch)])
            conn.exec_driver_sql("COMMIT")
        settle(database, conn)


def _hold_all(database: Database, name: Resource, count: int) -> None:
    with database.connect_writer() as conn:
        now_ms, request = time.time_ns() // 1_000_000, None
        for rotation in range(-(-count // STEP_ROWS_MAX)):
            database.begin(conn)
            tx = Transaction.at(conn, now_ms)
            request = request or _receive_all(tx, name)
            receive.receive(tx, [replace(request, rotation=rotation)])
            conn.exec_driver_sql("COMMIT")
        settle(database, conn)


def _receive_all(tx: Transaction, name: Resource) -> Receive:
    """A receive for as many messages as one step may have, as for many consumers together."""
    topic = topics.ensure_topic(tx, NewTopic(name))
    (group,) = groups.create_group(tx, [groups.CreateGroup(NewGroup(Resource("", "bench-holder")), or_find=True)])
    assert isinstance(group, Group)
    groups.subscribe(tx, [groups.Subscribe(group, topic, Mode.POP)])
    return Receive(
        group=group,
        topic=topic,
        wanted=tags.parse("*"),
        batch_size=STEP_ROWS_MAX,
        invisible_ms=12 * HOUR_MS,
        holder=Holder.SIMPLE,
        client_id="bench",
        rotation=0,
    )


def _pend_all(database: Database, name: Resource, made: Iterator[Message], count: int) -> None:
    with database.connect_writer() as conn:
        now_ms, topic, policy = time.time_ns() // 1_000_000, None, CheckPolicy()
        due = range(now_ms + HOUR_MS, now_ms + 30 * 24 * HOUR_MS)
        for start in range(0, count, _PER_TRANSACTION):
            database.begin(conn)
            tx = Transaction.at(conn, now_ms)
            topic = topic or topics.ensure_topic(tx, NewTopic(name, accepts=(MessageType.NORMAL, MessageType.DELAY)))
            batch = [
                each._replace(message_type=MessageType.DELAY, deliver_at_ms=due[number * 7_919 % len(due)])
                for number, each in enumerate(itertools.islice(made, _PER_TRANSACTION), start)
            ]
            pending.store_pending(tx, [pending.StorePending(topic, batch, "bench", policy)])
            conn.exec_driver_sql("COMMIT")
        settle(database, conn)


def settle(database: Database, conn: Connection) -> None:
    if database.is_sqlite:
        conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    else:
        # What Postgres would otherwise do in the background, during the measurement.
        conn.exec_driver_sql("VACUUM (ANALYZE)")
        conn.exec_driver_sql("CHECKPOINT")
