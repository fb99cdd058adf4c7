"""The newest version of a row is found at once, however many old ones a transaction keeps."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Select, Table, select, text
from sqlalchemy.dialects import postgresql

from popserver.database.dialect import Postgres
from popserver.database.newest import are_newest, newest
from popserver.database.rows import encode_rows, rows_parameter
from popserver.database.schema import delivery, metadata, pending, progress, queue
from popserver.database.states_of import _STATE_OF
from popserver.delivery.ready import SINCE_MS
from popserver.fifo.positions import OPEN_SINCE_MS, is_position, offset_of_position
from popserver.messages.pending_messages import _NEXT_CHECKS
from popserver.model.topic import MessageType, queue_of
from tests.support.open_store import OpenStore
from tests.support.pending_store import a_delayed, pend

# More than a page of an index has room for.
VERSIONS = 600
VERSIONS_OF_POSITIONS = 2_100
ENDED = 20_000
HALVES = 100_000  # the index of checks needs another level for them
POSTGRES = postgresql.dialect()
LONG_NAME = "long" * 30
KEYS: list[tuple[Table, tuple[str, ...], str]] = [
    (queue, ("queue_id",), "next_offset"),
    (queue, ("topic_id", "number"), "next_offset"),
    (pending, ("pending_id",), "due_at_ms"),
    (progress, ("group_id", "queue_id"), "next_offset"),
    (delivery, ("group_id", "message_key"), "visible_at_ms"),
]


@pytest.mark.parametrize(("table", "key", "changes"), KEYS, ids=lambda value: str(value))
def test_the_newest_version_comes_first(store: OpenStore, table: Table, key: tuple[str, ...], changes: str) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one version of a row in its tables")
    topic = store.topic(queues=2, accepts=(MessageType.NORMAL, MessageType.DELAY))
    group = store.group(meets=[topic])
    store.send(topic, 2)
    store.receive(group, topic)
    pend(store, topic, a_delayed(store, 1_000), a_delayed(store, 1_000))
    store.database.begin(conn := store.conn)
    try:
        # Each version gets entries in all indexes, as one does that has no room in its page.
        conn.exec_driver_sql(f"CREATE INDEX of_what_changes ON {table.name} ({changes})")
        rows = conn.execute(table.select()).mappings().all()
        queries = [
            newest(table, table.c[changes], **{name: row[name] for name in key}).compile(
                dialect=POSTGRES, compile_kwargs={"literal_binds": True}
            )
            for row in rows
        ]
        assert len(queries) == 2, "an entry of one may fill the page that has those of the other"
        blocks = []
        for _ in range(VERSIONS):
            conn.exec_driver_sql(f"UPDATE {table.name} SET {changes} = {changes} + 1")
            for query in queries:
                plan = conn.execute(text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}")).scalar_one()[0]["Plan"]
                blocks.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    finally:
        conn.exec_driver_sql("ROLLBACK")
    assert max(blocks) <= 5, "a few pages of the index, and that of the newest version"


def test_conditions_beside_a_place_are_unindexed() -> None:
    """They are checked. To look for the rows by them, Postgres would read old versions."""
    having = [str(each) for table in metadata.tables.values() for index in table.indexes for each in index.expressions]
    assert any(" + 0" in each for each in having), "there are indexes of expressions"
    rows = rows_parameter("rows", "group_id", "queue_id", text=("message_group",))
    conditions = [
        are_newest(Postgres(), delivery, rows, "group_id"),
        is_position(Postgres(), rows),
    ]
    for condition in conditions:
        text_of = str(condition.compile(dialect=POSTGRES))
        assert not any(each in text_of for each in having if " " in each), text_of


def test_a_position_is_found_by_its_key_whatever_postgres_believes(store: OpenStore) -> None:
    """The key is long, and the index of first positions, which has the queue id too, is smaller."""
    if store.database.is_sqlite:
        pytest.skip("SQLite has one version of a row in its tables")
    rows = rows_parameter("rows", "group_id", "queue_id", text=("message_group",))
    found = select(offset_of_position(rows)).select_from(rows)
    query = found.params(rows=encode_rows([(1, 2, LONG_NAME)])).compile(
        dialect=POSTGRES, compile_kwargs={"literal_binds": True}
    )
    store.database.begin(conn := store.conn)
    try:
        conn.exec_driver_sql(
            "INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset)"
            f" SELECT 1, queue_id, '{LONG_NAME}', 1, 1 FROM generate_series(1, 4) queue_id"
        )
        blocks = []
        for number in range(VERSIONS_OF_POSITIONS):
            conn.exec_driver_sql("UPDATE message_group_progress SET next_offset = next_offset + 1")
            if number == VERSIONS_OF_POSITIONS - VERSIONS:
                conn.exec_driver_sql("ANALYZE message_group_progress")
            if number % 50 == 0:
                plan = conn.execute(text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}")).scalar_one()[0]["Plan"]
                blocks.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    finally:
        conn.exec_driver_sql("ROLLBACK")
    assert max(blocks) <= 12, "a few pages of each index"


def test_the_state_of_a_message_is_found_by_its_key_whatever_postgres_believes(store: OpenStore) -> None:
    """All deliveries of the group have ended, so Postgres believes that there is one."""
    if store.database.is_sqlite:
        pytest.skip("SQLite has one version of a row in its tables")
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 1)
    store.receive(group, topic, 1)
    query = str(_STATE_OF)
    (key,) = store.conn.exec_driver_sql("SELECT message_key FROM delivery").scalars()
    names = {"for_group": group.group_id, "for_key": key, "for_queue": queue_of(key), "for_first": key}
    for name, value in names.items():
        query = query.replace(f":{name}", str(value))
    store.database.begin(conn := store.conn)
    try:
        conn.exec_driver_sql(
            "INSERT INTO delivery SELECT d.* FROM delivery e, generate_series(1, 5000) n, "
            " LATERAL (SELECT (jsonb_populate_record(e, jsonb_build_object('message_key', e.message_key + n))).*) d"
        )
        conn.exec_driver_sql(f"DELETE FROM delivery WHERE message_key <> {key}")
        conn.exec_driver_sql("ANALYZE delivery")
        plan = conn.execute(text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}")).scalar_one()[0]["Plan"]
    finally:
        conn.exec_driver_sql("ROLLBACK")
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 60, "a few pages of each index"


def test_the_next_check_is_found_by_its_time_whatever_postgres_believes(store: OpenStore) -> None:
    """All half messages were decided, so Postgres believes that there is one, and another index has fewer levels."""
    if store.database.is_sqlite:
        pytest.skip("SQLite has one version of a row in its tables")
    query = _NEXT_CHECKS.params(topics=encode_rows([(1, HALVES)])).compile(
        dialect=POSTGRES, compile_kwargs={"literal_binds": True}
    )
    store.database.begin(conn := store.conn)
    try:
        conn.exec_driver_sql(
            "INSERT INTO pending (topic_id, message_id, kind, due_at_ms, stored_at_ms, client_id, born_at_ms,"
            " message_type, body_encoding, born_host, body)"
            " SELECT 1, int4send(n::int), 'HALF', n, 1, 'producer', 1, 'TRANSACTION', 'IDENTITY', '', ''"
            f" FROM generate_series(1, {HALVES}) n"
        )
        conn.exec_driver_sql("DELETE FROM pending")
        conn.exec_driver_sql("ANALYZE pending")
        plan = conn.execute(text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}")).scalar_one()[0]["Plan"]
    finally:
        conn.exec_driver_sql("ROLLBACK")
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 8, "a few pages of the index, and one of the table"


# All but a few of the rows have ended, and few of these are READY or open.
_DELIVERIES = """
    INSERT INTO delivery
      (group_id, message_key, topic_id, state, attempt, hold_id, visible_at_ms, holder, client_id)
    SELECT mod(n - 1, 10) + 1, {base} + n, 1, '{state}', 1, 1, {base} + n, 'SIMPLE', ''
    FROM generate_series(1, {rows}) n
