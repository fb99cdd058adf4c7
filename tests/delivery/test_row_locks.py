"""Queries that lock deliveries, on Postgres: they lock what they return, pass over what others have locked, and never
wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection

from popserver.database.rows import encode_rows
from popserver.delivery import clear, delivered, deliveries, due, holds, ready
from popserver.delivery.clear import GroupInQueue
from popserver.delivery.deliveries import DeliveryRow, NewDelivery
from popserver.delivery.ready import RedrivenRow
from popserver.engine.transaction import Transaction
from popserver.model.group import LiteModel
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import MessageType, message_key
from tests.support.lite_broker import lite_messages, subscribe
from tests.support.open_store import HOUR, START_MS, OpenStore

pytestmark = pytest.mark.timeout(14)  # a statement that waits for a lock has no end

GROUP, TOPIC, HOLD = 7, 3, 11
KEYS = [1, 2, 3, 4]
LOCKED = 3  # by another transaction
RECEIPTS = [Receipt(GROUP, key, HOLD, 0) for key in KEYS]
READY_NAMES = {"group_id": GROUP, "topic_id": TOPIC, "ready_from": 0, "limit": 9}
Query = Callable[[Transaction], Any]


def keys(rows: Any) -> list[int]:
    return sorted(row if isinstance(row, int) else row.message_key for row in rows)


def due_rows() -> list[DeliveryRow]:
    return [DeliveryRow(GROUP, key, TOPIC, "INFLIGHT", 1, HOLD, START_MS - 1, "SIMPLE", "c1", None) for key in KEYS]


# In which state the rows are, since or until when, and the query.
QUERIES: dict[str, tuple[State, int, Query]] = {
    "lock": (
        State.INFLIGHT,
        HOUR,
        lambda tx: keys(row for each in RECEIPTS if (row := holds.lock(tx, each)) is not None),
    ),
    "lock_present": (State.INFLIGHT, HOUR, lambda tx: keys(holds.lock_present(tx.conn, RECEIPTS))),
    "lock_granted": (State.INFLIGHT, HOUR, lambda tx: keys(holds.lock_granted(tx, RECEIPTS))),
    "by_bulk_attempt": (
        State.INFLIGHT,
        HOUR,
        lambda tx: keys(holds.by_bulk_attempt(tx.conn, GROUP, TOPIC, "a1", START_MS, locks=True)),
    ),
    "delivered.lock": (State.INFLIGHT, HOUR, lambda tx: keys(delivered.lock(tx, GROUP, KEYS))),
    "lock_ready_among": (State.READY, 0, lambda tx: keys(delivered.lock_ready_among(tx, GROUP, KEYS))),
    "due.lock": (State.INFLIGHT, -1, lambda tx: keys(due.lock(tx, due_rows()))),
    "ready.lock": (State.READY, 0, lambda tx: keys(ready.lock(tx.conn, READY_NAMES))),
    "lock_redriven": (State.READY, 0, lambda tx: keys(ready.lock_redriven(tx.conn, READY_NAMES, chooses=False))),
}
# These change the free rows, and say or show which.
CHANGES: dict[str, tuple[State, int, Holder, Query]] = {
    "take_back": (
        State.INFLIGHT,
        9,
        Holder.ORPHAN,
        lambda tx: keys(deliveries.take_back(tx, (each[:3] for each in RECEIPTS), Holder.PUSH, "c1", START_MS + HOUR)),
    ),
    "commit": (
        State.INFLIGHT,
        HOUR,
        Holder.SIMPLE,
        lambda tx: deliveries.commit(tx, GROUP, [(key, HOLD) for key in KEYS]) == 3 and changed(tx),
    ),
    "commit_returning": (
        State.INFLIGHT,
        HOUR,
        Holder.SIMPLE,
        lambda tx: keys(deliveries.commit_returning(tx, GROUP, [(key, HOLD) for key in KEYS])),
    ),
    "abandon": (
        State.INFLIGHT,
        HOUR,
        Holder.PUSH,
        lambda tx: not deliveries.abandon(tx.conn, (each[:3] for each in RECEIPTS), START_MS + 1) and changed(tx),
    ),
    "abandon_client": (
        State.INFLIGHT,
        HOUR,
        Holder.PUSH,
        lambda tx: not deliveries.abandon_client(tx.conn, "c1", START_MS + 1) and changed(tx),
    ),
    "extend_client": (
        State.INFLIGHT,
        9,
        Holder.ORPHAN,
        lambda tx: deliveries.extend_client(tx, "c1", START_MS + HOUR) or changed(tx),
    ),
    "end_hold": (
        State.INFLIGHT,
        HOUR,
        Holder.PUSH,
        lambda tx: [key for key in KEYS if deliveries.end_hold(tx, (GROUP, key)) is not None],
    ),
    "forget_group": (
        State.READY,
        0,
        Holder.PUSH,
        lambda tx: deliveries.forget_group(tx.conn, GROUP) == 3 and changed(tx),
    ),
}
BEFORE: dict[str, dict[int, Any]] = {}


def rows(conn: Connection) -> dict[int, Any]:
    found = conn.exec_driver_sql("SELECT message_key, state, hold_id, visible_at_ms, holder FROM delivery")
    return {row[0]: tuple(row) for row in found}


def changed(tx: Transaction) -> list[int]:
    now = rows(tx.conn)
    return [key for key, row in BEFORE["rows"].items() if now.get(key) != row]


@pytest.fixture
def others(store: OpenStore) -> Iterator[tuple[Connection, Connection]]:
    """Two other connections; the first has locked one row of those that `fill` makes."""
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    with store.database.connect_writer() as one, store.database.connect_writer() as other:
        yield one, other
        for each in (one, other, store.conn):
            each.exec_driver_sql("ROLLBACK")
    store.conn.exec_driver_sql("DELETE FROM delivery")


def fill(store: OpenStore, state: State, until_ms: int, holder: Holder, locker: Connection) -> Transaction:
    """A transaction beside one that has locked a row."""
    made = [
        NewDelivery(GROUP, key, TOPIC, state, 1, HOLD, START_MS + until_ms, holder, "c1", None, "a1") for key in KEYS
    ]
    deliveries.add(Transaction.at(store.conn, START_MS), made)
    BEFORE["rows"] = dict(sorted(rows(store.conn).items()))
    store.database.begin(locker)
    locker.exec_driver_sql(f"SELECT 1 FROM delivery WHERE message_key = {LOCKED} FOR UPDATE")
    store.database.begin(store.conn)
    return Transaction.at(store.conn, START_MS)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_locks_what_it_returns(store: OpenStore, others: tuple[Connection, Connection], name: str) -> None:
    state, until_ms, query = QUERIES[name]
    tx = fill(store, state, until_ms, Holder.SIMPLE, others[0])
    free = [key for key in KEYS if key != LOCKED]
    assert query(tx) == free
    store.database.begin(others[1])
    left = others[1].exec_driver_sql("SELECT message_key FROM delivery FOR UPDATE SKIP LOCKED").all()
    assert left == [], "all are locked now"


def test_a_query_without_locks_finds_what_others_have_locked(
    store: OpenStore, others: tuple[Connection, Connection]
) -> None:
    tx = fill(store, State.INFLIGHT, HOUR, Holder.SIMPLE, others[0])
    assert holds.present(tx.conn, RECEIPTS) == {*KEYS}
    assert keys(holds.by_bulk_attempt(tx.conn, GROUP, TOPIC, "a1", START_MS)) == KEYS
    store.database.begin(others[1])
    left = others[1].exec_driver_sql("SELECT message_key FROM delivery FOR UPDATE SKIP LOCKED").all()
    assert keys(left) == [key for key in KEYS if key != LOCKED]


def test_of_redriven_messages_only_the_deliveries_are_locked(
    store: OpenStore, others: tuple[Connection, Connection]
) -> None:
    topic = store.topic(accepts=(MessageType.LITE,))
    group = store.group(meets=[topic], lite=LiteModel.SHARED)
    subscribe(store, group, topic, "c1", "a")
    store.send(topic, lite_messages("a", 1, topic.name))
    key = message_key(topic.queues[0].queue_id, 0)
    redriven = NewDelivery(group.group_id, key, topic.topic_id, State.READY, 1, 0, START_MS, Holder.PUSH, "")
    deliveries.add(Transaction.at(store.conn, START_MS), [redriven])
    names = {"group_id": group.group_id, "topic_id": topic.topic_id, "ready_from": 0, "limit": 9}
    for each in (store.conn, *others):
        store.database.begin(each)
    for table in ("lite_subscription", "message"):
        assert others[0].exec_driver_sql(f"SELECT 1 FROM {table} FOR UPDATE").all()
    found = ready.lock_redriven(store.conn, names | {"subscribers": encode_rows([("c1",)])}, chooses=True)
    assert found == [RedrivenRow(key, 1, "c1")]
    assert others[1].exec_driver_sql("SELECT 1 FROM delivery FOR UPDATE SKIP LOCKED").all() == []


def test_a_row_that_is_not_held_stays_free(store: OpenStore, others: tuple[Connection, Connection]) -> None:
    tx = fill(store, State.READY, 0, Holder.SIMPLE, others[0])
    assert deliveries.end_hold(tx, (GROUP, 1)) is None
    store.database.begin(others[1])
    assert others[1].exec_driver_sql("SELECT 1 FROM delivery WHERE message_key = 1 FOR UPDATE SKIP LOCKED").all()


@pytest.mark.parametrize("name", CHANGES)
def test_a_statement_changes_what_is_free(store: OpenStore, others: tuple[Connection, Connection], name: str) -> None:
    state, until_ms, holder, change = CHANGES[name]
    tx = fill(store, state, until_ms, holder, others[0])
    assert change(tx) == [key for key in KEYS if key != LOCKED]
    assert rows(tx.conn)[LOCKED] == BEFORE["rows"][LOCKED]


def test_whether_some_were_passed_over(store: OpenStore, others: tuple[Connection, Connection]) -> None:
    tx = fill(store, State.INFLIGHT, HOUR, Holder.SIMPLE, others[0])
    assert holds.has_skipped_granted(tx, RECEIPTS)
    assert not holds.has_skipped_granted(tx, [each._replace(hold_id=1) for each in RECEIPTS])
    assert delivered.first_needed(tx, GROUP, 1, 9) == 1
    tx.conn.exec_driver_sql(f"UPDATE delivery SET state = 'READY' WHERE message_key <> {LOCKED}")
    assert delivered.first_needed(tx, GROUP, 1, 9) == LOCKED


def test_the_ready_ones_of_a_range_are_locked(store: OpenStore, others: tuple[Connection, Connection]) -> None:
    tx = fill(store, State.READY, 0, Holder.SIMPLE, others[0])
    assert delivered.first_needed(tx, GROUP, 2, 4) == LOCKED
    store.database.begin(others[1])
    left = others[1].exec_driver_sql("SELECT message_key FROM delivery FOR UPDATE SKIP LOCKED").scalars().all()
    assert sorted(left) == [1, 4]


@pytest.mark.parametrize(("first", "end", "is_free"), [(1, 3, True), (1, 4, False), (3, 4, False), (4, 9, True)])
def test_whether_a_range_is_free(
    store: OpenStore, others: tuple[Connection, Connection], first: int, end: int, is_free: bool
) -> None:
    tx = fill(store, State.INFLIGHT, HOUR, Holder.SIMPLE, others[0])
    assert clear.lock(tx, GroupInQueue(GROUP, 0, first, end)) is is_free


def test_all_that_is_left_to_forget_is_locked(store: OpenStore, others: tuple[Connection, Connection]) -> None:
    tx = fill(store, State.READY, 0, Holder.SIMPLE, others[0])
    forget: list[Callable[[], int | None]] = [
        lambda: deliveries.forget_group(tx.conn, GROUP),
        lambda: deliveries.forget_topic(tx.conn, TOPIC),
        lambda: deliveries.forget_messages(tx.conn, 1, 9),
    ]
    assert forget[0]() == 3
    assert [each() for each in forget] == [None] * 3
