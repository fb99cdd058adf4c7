"""What is asked of members and locks finds its rows by an index, however many other groups have them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from popserver.catalog import groups
from popserver.members import locks
from popserver.members import sql as members_sql
from popserver.members.locks import Lock, Unlock
from popserver.members.sql import JoinGroup, LeaveGroup
from popserver.model.group import Group, Mode, Model
from popserver.model.topic import Topic
from tests.support.builders import GROUP
from tests.support.open_store import OpenStore
from tests.support.plans import Plans, whole_reads

OTHERS = 20_000
NUMBERS = f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {OTHERS})"

ACTS: dict[str, Callable[[OpenStore, Group, Topic], object]] = {
    "join": lambda store, group, _: store.one(members_sql.attend, JoinGroup(group, "new", "a", Model.CLUSTERING, ())),
    "want something else": lambda store, group, _: store.one(
        members_sql.attend, JoinGroup(group, "new", "b", Model.BROADCASTING, ())
    ),
    "part": lambda store, group, _: store.one(members_sql.attend, LeaveGroup(group, "new", "b")),
    "list": lambda store, _group, _topic: members_sql.members_of(store.conn, GROUP),
    "number": lambda store, _group, _topic: members_sql.group_view_of(store.conn, GROUP),
    "lock": lambda store, group, topic: store.one(locks.lock, Lock(group, "c1", topic.queues)),
    "lock in vain": lambda store, group, topic: store.one(locks.lock, Lock(group, "c2", topic.queues)),
    "unlock": lambda store, group, topic: store.one(locks.unlock, Unlock(group, "c1", topic.queues)),
}


@pytest.fixture
def filled(store: OpenStore) -> tuple[Group, Topic]:
    """A group of mode PULL and a topic of eight queues; other groups with members, locks and progress, and topics."""
    topic, group = store.topic(queues=8), store.group()
    store.one(groups.set_group_mode, groups.SetGroupMode(group, Mode.PULL))
    for number in range(200):
        store.topic(f"t{number}", queues=4)
        store.group(f"g{number}")
    columns = "group_id, client_id, server_id, model, subscription, joined_at_ms"
    values = {
        f"member ({columns})": "'c' || n, 'a', 'CLUSTERING', '[]', 1",
        "queue_lock (group_id, queue_id, client_id, locked_until_ms)": "n, 'c1', 1",
        "progress (group_id, queue_id, next_offset)": "n, 0",
    }
    for table, rest in values.items():
        store.conn.exec_driver_sql(
            f"{NUMBERS} INSERT INTO {table} SELECT {group.group_id} + 1000 + (n & 31), {rest} FROM numbers"
        )
    if not store.database.is_sqlite:
        store.conn.exec_driver_sql("ANALYZE")
    return group, topic


def test_every_statement_finds_its_rows_by_an_index(store: OpenStore, filled: tuple[Group, Topic]) -> None:
    for name, act in ACTS.items():
        plans = Plans(store)
        with plans.caught():
            act(store, *filled)
        explained = plans.explained()
        assert explained, name
        for statement, plan in explained.items():
            assert whole_reads(plan) == [], f"{name}\n{statement}\n{plan}"
