"""Fill a database with very many small messages: by the database's own SQL, queue by queue, in large steps.

The rows are like those of the server's own sends, so statements cost there what they cost here. Pages are fuller than
after sends that are spread over the queues, so bytes are measured on other stores (`benchmarks.sizes.units`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sqlalchemy import Connection, create_engine, make_url, text
from sqlalchemy.pool import NullPool

from popserver.catalog import topics
from popserver.database import migrate
from popserver.database.database import Database
from popserver.engine.transaction import Transaction
from popserver.model.names import Resource
from popserver.model.retry import HOUR_MS
from popserver.model.topic import OFFSET_BITS, NewTopic, Topic

# The messages were stored over this time, until now.
SPAN_MS = 48 * HOUR_MS
_STEP = 1_000_000
_MESSAGES = """
INSERT INTO message (message_key, topic_id, message_id, stored_at_ms, born_at_ms, tag_hash, tag, message_type,
                     body_encoding, born_host, body)
{numbers}
SELECT :queue + i, :topic, {message_id}, :from_ms + i * :span_ms / :per_queue, :from_ms + i * :span_ms / :per_queue,
       0, 'bench', 'NORMAL', 'IDENTITY', 'bench', :body FROM {n}
"""
# Each 16th message has a key. No message has the key that a search looks for, so only the blocks count.
_KEYED = """
INSERT INTO keyed_message (block, key_hash, slot)
{numbers}
SELECT (:queue + i) >> 12, i * 2654435761 % 4294967296 - 2147483648, (:queue + i) & 4095
FROM {n} WHERE i % 16 = 0 ORDER BY 1, 2
"""
_SQLITE = {
    "numbers": "WITH RECURSIVE n(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :end)",
    "n": "n",
    "message_id": "CAST(char(1) || printf('%016d', :id + i) AS BLOB)",
}
_POSTGRES = {
    "numbers": "",
    "n": "generate_series(CAST(:first AS bigint), :end - 1) AS n(i)",
    "message_id": "decode('01' || lpad(to_hex(:id + i), 32, '0'), 'hex')",
}


def fill_rows(database_url: str, name: str, count: int, body_bytes: int, say: Callable[[str], None]) -> float:
    """Store `count` messages in a new topic with 8 queues; returns the messages stored per second."""
    topic = _new_topic(database_url, name)
    is_sqlite = make_url(database_url).get_backend_name() == "sqlite"
    forms = _SQLITE if is_sqlite else _POSTGRES
    statements = [text(each.format(**forms)) for each in (_MESSAGES, _KEYED)]
    begun, per_queue, done = time.perf_counter(), count // len(topic.queues), 0
    now_ms = time.time_ns() // 1_000_000
    engine = create_engine(_driver(database_url), poolclass=NullPool)
    with engine.connect() as conn:
        for setting in _SQLITE_SETTINGS if is_sqlite else ("SET synchronous_commit = off",):
            conn.exec_driver_sql(setting)
        for number, place in enumerate(topic.queues):
            values = {"topic": topic.topic_id, "queue": place.queue_id << OFFSET_BITS, "id": number * per_queue}
            values |= {"from_ms": now_ms - SPAN_MS, "span_ms": SPAN_MS, "per_queue": per_queue}
            for start in range(0, per_queue, _STEP):
                end = min(start + _STEP, per_queue)
                for statement in statements:
                    conn.execute(statement, values | {"first": start, "end": end, "body": bytes(body_bytes)})
                conn.commit()
                done += end - start
                say(f"{done:,} of {count:,} messages")
            conn.execute(_FILLED, {"queue_id": place.queue_id, "next": per_queue, "now_ms": now_ms})
            conn.commit()
        _settle(conn, is_sqlite=is_sqlite)
    engine.dispose()
    return count / (time.perf_counter() - begun)


# Nobody else has the file, and after a crash it is filled again.
_SQLITE_SETTINGS = ("PRAGMA journal_mode = OFF", "PRAGMA synchronous = OFF", "PRAGMA cache_size = -200000")
_FILLED = text("UPDATE queue SET next_offset = :next, newest_stored_at_ms = :now_ms WHERE queue_id = :queue_id")


def _driver(database_url: str) -> str:
    url = make_url(database_url)
    named = url if url.get_backend_name() == "sqlite" else url.set(drivername="postgresql+psycopg")
    return named.render_as_string(hide_password=False)


def _new_topic(database_url: str, name: str) -> Topic:
    database = Database(database_url, durability="relaxed")
    try:
        migrate.upgrade(database)
        with database.connect_writer() as conn:
            database.begin(conn)
            made = topics.ensure_topic(Transaction.at(conn, time.time_ns() // 1_000_000), NewTopic(Resource("", name)))
            conn.exec_driver_sql("COMMIT")
            return made
    finally:
        database.close()


def _settle(conn: Connection, *, is_sqlite: bool) -> None:
    conn.commit()
    if is_sqlite:
        conn.exec_driver_sql("PRAGMA journal_mode = WAL")
        return
    own = conn.execution_options(isolation_level="AUTOCOMMIT")
    # What Postgres would otherwise do in the background, during the measurement.
    own.exec_driver_sql("VACUUM (ANALYZE)")
    own.exec_driver_sql("CHECKPOINT")
