"""The statements of message groups with 100,000 of them on a topic: by their indexes, and no dearer than with a few."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from popserver.database.check import check_integrity
from popserver.database.database import Database
from popserver.database.schema import message
from popserver.filters import sql as filters_sql
from popserver.model.group import Group
from popserver.model.message import Delivery, Message
from popserver.model.topic import MessageType, Topic, message_key
from tests.support.builders import in_order
from tests.support.emptied_database import emptied
from tests.support.open_store import HOUR, SECOND, OpenStore, open_store
from tests.support.plans import POSTGRES, SQLITE, Plans, blocks_read, whole_reads

MANY = 100_000
FEW = 1_000
# So many messages stand behind one that is held.
BEHIND_ONE = 20_000

# What is done to a run of three messages, in a store full of others.
Act = Callable[[OpenStore, Group, Topic, list[Delivery]], Any]
ACTS: dict[str, tuple[Act, set[str]]] = {
    "receive new ones": (
        lambda store, group, topic, _: (store.send(topic, three("new")), store.receive(group, topic)),
        {"queue_number", "progress_pk", "delivery_of_group", "behind_pk", "behind_open", "message_pk"},
    ),
    "receive new ones by a filter": (
        lambda store, group, topic, _: (
            store.send(topic, three("filtered")),
            store.receive(group, topic, wanted=filters_sql.parse("a = 'b'")),
        ),
        {"progress_pk", "delivery_of_group", "behind_pk", "behind_open"},
    ),
    "pass over locked ones": (
        lambda store, group, topic, _: (store.send(topic, three("run")), store.receive(group, topic)),
        {"delivery_of_group", "behind_pk"},
    ),
    "ack a whole run": (lambda store, group, _, run: store.ack(group, *run), {"delivery_pk", "delivery_of_group"}),
    "ack a part": (
        lambda store, group, _, run: store.ack(group, run[1]),
        {"delivery_pk", "delivery_of_group"},
    ),
    "go on behind a run": (
        lambda store, group, topic, run: (
            store.send(topic, three("run")),
            store.receive(group, topic),
            store.ack(group, *run),
            store.receive(group, topic),
        ),
        {"behind_open", "message_of_group"},
    ),
    "receive a run again": (
        lambda store, group, topic, run: (
            [store.change(group, each, 0, give_back=True) for each in run],
            store.receive(group, topic),
        ),
        {"behind_open", "delivery_of_group", "delivery_pk", "message_pk"},
    ),
    "end what is due": (
        lambda store, _group, _topic, _run: store.end_due(after_ms=30 * SECOND),
        {"delivery_due", "delivery_of_group"},
    ),
    "find nothing": (lambda store, group, topic, _: store.receive(group, topic), {"behind_open", "delivery_ready"}),
}


@pytest.mark.timeout(900)
def test_every_statement_finds_its_rows_by_an_index(store: OpenStore) -> None:
    topic, group = full_of_groups(store, MANY)
    names = SQLITE if store.database.is_sqlite else POSTGRES
    for name, (act, indexes) in ACTS.items():
        run = a_run(store, group, topic)
        plans = Plans(store)
        with plans.caught():
            act(store, group, topic, run)
        explained = plans.explained()
        for statement, plan in explained.items():
            assert whole_reads(plan) == [], f"{name}\n{statement}\n{plan}"
        everything = "\n".join(explained.values())
        for index in indexes:
            assert re.search(names[index], everything), f"{name} does not use {index}:\n{everything}"
        tidy_up(store, group, topic)


def test_a_check_of_the_store_finds_the_rows_of_each_message_group_by_an_index(postgres_database: Database) -> None:
    """Counted in blocks: 7 for each message, and 76 where each message group reads the deliveries of all others."""
    with emptied(postgres_database) as store:
        full_of_groups(store, 10 * FEW)
        before = blocks_read(store)
        check_integrity(store.conn)
        assert blocks_read(store) - before <= 20 * (10 * FEW + BEHIND_ONE)


@pytest.mark.row("K6")
@pytest.mark.timeout(900)
def test_many_message_groups_cost_no_more_than_few() -> None:
    """Counted in steps of SQLite's machine, which are the same wherever and whenever it runs."""
    costs = {}
    for count in (FEW, MANY):
        with open_store("sqlite://") as store:
            topic, group = full_of_groups(store, count)
            costs[count] = {name: _steps(store, group, topic, act) for name, (act, _) in ACTS.items()}
    for name, few in costs[FEW].items():
        assert costs[MANY][name] <= 1.2 * few, f"{name}: {few} steps with {FEW} groups, {costs[MANY][name]} with {MANY}"


