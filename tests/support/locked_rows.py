"""Rows that another server's open transaction has locked, on Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.open_store import OpenStore


@contextmanager
def locked(other: OpenStore, statement: str) -> Iterator[None]:
    """The rows of a SELECT … FOR UPDATE are locked in this context."""
    other.database.begin(other.conn)
    assert other.conn.exec_driver_sql(statement).all()
    try:
        yield
    finally:
        other.conn.exec_driver_sql("ROLLBACK")


def queues_of(store: OpenStore, topic: str, numbers: str = "0") -> str:
    """A statement that locks queues of a topic, by their numbers: "0, 1"."""
    rows = store.rows(
        f"SELECT queue_id FROM queue JOIN topic USING (topic_id) WHERE name = '{topic}' AND number IN ({numbers})"
    )
    return f"SELECT 1 FROM queue WHERE queue_id IN ({', '.join(str(row[0]) for row in rows)}) FOR UPDATE"
