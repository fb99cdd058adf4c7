"""Statements for many tables: rows are removed in steps, and times are made earlier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from sqlalchemy import delete, insert, select

from popserver.database.schema import idempotency, queue_lock
from popserver.engine.upkeep import remove_step, sooner
from tests.support.open_store import OpenStore

NOW_MS = 10_000


class Rows:
    """Rows of a few tables, which are removed afterwards."""

    def __init__(self, store: OpenStore) -> None:
        self.store = store

    def fill(self, table: Any, rows: Iterable[dict[str, Any]]) -> None:
        self.run(insert(table), [*rows])

    def run(self, statement: Any, *more: Any) -> None:
        self.store.database.begin(self.store.conn)
        self.store.conn.execute(statement, *more)
        self.store.conn.exec_driver_sql("COMMIT")

    def remove_step(self, key: Any, *conditions: Any) -> int:
        self.store.database.begin(self.store.conn)
        removed = remove_step(self.store.conn, key, *conditions)
        self.store.conn.exec_driver_sql("COMMIT")
        return removed

    def values(self, column: Any) -> list[Any]:
        return sorted(self.store.conn.execute(select(column)).scalars())


@pytest.fixture
def rows(store: OpenStore) -> Iterator[Rows]:
    filled = Rows(store)
    yield filled
    for table in (queue_lock, idempotency):
        filled.run(delete(table))


def locks(group_id: int, queue_ids: Iterable[int]) -> list[dict[str, Any]]:
    return [
        {"group_id": group_id, "queue_id": each, "client_id": "c1", "locked_until_ms": NOW_MS + each}
        for each in queue_ids
    ]


def keys(topic_id: int, names: Iterable[str]) -> list[dict[str, Any]]:
    shared = {"topic_id": topic_id, "message_id": b"", "expires_at_ms": 0}
    return [{**shared, "idempotency_key": each} for each in names]


class TestAStep:
    def test_removes_the_rows_that_meet_all_conditions(self, rows: Rows) -> None:
        rows.fill(queue_lock, [*locks(1, [1, 2, 3]), *locks(2, [1, 4, 5])])
        queue_id, group_id = queue_lock.c.queue_id, queue_lock.c.group_id
        assert rows.remove_step(queue_id, group_id == 2, queue_id <= 4) == 2
        assert rows.values(queue_id) == [1, 2, 3, 5]
        assert rows.remove_step(queue_id, group_id == 2) == 1
        assert rows.remove_step(queue_id, group_id == 2) == 0
        assert rows.values(queue_id) == [1, 2, 3]

    def test_removes_rows_with_names(self, rows: Rows) -> None:
        rows.fill(idempotency, [*keys(1, ["a", "b"]), *keys(2, ["a", "c"])])
        name = idempotency.c.idempotency_key
        assert rows.remove_step(name, idempotency.c.topic_id == 1) == 2
        assert rows.values(name) == ["a", "c"]
        assert rows.remove_step(name, idempotency.c.topic_id == 1) == 0

    def test_removes_a_thousand_rows_at_most(self, rows: Rows) -> None:
        rows.fill(queue_lock, [*locks(1, range(1_001)), *locks(2, [7])])
        removed = [rows.remove_step(queue_lock.c.queue_id, queue_lock.c.group_id == 1) for _ in range(3)]
        assert removed == [1_000, 1, 0]
        assert rows.values(queue_lock.c.queue_id) == [7]


class TestSooner:
    def sooner(self, rows: Rows, by_ms: int, *only: Any, ready: Any = None) -> list[int]:
        """The times that rows have in the end, in ms from now."""
        rows.fill(queue_lock, locks(1, [-5, 0, 1, 300, 301, 302]))
        statement = sooner(queue_lock.c.locked_until_ms, *only, ready=ready)
        rows.run(statement, {"now_ms": NOW_MS, "by_ms": by_ms})
        return [each - NOW_MS for each in rows.values(queue_lock.c.locked_until_ms)]

    def test_times_are_moved_but_not_before_now(self, rows: Rows) -> None:
        assert self.sooner(rows, 300) == [-5, 0, 0, 0, 1, 2]

    def test_only_some_rows_are_moved(self, rows: Rows) -> None:
        assert self.sooner(rows, 300, queue_lock.c.queue_id > 300) == [-5, 0, 1, 1, 2, 300]

    def test_those_that_are_ready_are_due_now_in_any_case(self, rows: Rows) -> None:
        ready = queue_lock.c.queue_id.in_([-5, 302])
        assert self.sooner(rows, 300, ready=ready) == [-5, 0, 0, 0, 0, 1]
