"""Postgres plans a hot statement once, and not for each request: planning costs several times as much as its work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popserver.database.database import Database
from popserver.model.topic import MessageType
from tests.support.builders import a_message, in_order
from tests.support.emptied_database import emptied
from tests.support.open_store import MINUTE, SECOND, OpenStore

TIMES = 30
# psycopg prepares a statement at its sixth execution. Postgres makes a plan for the values of the next five executions.
# Then it keeps one plan for all values, or continues to plan each execution.
PLANNED_MAX = 5


@pytest.fixture
def postgres_store(postgres_database: Database) -> Iterator[OpenStore]:
    with emptied(postgres_database) as store:
        yield store


@pytest.mark.parametrize("count", [1, 2, 5, 32])
def test_of_each_hot_statement(postgres_store: OpenStore, count: int) -> None:
    store = postgres_store
    both = store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))
    group = store.group(meets=[both])
    for number in range(TIMES):
        store.send(both, [a_message() for _ in range(count)])
        store.send(both, [each for of in range(count) for each in in_order(f"g{number}-{of}", 1)])
        store.ack(group, *store.receive(group, both, count))
        # What is left is held, ends, and is READY again.
        store.receive(group, both, count, invisible_ms=SECOND)
        store.now_ms += MINUTE
        store.end_due()
    kept = "SELECT statement, custom_plans, generic_plans FROM pg_prepared_statements"
    rows = store.conn.exec_driver_sql(kept).all()
    for hot in ("UPDATE queue", "DELETE FROM delivery"):
        assert any(row.statement.startswith(hot) for row in rows), f"{hot} … was not prepared"
    planned = [row for row in rows if row.custom_plans > PLANNED_MAX]
    assert not planned, "\n".join(f"{row.custom_plans}, {row.generic_plans}: {row.statement[:300]}" for row in planned)