@pytest.mark.row("K6")
def test_many_open_message_groups_cost_no_more_than_few() -> None:
    costs = {}
    for count in (FEW, MANY):
        with open_store("sqlite://") as store:
            topic, group = full_of_groups(store, count)
            # Nothing of them is held any more.
            store.conn.exec_driver_sql("DELETE FROM delivery")
            store.conn.exec_driver_sql(
                "UPDATE message_group_progress SET open_since_ms = 1, next_offset = substr(message_group, 2) - 1"
            )
            costs[count] = _count(store, lambda: store.receive(group, topic))  # noqa: B023
            assert len(store.receive(group, topic)) == 32
    assert costs[MANY] <= 1.2 * costs[FEW], costs


def full_of_groups(store: OpenStore, count: int) -> tuple[Topic, Group]:
    """So many message groups, each with a held message; behind that of the first one there are very many more."""
    topic = store.topic(accepts=(MessageType.FIFO,))
    group = store.group(meets=[topic])
    store.send(topic, in_order("g1"))
    store.receive(group, topic, invisible_ms=99 * HOUR)
    columns = [column.name for column in message.columns]
    of_each = {"message_key": "m.message_key + n", "message_id": _an_id(store), "message_group": _group_of(count)}
    copied = ", ".join(of_each.get(name, f"m.{name}") for name in columns)
    last = count + BEHIND_ONE - 1
    store.conn.exec_driver_sql(
        f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {last})"
        f" INSERT INTO message ({', '.join(columns)}) SELECT {copied} FROM numbers CROSS JOIN message m"
    )
    end = message_key(topic.queues[0].queue_id, count)
    held = "group_id, topic_id, state, attempt, hold_id, visible_at_ms, holder, client_id"
    store.conn.exec_driver_sql(
        f"INSERT INTO delivery ({held}, message_key, message_group)"
        f" SELECT {', '.join(f'd.{name}' for name in held.split(', '))}, m.message_key, m.message_group"
        f" FROM message m CROSS JOIN delivery d WHERE m.message_key < {end} AND m.message_key <> d.message_key"
    )
    store.conn.exec_driver_sql(f"UPDATE queue SET next_offset = {count + BEHIND_ONE}")
    store.conn.exec_driver_sql(f"UPDATE progress SET next_offset = {count + BEHIND_ONE}")
    store.conn.exec_driver_sql(
        "INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset)"
        f" SELECT {group.group_id}, {topic.queues[0].queue_id}, m.message_group, {topic.topic_id}, {count}"
        f" FROM message m WHERE m.message_key < {end}"
    )
    if not store.database.is_sqlite:
        store.conn.exec_driver_sql("ANALYZE")
    return topic, group


def a_run(store: OpenStore, group: Group, topic: Topic) -> list[Delivery]:
    store.send(topic, three("run"))
    run = store.receive(group, topic, invisible_ms=30 * SECOND)
    assert len(run) == 3
    return run


def three(message_group: str) -> list[Message]:
    return in_order(message_group, 3, properties={"a": "b"})


def tidy_up(store: OpenStore, group: Group, topic: Topic) -> None:
    """Back to what it was, but for what is finished."""
    store.end_due(after_ms=30 * SECOND)
    while received := store.receive(group, topic):
        store.ack(group, *received)


def _steps(store: OpenStore, group: Group, topic: Topic, act: Act) -> int:
    run = a_run(store, group, topic)
    steps = _count(store, lambda: act(store, group, topic, run))
    tidy_up(store, group, topic)
    return steps


def _count(store: OpenStore, act: Callable[[], Any]) -> int:
    steps = 0

    def one_more() -> int:
        nonlocal steps
        steps += 1
        return 0

    driver: Any = store.conn.connection.driver_connection
    driver.set_progress_handler(one_more, 1)
    act()
    driver.set_progress_handler(None, 1)
    return steps


def _an_id(store: OpenStore) -> str:
    return "CAST('x' || n AS BLOB)" if store.database.is_sqlite else "convert_to('x' || n, 'UTF8')"


def _group_of(count: int) -> str:
    """The number-th message is the first of its group, or one of those behind the first group's."""
    return f"CASE WHEN n < {count} THEN 'g' || (n + 1) ELSE 'g1' END"
