"""The statements of lite topics with many of them: by their indexes, and no dearer than with a few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from popserver.lite import subscriptions
from popserver.model.group import Group, LiteModel
from popserver.model.message import Delivery
from popserver.model.topic import MessageType, Topic
from popserver.receiving.batch import Received
from popserver.receiving.receive import receive
from tests.support.lite_broker import lite_messages
from tests.support.open_store import HOUR, SECOND, OpenStore, a_receive, open_store
from tests.support.plans import Plans, whole_reads

MANY = 20_000
FEW = 200
ASKED = 16

# What is done in a store full of others; `held` are messages of lite topics of the client.
Act = Callable[[OpenStore, Group, Topic, list[Delivery]], Any]
ACTS: dict[str, Act] = {
    "send": lambda store, _group, topic, _: sent(store, topic, "mine"),
    "receive new ones": lambda store, group, topic, _: (sent(store, topic, "mine"), got(store, group, topic, "me")),
    "let messages of another client wait": lambda store, group, topic, _: (
        sent(store, topic, "other"),
        got(store, group, topic, "me"),
    ),
    "receive those that waited": lambda store, group, topic, _: (
        sent(store, topic, "other"),
        got(store, group, topic, "me"),
        got(store, group, topic, "another"),
    ),
    "receive for several clients": lambda store, group, topic, _: (
        sent(store, topic, "mine"),
        sent(store, topic, "other"),
        got(store, group, topic, "me", "another"),
    ),
    "ack": lambda store, group, _topic, held: store.ack(group, *held),
    "go on after an ack": lambda store, group, topic, held: (
        sent(store, topic, "mine"),
        got(store, group, topic, "me"),
        store.ack(group, *held),
        got(store, group, topic, "me"),
    ),
    "receive again": lambda store, group, topic, held: (
        [store.change(group, each, 0, give_back=True) for each in held],
        got(store, group, topic, "me"),
    ),
    "find nothing": lambda store, group, topic, _: got(store, group, topic, "me"),
}


@pytest.mark.timeout(600)
def test_every_statement_finds_its_rows_by_an_index(store: OpenStore) -> None:
    topic, group = full_of_lite_topics(store, MANY)
    for name, act in ACTS.items():
        held = some_held(store, group, topic)
        plans = Plans(store)
        with plans.caught():
            act(store, group, topic, held)
        for statement, plan in plans.explained().items():
            assert whole_reads(plan) == [], f"{name}\n{statement}\n{plan}"
        tidy_up(store, group, topic)


@pytest.mark.timeout(600)
def test_many_lite_topics_cost_no_more_than_few() -> None:
    """Counted in steps of SQLite's machine, which are the same wherever and whenever it runs."""
    costs: dict[int, dict[str, int]] = {}
    for count in (FEW, MANY):
        with open_store("sqlite://") as store:
            topic, group = full_of_lite_topics(store, count)
            costs[count] = {}
            for name, act in ACTS.items():
                held = some_held(store, group, topic)
                costs[count][name] = steps(store, lambda: act(store, group, topic, held))  # noqa: B023
                tidy_up(store, group, topic)
    for name, few in costs[FEW].items():
        assert costs[MANY][name] <= 1.2 * few, f"{name}: {few} steps with {FEW}, {costs[MANY][name]} with {MANY}"


def full_of_lite_topics(store: OpenStore, count: int) -> tuple[Topic, Group]:
    """So many lite topics of other clients, half with waiting and half with held messages."""
    topic = store.topic(accepts=(MessageType.LITE,))
    group = store.group(lite=LiteModel.SHARED, meets=[topic])
    share = min(count, 2_000)
    for number in range(0, count, share):
        names = [f"t{each}" for each in range(number, number + share)]
        store.send(topic, [message for each in names for message in lite_messages(each)])
        client_id = f"c{number}"
        subscribe(store, group, topic, client_id, names)
        for _ in range(0, share // 2, 32):
            got(store, group, topic, client_id, batch_size=32, invisible_ms=99 * HOUR)
    subscribe(store, group, topic, "me", names_of("mine"))
    subscribe(store, group, topic, "another", names_of("other"))
    tidy_up(store, group, topic)
    if not store.database.is_sqlite:
        store.conn.exec_driver_sql("ANALYZE")
    return topic, group


def names_of(client: str) -> list[str]:
    return [f"{client}-{each}" for each in range(ASKED)]


def subscribe(store: OpenStore, group: Group, topic: Topic, client_id: str, names: list[str]) -> None:
    store.one(subscriptions.sync, subscriptions.SyncLite(group, topic, client_id, set(names), is_complete=True))


def sent(store: OpenStore, topic: Topic, client: str) -> None:
    store.send(topic, [message for each in names_of(client) for message in lite_messages(each)])


def got(store: OpenStore, group: Group, topic: Topic, *clients: str, **more: Any) -> list[Delivery]:
    asked = [a_receive(group, topic, client_id=each, **({"batch_size": ASKED} | more)) for each in clients]
    answers = [each for each in store.do(receive, *asked) if isinstance(each, Received)]
    assert len(answers) == len(asked)
    return [each for received in answers for each in received.deliveries]


def some_held(store: OpenStore, group: Group, topic: Topic) -> list[Delivery]:
    sent(store, topic, "mine")
    held = got(store, group, topic, "me", invisible_ms=30 * SECOND)
    assert len(held) == ASKED
    return held


def tidy_up(store: OpenStore, group: Group, topic: Topic) -> None:
    """Back to what it was, but for what is finished."""
    store.end_due(after_ms=40 * SECOND)
    store.end_due(after_ms=40 * SECOND)
    for client_id in ("me", "another") * 40:
        while received := got(store, group, topic, client_id, batch_size=32):
            store.ack(group, *received)


def steps(store: OpenStore, act: Callable[[], Any]) -> int:
    count = 0

    def one_more() -> int:
        nonlocal count
        count += 1
        return 0

    driver: Any = store.conn.connection.driver_connection
    driver.set_progress_handler(one_more, 1)
    act()
    driver.set_progress_handler(None, 1)
    return count
