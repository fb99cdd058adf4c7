"""What another server has locked is not waited for: the step is refused whole, and repeated by its caller."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popserver.catalog import topics
from popserver.dead_letters import plans, purge
from popserver.dead_letters.plan_requests import RunPlan
from popserver.dead_letters.rules import RedriveItem, Repair
from popserver.model.errors import TooManyRequests
from popserver.model.group import Group
from popserver.model.names import dead_letter_topic, retry_topic
from popserver.model.topic import Topic
from tests.support.locked_rows import locked, queues_of
from tests.support.open_store import OpenStore, open_store
from tests.support.redrive import die, letter_ids, lineage, order, plan_state, redrive_all, run, write_plan


@pytest.fixture
def store(postgres_url: str) -> Iterator[OpenStore]:
    with open_store(postgres_url) as opened:
        yield opened


@pytest.fixture
def other(store: OpenStore, postgres_url: str) -> Iterator[OpenStore]:
    """Another server, which holds a lock until it rolls back."""
    with open_store(postgres_url) as opened:
        yield opened


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic()


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])


def test_dead_letters_whose_queue_is_locked_are_not_purged(
    store: OpenStore, other: OpenStore, topic: Topic, group: Group
) -> None:
    die(store, group, topic, 2)
    ids = letter_ids(store, group)
    with locked(other, queues_of(store, dead_letter_topic(group.name).name)):
        with pytest.raises(TooManyRequests, match="another server uses the dead letters of group 'billing'"):
            store.one(purge.purge_letters, purge.PurgeLetters(group, ids))
        assert letter_ids(store, group) == ids
    assert store.one(purge.purge_letters, purge.PurgeLetters(group, ids)) == 2


def test_a_dead_letter_that_is_locked_is_not_redriven(
    store: OpenStore, other: OpenStore, topic: Topic, group: Group
) -> None:
    die(store, group, topic, 2)
    first, second = letter_ids(store, group)
    write_plan(store, group)
    with locked(other, f"SELECT 1 FROM dead_letter WHERE dead_letter_id = {second} FOR UPDATE"):
        with pytest.raises(TooManyRequests, match=f"dead letter {second} of group 'billing' is in use"):
            run(store)
        assert [row.state for row in lineage(store, "p1")] == ["PLANNED"] * 2
        assert run(store, limit=1) == (1, 0), "the other one is free"
    assert run(store) == (1, 0)
    assert first < second


@pytest.mark.parametrize("is_to_target", [False, True])
def test_without_a_free_queue_nothing_is_redriven(
    store: OpenStore, other: OpenStore, topic: Topic, group: Group, is_to_target: bool
) -> None:
    die(store, group, topic, 2)
    (first, second) = letter_ids(store, group)
    target = store.topic("target") if is_to_target else None
    order(store, group, [RedriveItem(first, "", Repair(b"mended"))], "p0", target)
    name = "target" if is_to_target else retry_topic(group.name).name
    with locked(other, queues_of(store, name)):
        with pytest.raises(TooManyRequests, match=f"other transactions use every queue of topic '{name}'"):
            order(store, group, [RedriveItem(second, "", Repair(b"mended"))], "p1", target)
        assert lineage(store, "p1") == []
    assert order(store, group, [RedriveItem(second, "", Repair(b"mended"))], "p1", target) == (1, 0)


def test_a_queue_that_is_locked_is_left_out(store: OpenStore, other: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic, 2)
    target = store.topic("target", queues=2)
    # A statement that would wait for a locked queue fails soon.
    store.conn.exec_driver_sql("SET lock_timeout = '100ms'")
    with locked(other, queues_of(store, "target", "0")):
        assert redrive_all(store, group, target=target) == (2, 0)
    query = "SELECT next_offset FROM queue WHERE topic_id = :id ORDER BY number"
    assert [row.next_offset for row in store.rows(query, id=target.topic_id)] == [0, 2]


def test_a_refused_step_does_not_undo_the_others_of_its_transaction(
    store: OpenStore, other: OpenStore, topic: Topic, group: Group
) -> None:
    others = store.group("others", meets=[topic])
    die(store, group, topic)
    store.send(topic)
    for each in store.receive(others, topic):
        assert store.forward(others, each) is None
    write_plan(store, group, "p1")
    write_plan(store, others, "p2")
    (letter_id,) = letter_ids(store, group)
    with locked(other, f"SELECT 1 FROM dead_letter WHERE dead_letter_id = {letter_id} FOR UPDATE"):
        refused, done = store.do(plans.run_plan, RunPlan("p1", 10), RunPlan("p2", 10))
        assert isinstance(refused, TooManyRequests)
        assert done == (2, 0)
        assert (plan_state(store, "p1"), plan_state(store, "p2")) == ("PLANNED", "DONE")


def test_a_group_without_dead_letters_has_nothing_to_purge(store: OpenStore, topic: Topic, group: Group) -> None:
    assert store.one(purge.purge_letters, purge.PurgeLetters(group, [1])) == 0
    die(store, group, topic)
    assert store.one(purge.purge_letters, purge.PurgeLetters(group, [])) == 0
    assert store.one(purge.purge_letters, purge.PurgeLetters(group, [99])) == 0
    redrive_all(store, group)
    assert store.one(purge.purge_letters, purge.PurgeLetters(group, letter_ids(store, group))) == 0
    assert topics.find_topic(store.conn, dead_letter_topic(group.name)) is not None
