"""Databases for the cases of Spark: dead letters as inserted rows, flights by the server's own operations."""

from __future__ import annotations

import time
from typing import Final

from sqlalchemy import Connection, text

from benchmarks.filling import append_all, settle
from examples.flights.data import TOPIC, as_message, flights
from popserver.catalog import groups, topics
from popserver.database import migrate
from popserver.database.database import Database
from popserver.engine.transaction import Transaction
from popserver.model.group import Group, NewGroup
from popserver.model.message import Message
from popserver.model.names import Resource, dead_letter_topic
from popserver.model.topic import SYSTEM_QUEUES, NewTopic, message_key

GROUP: Final = Resource("", "bench-arrivals")
_ID = {
    "sqlite": "unhex('01' || printf('%032x', i))",
    "postgresql": "decode('01' || lpad(to_hex(i), 32, '0'), 'hex')",
}
_BODY = {
    "sqlite": "CAST(printf('%0{0}d', i) AS BLOB)",
    "postgresql": "convert_to(lpad(CAST(i AS TEXT), {0}, '0'), 'UTF8')",
}
_COPIES: Final = """
WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < :count)
INSERT INTO message (message_key, topic_id, copy_of, copy_kind, message_id, stored_at_ms, born_at_ms, tag_hash, tag,
                     keys, properties, message_type, body_encoding, born_host, body)
SELECT :copies + i, :dlq_topic_id, :origins + i, 'DEAD_LETTER', {id}, :now_ms, :now_ms, 0, 'UA', '["UA-' || i || '"]',
       '{{"origin": "JFK", "distance": "' || i || '"}}', 'NORMAL', 'IDENTITY', 'bench', {body}
FROM numbers
"""
_FACTS: Final = """
WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < :count)
INSERT INTO dead_letter (group_id, origin_key, origin_topic_id, copy_key, attempt, reason, dead_at_ms)
SELECT :group_id, :origins + i, :topic_id, :copies + i, 3, 'the hold ended, and no attempt remains', :now_ms
FROM numbers
"""


def fill_dead_letters(database_url: str, count: int, body_bytes: int) -> None:
    """`count` dead letters of one group, with ids from 1, each with a tag, a key and two properties."""
    database = Database(database_url, durability="relaxed", own_process=True)
    try:
        migrate.upgrade(database)
        with database.connect_writer() as conn:
            database.begin(conn)
            _write_dead_letters(conn, "sqlite" if database.is_sqlite else "postgresql", count, body_bytes)
            conn.exec_driver_sql("COMMIT")
            settle(database, conn)
    finally:
        database.close()


def _write_dead_letters(conn: Connection, dialect: str, count: int, body_bytes: int) -> None:
    tx = Transaction.at(conn, time.time_ns() // 1_000_000)
    topic = topics.ensure_topic(tx, NewTopic(Resource("", TOPIC)))
    copies = topics.ensure_topic(tx, NewTopic(dead_letter_topic(GROUP), SYSTEM_QUEUES))
    (group,) = groups.create_group(tx, [groups.CreateGroup(NewGroup(GROUP), or_find=True)])
    assert isinstance(group, Group)
    words = {"id": _ID[dialect], "body": _BODY[dialect].format(body_bytes)}
    values = {
        "count": count,
        "group_id": group.group_id,
        "topic_id": topic.topic_id,
        "dlq_topic_id": copies.topic_id,
        "origins": message_key(topic.queues[0].queue_id, 0),
        "copies": message_key(copies.queues[0].queue_id, 0),
        "now_ms": tx.now_ms,
    }
    for statement in (_COPIES.format(**words), _FACTS):
        conn.execute(text(statement), values)


def fill_flights(database_url: str, count: int) -> None:
    """The first `count` flights of 2013, in the topic `flights`."""
    database = Database(database_url, durability="relaxed", own_process=True)
    now_ms, first = time.time_ns() // 1_000_000, time.time_ns()
    rows = (as_message(row) for row in flights(whole_year=True))
    made = (
        Message(
            Resource("", TOPIC),
            f"01{first + number:032X}",
            each.body if isinstance(each.body, bytes) else each.body.encode(),
            tag=each.tag,
            keys=tuple(each.keys),
            properties=dict(each.properties),
            born_at_ms=now_ms,
            born_host="bench",
        )
        for number, each in enumerate(rows)
    )
    try:
        migrate.upgrade(database)
        append_all(database, Resource("", TOPIC), made, count)
    finally:
        database.close()
