"""Beside a transaction that stays open, Postgres keeps every version of every row: no call may read them all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popserver.model.topic import MessageType
from tests.support.open_store import OpenStore

BATCH = 32
WARM, ROUNDS = 50, 250  # until then the indexes get their levels


@pytest.fixture
def held(store: OpenStore) -> Iterator[None]:
    """Another transaction, which sees the store as it is now and stays open."""
    if store.database.is_sqlite:
        pytest.skip("SQLite keeps old versions in its log, where no statement reads them")
    with store.database.read() as conn:
        conn.exec_driver_sql("SELECT count(*) FROM message")
        yield


def blocks_read(store: OpenStore) -> int:
    """Blocks of tables and indexes that statements have read until now."""
    store.conn.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    counters = "heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read"
    return int(store.one_value(f"SELECT sum({counters}) FROM pg_statio_user_tables"))


@pytest.mark.parametrize("queues", [1, 4])
@pytest.mark.usefixtures("held")
def test_a_call_costs_as_much_after_thousands_of_changes(store: OpenStore, queues: int) -> None:
    topic = store.topic(queues=queues, accepts=(MessageType.NORMAL,))
    group = store.group(meets=[topic])

    def once(number: int) -> int:
        before = blocks_read(store)
        store.send(topic, BATCH, rotation=number)
        held = store.receive(group, topic, BATCH, rotation=number)
        assert store.ack(group, *held) == [None] * BATCH
        return blocks_read(store) - before

    costs = [once(number) for number in range(ROUNDS)]
    assert sum(costs[-5:]) < 1.2 * sum(costs[WARM : WARM + 5]), costs[:: ROUNDS // 10]
