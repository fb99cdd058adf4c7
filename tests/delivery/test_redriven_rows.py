"""Deliveries of redriven messages: they stand at another key, and are found by the first one."""

from __future__ import annotations

import pytest

from popserver.delivery import clear, delivered, deliveries
from popserver.delivery.clear import GroupInQueue
from popserver.delivery.delivered import FirstRow
from popserver.delivery.deliveries import NewDelivery
from popserver.engine.transaction import Transaction
from popserver.model.group import Group
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import Topic, message_key
from tests.support.open_store import OpenStore, receipt_of
from tests.support.redrive import redrive_all

DEAD = (1, 3, 4)


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    store.topic("another")
    made = store.topic(queues=2)
    for number in range(2):
        store.send(made, 6, queue=number)
    return made


@pytest.fixture
def groups(store: OpenStore, topic: Topic) -> list[Group]:
    """In each of them three messages of the second queue were redriven; the other messages are held."""
    made = [store.group(name, meets=[topic]) for name in ("a", "b")]
    for each in made:
        for held in store.receive(each, topic):
            if receipt_of(held).message_key in {key_of(topic, offset) for offset in DEAD}:
                store.forward(each, held)
        redrive_all(store, each, f"plan of {each.name.name}")
    return made


def key_of(topic: Topic, offset: int, queue: int = 1) -> int:
    return message_key(topic.queues[queue].queue_id, offset)


def new_keys(store: OpenStore, group: Group) -> dict[int, int]:
    """By the first key."""
    found = store.rows("SELECT origin_key, redriven_key FROM redrive WHERE group_id = :id", id=group.group_id)
    return {row.origin_key: row.redriven_key for row in found}


def test_they_are_listed_by_their_first_keys(store: OpenStore, topic: Topic, groups: list[Group]) -> None:
    for group in groups:
        for first, end, limit in ((0, 6, 9), (1, 4, 9), (2, 3, 9), (0, 6, 2), (0, 6, 0)):
            rows = delivered.redriven_states(
                store.conn, group.group_id, key_of(topic, first), key_of(topic, end), limit
            )
            expected = [key_of(topic, at) for at in DEAD if first <= at < end][:limit]
            assert [(row.group_id, row.message_key, row.state) for row in rows] == [
                (group.group_id, each, State.READY) for each in expected
            ]
    assert delivered.redriven_states(store.conn, groups[0].group_id, 0, key_of(topic, 0), 9) == []


def test_each_is_found_at_its_new_key(store: OpenStore, topic: Topic, groups: list[Group]) -> None:
    for group in groups:
        keys = new_keys(store, group)
        for offset in range(6):
            found = delivered.redriven_to(store.conn, group, key_of(topic, offset))
            assert found == keys.get(key_of(topic, offset))
        again = store.receive(group, topic)
        assert store.ack(group, again[0]) == [None]
        (done,) = [first for first, new in keys.items() if new == receipt_of(again[0]).message_key]
        assert delivered.redriven_to(store.conn, group, done) is None, "its delivery has ended"
        assert len(delivered.redriven_states(store.conn, group.group_id, 0, 1 << 62, 9)) == 2


def test_another_groups_delivery_at_the_new_key_is_none_of_it(
    store: OpenStore, topic: Topic, groups: list[Group]
) -> None:
    """The other group consumes the topic in which the redriven message stands."""
    group, other = groups
    first, new = min(new_keys(store, group).items())
    before = delivered.first_redriven(store.conn, new, new + 1)
    store.database.begin(store.conn)
    tx = Transaction.at(store.conn, store.now_ms)
    deliveries.remove(tx.conn, [(group.group_id, new)])
    row = NewDelivery(other.group_id, new, topic.topic_id, State.READY, 1, 0, 1, Holder.PUSH, "c1")
    deliveries.add(tx, [row])
    after = delivered.first_redriven(tx.conn, new, new + 1)
    found = delivered.redriven_to(tx.conn, group, first)
    listed = delivered.redriven_states(tx.conn, group.group_id, 0, 1 << 62, 9)
    store.conn.exec_driver_sql("ROLLBACK")
    assert (before, after, found, len(listed)) == (new, None, None, 2)


