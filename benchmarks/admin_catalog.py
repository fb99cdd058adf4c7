"""The store of the administration's benchmark: many topics, all of which several groups consume."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert

from benchmarks.filling import append_all, new_messages
from popproto.v2 import definition_pb2 as pb
from popserver.database import migrate
from popserver.database.database import Database
from popserver.database.schema import consumer_group, delivery, keyed_message, message, progress, queue
from popserver.database.schema import topic as topic_table
from popserver.messages.keyed import SLOT_BITS, SLOTS, key_hash
from popserver.model.group import Mode
from popserver.model.names import Resource
from popserver.model.retry import HOUR_MS, Holder
from popserver.model.states import State
from popserver.model.topic import message_key

GROUPS, QUEUES, MESSAGES = 10, 8, 2
HOLDER, MEMBERS = 3, 10  # groups: the one with the holds, and the one whose consumers own whole queues
HOLDS = 10_000
LARGE_TOPIC, LARGE = "large", 20_000
_ROWS = 20_000
_NUMBERED = (("topic", "topic_id"), ("queue", "queue_id"), ("consumer_group", "group_id"))
# Each message of it has one key, the same.
_KEYED_OF_LARGE = (
    "INSERT INTO keyed_message (block, key_hash, slot)"
    f" SELECT message_key >> {SLOT_BITS}, {key_hash('key')}, message_key & {SLOTS - 1} FROM message"
    f" JOIN topic ON topic.topic_id = message.topic_id WHERE topic.name = '{LARGE_TOPIC}'"
)


def fill_catalog(database_url: str, count: int) -> None:
    """So many topics with 2 messages in each of their 8 queues; 10 groups consume all of them and have read a third.

    The third group holds a message in each of the first queues. A topic more has many messages.
    """
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        now_ms = time.time_ns() // 1_000_000
        numbers = range(1, count + 1)
        places = [(number, each, _queue_id(number, each)) for number in numbers for each in range(QUEUES)]
        topics = [
            {"topic_id": number, "namespace": "", "name": topic_named(number).name, "accepts": "NORMAL,FIFO"}
            | {"created_at_ms": now_ms, "fifo_queues": QUEUES}
            for number in numbers
        ]
        queues = [
            {"queue_id": queue_id, "topic_id": number, "number": each}
            | {"min_offset": 0, "next_offset": MESSAGES, "newest_stored_at_ms": now_ms}
            for number, each, queue_id in places
        ]
        groups = [
            {"group_id": group, "namespace": "", "name": f"group-{group}", "max_attempts": 16, "mode": _mode(group)}
            | {"intervals_ms": "[1000]", "consume_from": "EARLIEST", "history": "none", "created_at_ms": now_ms}
            for group in range(1, GROUPS + 1)
        ]
        read = [
            {"group_id": group, "queue_id": queue_id, "next_offset": queue_id % (MESSAGES + 1)}
            for group in range(1, GROUPS + 1)
            for _, _, queue_id in places
        ]
        messages = [
            {"message_key": key, "topic_id": number, "message_id": bytes.fromhex(id_at(key)), "tag_hash": 0}
            | {"stored_at_ms": now_ms, "born_at_ms": now_ms, "message_type": "NORMAL", "body_encoding": "IDENTITY"}
            | {"born_host": "bench", "body": b"x", "keys": json.dumps([key_of_topic(number)])}
            for number, each, _ in places
            for key in (place(number, each, offset) for offset in range(MESSAGES))
        ]
        _insert(database, [(topic_table, topics), (queue, queues), (consumer_group, groups), (progress, read)])
        keyed = [
            {"block": key >> SLOT_BITS, "key_hash": key_hash(key_of_topic(number)), "slot": key & (SLOTS - 1)}
            for number, each, _ in places
            for key in (place(number, each, offset) for offset in range(MESSAGES))
        ]
        # Where the group has read a message (see above), it holds the first one.
        held = [queue_id for _, _, queue_id in places if queue_id % (MESSAGES + 1)][:HOLDS]
        holds = [
            {"group_id": HOLDER, "message_key": message_key(queue_id, 0), "topic_id": (queue_id - 1) // QUEUES + 1}
            | {"state": State.INFLIGHT, "attempt": 1, "hold_id": number, "visible_at_ms": now_ms + 12 * HOUR_MS}
            | {"holder": Holder.SIMPLE, "client_id": "bench"}
            for number, queue_id in enumerate(held, 1)
        ]
        _insert(database, [(message, messages), (keyed_message, keyed), (delivery, holds)])
        many = min(LARGE, MESSAGES * count)
        append_all(database, Resource("", LARGE_TOPIC), new_messages(LARGE_TOPIC, many, 64), many)
        with database.connect_writer() as conn:
            database.begin(conn)
            conn.exec_driver_sql(_KEYED_OF_LARGE)
            conn.exec_driver_sql("COMMIT")
            conn.exec_driver_sql("ANALYZE")
    finally:
        database.close()


def _insert(database: Database, tables: Sequence[tuple[Any, list[dict[str, Any]]]]) -> None:
    with database.connect_writer() as conn:
        database.begin(conn)
        for table, rows in tables:
            for start in range(0, len(rows), _ROWS):
                conn.execute(insert(table), rows[start : start + _ROWS])
        for table, column in () if database.is_sqlite else _NUMBERED:
            # Postgres does not count the ids that are given.
            newest = f"(SELECT coalesce(max({column}), 1) FROM {table})"
            conn.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('{table}', '{column}'), {newest})")
        conn.exec_driver_sql("COMMIT")
        conn.exec_driver_sql("ANALYZE")


def _mode(group: int) -> Mode:
    return Mode.PULL if group == MEMBERS else Mode.POP


def group_named(number: int) -> pb.Resource:
    return pb.Resource(name=f"group-{number}")


def topic_named(number: int) -> pb.Resource:
    return pb.Resource(name=f"topic-{number:05}")


def key_of_topic(number: int) -> str:
    """The key of a topic's messages."""
    return f"order-{number}"


def _queue_id(number: int, queue_number: int) -> int:
    return (number - 1) * QUEUES + queue_number + 1


def place(number: int, queue_number: int, offset: int) -> int:
    return message_key(_queue_id(number, queue_number), offset)


def id_at(key: int) -> str:
    return f"01{key:032X}"