"""
_POSITIONS = """
    INSERT INTO message_group_progress
      (group_id, queue_id, message_group, topic_id, next_offset, open_since_ms, subscriber)
    SELECT mod(n - 1, 10) + 1, 1, {base} + n, 1, n, {state}, ''
    FROM generate_series(1, {rows}) n
"""


@pytest.mark.parametrize("live", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("rows", "is_found", "others", "query"),
    [
        (_DELIVERIES, "READY", "INFLIGHT", select(SINCE_MS)),
        (_POSITIONS, f"{ENDED} + n", "NULL", select(OPEN_SINCE_MS)),
    ],
    ids=["READY", "open"],
)
def test_what_is_ready_is_found_by_its_time_whatever_postgres_believes(
    store: OpenStore, rows: str, is_found: str, others: str, query: Select[Any], live: int
) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one version of a row in its tables")
    names = {"group_id": 1, "topic_id": 1, "ready_from": ENDED, "open_from": ENDED}
    used = {name: value for name, value in names.items() if name in query.compile(dialect=POSTGRES).params}
    asked = query.params(**used).compile(dialect=POSTGRES, compile_kwargs={"literal_binds": True})
    store.database.begin(conn := store.conn)
    try:
        for state in (others, is_found):
            conn.exec_driver_sql(rows.format(base=0, state=state.replace(str(ENDED), "0"), rows=ENDED))
            for table in ("delivery", "message_group_progress"):
                conn.exec_driver_sql(f"DELETE FROM {table}")
        conn.exec_driver_sql(rows.format(base=ENDED, state=others, rows=50))
        conn.exec_driver_sql(rows.format(base=2 * ENDED, state=is_found, rows=live))
        conn.exec_driver_sql("ANALYZE delivery, message_group_progress")
        found = conn.execute(text(str(asked))).scalar()
        plan = conn.execute(text(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {asked}")).scalar_one()[0]["Plan"]
    finally:
        conn.exec_driver_sql("ROLLBACK")
    assert found is not None
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 8, "a few pages of the index, and one of the table"
