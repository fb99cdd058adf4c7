"""What a reset removes it finds by keys that it was given, also where a database knows nothing of the tables yet."""

from __future__ import annotations

import pytest

from popserver.delivery import delivered
from popserver.messages import dead_letters, redrives
from popserver.progress.rules import Edge
from tests.support.builders import in_order
from tests.support.open_store import OpenStore
from tests.support.plans import Plans, whole_reads
from tests.support.progress import ORDERED, reset
from tests.support.redrive import die, run, write_plan


def test_no_look_with_a_limit_is_repeated_for_each_row(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of two: what is redriven, held, behind and dead, of each more than one step."""
    for each in (delivered, dead_letters, redrives):
        monkeypatch.setattr(each, "STEP_ROWS_MAX", 2)
    topic, group = store.topic(accepts=ORDERED), store.group()
    store.meet(group, topic)
    die(store, group, topic, 10)
    write_plan(store, group)
    assert run(store, limit=5).redriven == 5
    store.send(topic, [message for name in "ghijk" for message in in_order(name, 2)])
    while store.receive(group, topic, heads_only=True):
        pass
    assert store.one_value("SELECT COUNT(*) FROM message_group_progress") > 2
    plans = Plans(store)
    with plans.caught():
        reset(store, group, topic, Edge.BEGINNING)
    changes = {
        statement: plan for statement, plan in plans.explained().items() if statement.startswith(("DELETE", "UPDATE d"))
    }
    assert len(changes) == 4, "deliveries, message groups and their starts, dead letters"
    for statement, plan in changes.items():
        assert "LIMIT" not in statement
        assert whole_reads(plan) == [], (statement, plan)
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0
    assert store.one_value("SELECT COUNT(*) FROM message_group_progress") == 0
    assert store.rows("SELECT DISTINCT redrive_state FROM dead_letter") == [("RESET",)]
    assert store.one_value("SELECT next_offset FROM progress WHERE group_id = :id", id=group.group_id) == 0
