"""Postgres plans a hot statement once, and not for each request: planning costs several times as much as its work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popserver.database.database import Database
from popserver.database.schema import metadata
from popserver.model.topic import MessageType
from tests.support.builders import a_message, in_order
from tests.support.emptied_database import a_database, emptied
from tests.support.open_store import MINUTE, SECOND, OpenStore
from tests.support.postgres import PostgresServer

TIMES = 30
# psycopg prepares a statement at its sixth execution. Postgres makes a plan for the values of the next five executions.
# Then it keeps one plan for all values, or continues to plan each execution.
PLANNED_MAX = 5


# Postgres chooses by its statistics of the tables, so autovacuum writes none meanwhile, and other tests left none.
WITHOUT_AUTOVACUUM = "ALTER TABLE {} SET (autovacuum_enabled = false)"


@pytest.fixture
def own_database(postgres: PostgresServer) -> Iterator[Database]:
    with a_database(postgres) as database:
        with database.connect_writer() as conn:
            for table in metadata.tables:
                conn.exec_driver_sql(WITHOUT_AUTOVACUUM.format(table))
        yield database


@pytest.mark.parametrize("count", [1, 2, 5, 32])
def test_of_each_hot_statement(own_database: Database, count: int) -> None:
    with emptied(own_database) as store:
        work(store, count)
        statements = planned_each_time(store)
    assert not statements, "\n".join(statements)


@pytest.mark.parametrize("count", [1, 32])
def test_of_each_hot_write_with_statistics(own_database: Database, count: int) -> None:
    with emptied(own_database) as store:
        work(store, count)
        store.conn.exec_driver_sql("ANALYZE")
    own_database.writing.dispose()  # the next connection has no plans
    with emptied(own_database) as store:
        work(store, count)
        # With statistics some searches gain by the values, so Postgres rightly plans them for each.
        statements = [each for each in planned_each_time(store) if not each.startswith(("SELECT", "WITH"))]
    assert not statements, "\n".join(statements)


def work(store: OpenStore, count: int) -> None:
    """Send, receive, ack, let holds end, each of that many messages."""
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


def planned_each_time(store: OpenStore) -> list[str]:
    """The prepared statements that Postgres continues to plan."""
    kept = "SELECT statement, custom_plans, generic_plans FROM pg_prepared_statements"
    rows = store.conn.exec_driver_sql(kept).all()
    for hot in ("UPDATE queue", "DELETE FROM delivery"):
        assert any(row.statement.startswith(hot) for row in rows), f"{hot} … was not prepared"
    planned = [row for row in rows if row.custom_plans > PLANNED_MAX]
    return [f"{row.statement[:300]} ({row.custom_plans} own plans, {row.generic_plans} kept)" for row in planned]