def test_after_another_redrive_the_last_one_counts(store: OpenStore, topic: Topic, groups: list[Group]) -> None:
    group = groups[0]
    for held in store.receive(group, topic):
        store.forward(group, held)
    redrive_all(store, group, "again")
    rows = delivered.redriven_states(store.conn, group.group_id, 0, 1 << 62, 9)
    assert [row.message_key for row in rows] == [key_of(topic, at) for at in DEAD], "each once"
    for offset in DEAD:
        at = delivered.redriven_to(store.conn, group, key_of(topic, offset))
        assert at in new_keys(store, group).values()
        assert store.delivery_of(group, at or 0) is not None


def test_the_first_one_of_any_group(store: OpenStore, groups: list[Group]) -> None:
    keys = sorted(key for group in groups for key in new_keys(store, group).values())
    for first, end in ((0, 1 << 62), (keys[0], keys[-1] + 1), (keys[1], keys[2]), (keys[3], keys[4] + 1)):
        assert delivered.first_redriven(store.conn, first, end) == min(key for key in keys if first <= key < end)
    assert delivered.first_redriven(store.conn, 0, keys[0]) is None
    assert delivered.first_redriven(store.conn, keys[-1] + 1, 1 << 62) is None
    store.conn.exec_driver_sql(f"UPDATE delivery SET state = 'INFLIGHT' WHERE message_key = {keys[0]}")
    assert delivered.first_redriven(store.conn, 0, 1 << 62) == keys[0], "in any state"
    store.conn.exec_driver_sql(f"UPDATE delivery SET state = 'READY' WHERE message_key = {keys[0]}")


def test_the_first_of_each_queue(store: OpenStore, topic: Topic, groups: list[Group]) -> None:
    queue_id = topic.queues[1].queue_id
    for group in groups:
        assert delivered.redriven_firsts(store.conn, group.group_id) == [FirstRow(queue_id, key_of(topic, DEAD[0]))]
        firsts = {row.queue_id: row.first_key for row in delivered.firsts(store.conn, group.group_id)}
        assert firsts[queue_id] == key_of(topic, 0)
        assert firsts[topic.queues[0].queue_id] == key_of(topic, 0, queue=0)
    assert delivered.redriven_firsts(store.conn, 99) == []


@pytest.mark.parametrize("queue", [0, 1])
def test_they_are_cleared_with_the_queue_in_which_they_were_first(
    store: OpenStore, topic: Topic, groups: list[Group], queue: int
) -> None:
    group, other = groups
    queue_id = topic.queues[queue].queue_id
    of_queue = GroupInQueue(group.group_id, queue_id, message_key(queue_id, 0), message_key(queue_id + 1, 0))
    before = store.rows("SELECT * FROM delivery WHERE group_id = :id ORDER BY message_key", id=other.group_id)
    store.database.begin(store.conn)
    tx = Transaction.at(store.conn, store.now_ms)
    held = clear.held(tx, of_queue, 100)
    expected = [key_of(topic, at, queue) for at in range(6) if queue == 0 or at not in DEAD]
    expected += [key_of(topic, at) for at in DEAD] if queue == 1 else []
    assert [row.message_key for row in held] == expected
    assert [row.message_key for row in clear.held(tx, of_queue, 4)] == expected[:4]
    assert clear.lock(tx, of_queue)
    clear.clear(tx, of_queue)
    store.conn.exec_driver_sql("COMMIT")
    assert clear.held(tx, of_queue, 100) == []
    left = store.rows("SELECT message_key FROM delivery WHERE group_id = :id", id=group.group_id)
    assert len(left) == 6
    assert store.rows("SELECT * FROM delivery WHERE group_id = :id ORDER BY message_key", id=other.group_id) == before
