"""Databases filled with dead letters by hand: many, of every shape, without waiting for them to die."""

from __future__ import annotations

import gzip
import json
from typing import Any

from sqlalchemy import Connection, insert

from popserver.database.database import Database
from popserver.database.migrate import upgrade
from popserver.database.schema import consumer_group, dead_letter, message, queue, topic
from popserver.model.message import id_to_bytes
from popserver.model.topic import message_key

FLIGHTS, HOTELS = 1, 2
BILLING, RADAR, OTHER_TENANT = 1, 2, 3
EPOCH_MS = 1_360_281_600_123  # 2013-02-08T00:00:00.123Z
V1_ID = "01{:032X}"


def fill(url: str, count: int) -> None:
    """Make the schema and `count` dead letters: every third of RADAR, every fifth from HOTELS, the last one a
    stranger's; the i-th died i seconds after EPOCH_MS."""
    database = Database(url)
    try:
        upgrade(database)
        with database.writing.connect() as conn:
            database.begin(conn)
            _fill(conn, count)
            conn.exec_driver_sql("COMMIT")
    finally:
        database.close()


def body_of(i: int) -> bytes:
    return b"flight %d" % i


def id_of(i: int) -> str:
    return f"own-id-{i}" if i % 7 == 0 else V1_ID.format(i)


def _fill(conn: Connection, count: int) -> None:
    topics = {FLIGHTS: "flights", HOTELS: "hotels", 3: "%DLQ%billing"}
    conn.execute(
        insert(topic),
        [
            {"topic_id": number, "namespace": "", "name": name, "accepts": "NORMAL", "created_at_ms": 0}
            for number, name in topics.items()
        ],
    )
    conn.execute(
        insert(queue),
        [
            {"queue_id": number, "topic_id": number, "number": 4, "min_offset": 0, "next_offset": count}
            for number in topics
        ],
    )
    conn.execute(insert(consumer_group), [_group(*each) for each in _GROUPS])
    for start in range(0, count, 5_000):
        numbers = range(start, min(count, start + 5_000))
        conn.execute(insert(message), [_copy(i) for i in numbers])
        conn.execute(insert(dead_letter), [_facts(i, count) for i in numbers])


_GROUPS = ((BILLING, "", "billing"), (RADAR, "", "radar"), (OTHER_TENANT, "tenant", "billing"))


def _group(number: int, namespace: str, name: str) -> dict[str, Any]:
    return {
        "group_id": number,
        "namespace": namespace,
        "name": name,
        "max_attempts": 3,
        "intervals_ms": "[1000]",
        "consume_from": "EARLIEST",
        "history": "none",
        "created_at_ms": 0,
    }


def _copy(i: int) -> dict[str, Any]:
    packed = i % 11 == 0
    bare = i % 2 == 0
    return {
        "message_key": message_key(3, i),
        "topic_id": 3,
        "copy_of": message_key(_origin(i), i),
        "copy_kind": "DEAD_LETTER",
        "message_id": id_to_bytes(id_of(i)),
        "stored_at_ms": EPOCH_MS - 1_000,
        "born_at_ms": EPOCH_MS - 2_000,
        "tag_hash": 0,
        "tag": None if bare else "UA",
        "keys": None if bare else json.dumps([f"UA-{i}", "ü"]),
        "properties": None if bare else json.dumps({"origin": "JFK", "distance": str(i)}),
        "message_type": "NORMAL",
        "body_encoding": "GZIP" if packed else "IDENTITY",
        "born_host": "here",
        "body": gzip.compress(body_of(i)) if packed else body_of(i),
    }


def _facts(i: int, count: int) -> dict[str, Any]:
    return {
        "group_id": OTHER_TENANT if i == count - 1 else (RADAR if i % 3 == 0 else BILLING),
        "origin_key": message_key(_origin(i), i),
        "origin_topic_id": _origin(i),
        "copy_key": message_key(3, i),
        "attempt": 3,
        "reason": "the hold ended, and no attempt remains",
        "dead_at_ms": EPOCH_MS + i * 1_000,
    }


def _origin(i: int) -> int:
    return HOTELS if i % 5 == 0 else FLIGHTS
