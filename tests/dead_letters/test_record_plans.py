"""The record of a redrive is found by its key, however long the plan is."""

from __future__ import annotations

import re

from popserver.dead_letters import plan_facts
from tests.support.open_store import OpenStore
from tests.support.plans import Plans
from tests.support.redrive import die, run, write_plan


def test_each_message_of_a_step_is_one_search(store: OpenStore) -> None:
    topic = store.topic(queues=1)
    group = store.group(meets=[topic])
    die(store, group, topic, 3)
    write_plan(store, group)
    write_plan(store, group, "p2")
    plans = Plans(store)
    with plans.caught():
        assert run(store, "p1", 2).redriven == 2
        assert run(store, "p2").skipped == 2
    updates = {
        statement: plan for statement, plan in plans.explained().items() if statement.startswith("UPDATE redrive SET")
    }
    assert len(updates) == 2, "what went, and what did not"
    for statement, plan in updates.items():
        assert re.search(r"plan_id ?=.* AND \(?dead_letter_id ?=", plan), (statement, plan)


def test_a_look_at_a_plan_counts_nothing(store: OpenStore) -> None:
    """It is looked at after each step; what a plan has of each state it knows."""
    topic = store.topic(queues=1)
    group = store.group(meets=[topic])
    die(store, group, topic, 3)
    write_plan(store, group)
    write_plan(store, group, "p2")
    run(store, "p1", 1)
    run(store, "p2", 2)
    plans = Plans(store)
    with plans.caught():
        one, two = (plan_facts.plan(store.conn, name) for name in ("p1", "p2"))
    assert one is not None
    assert two is not None
    assert (one.planned, one.redriven, one.skipped) == (2, 1, 0)
    assert (two.planned, two.redriven, two.skipped) == (1, 1, 1)
    for statement in plans.explained():
        assert not re.search(r"\bredrive\b", statement), statement
