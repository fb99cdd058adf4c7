"""What is purged is found by its own keys, however much stands between, and however much others have."""

from __future__ import annotations

import re

from popserver.catalog import groups, topics
from popserver.dead_letters import purge
from tests.support.open_store import OpenStore
from tests.support.plans import Plans, whole_reads
from tests.support.redrive import die, letter_ids, redrive_all, run, write_plan


def test_two_dead_letters_are_not_a_stretch(store: OpenStore) -> None:
    """Those between them are neither read nor locked."""
    topic = store.topic()
    group = store.group(meets=[topic])
    die(store, group, topic, 5)
    redrive_all(store, group)
    first, *_, last = letter_ids(store, group)
    for each in store.receive(group, topic):
        if each.stored.offset in (0, 4):
            store.ack(group, each)
    plans = Plans(store)
    with plans.caught():
        assert store.one(purge.purge_letters, purge.PurgeLetters(group, [first, last])) == 2
    looks = {
        statement: plan
        for statement, plan in plans.explained().items()
        if statement.startswith("SELECT delivery.message_key")
    }
    assert len(looks) == 2, "those that are ready and free, and all"
    for statement, plan in looks.items():
        assert not re.search(r"message_key ?[<>]", statement)
        assert whole_reads(plan) == [], plan


def test_the_records_of_a_deleted_group_are_found_by_their_plan(store: OpenStore) -> None:
    topic = store.topic()
    kept, gone = store.group("kept", meets=[topic]), store.group("gone", meets=[topic])
    die(store, kept, topic, 3)
    assert redrive_all(store, kept, "of-kept").redriven == 3
    store.receive(gone, topic)
    die(store, gone, topic, 3)
    write_plan(store, gone, "one")
    assert run(store, "one", 1).redriven == 1
    write_plan(store, gone, "two")
    store.one(groups.delete_group, groups.DeleteGroup(gone.name))
    plans = Plans(store)
    with plans.caught():
        store.purge()
    removed = {
        statement: plan
        for statement, plan in plans.explained().items()
        if re.match(r"DELETE FROM redrive\b", statement)
    }
    assert removed
    for statement, plan in removed.items():
        assert re.search(r"plan_id ?=", plan), (statement, plan)
    assert store.rows("SELECT plan_id FROM redrive_plan") == [("of-kept",)]
    assert store.rows("SELECT DISTINCT plan_id FROM redrive") == [("of-kept",)]
    assert store.one_value("SELECT COUNT(*) FROM consumer_group") == 1


def test_no_purge_repeats_a_look_for_each_row(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    die(store, group, topic, 3)
    redrive_all(store, group)
    store.one(groups.delete_group, groups.DeleteGroup(group.name))
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    plans = Plans(store)
    with plans.caught():
        store.purge()
    removed = [statement for statement in plans.explained() if statement.startswith("DELETE")]
    assert removed
    assert not [statement for statement in removed if "LIMIT" in statement]
