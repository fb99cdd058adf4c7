"""Dead letters as tests make them, and the steps by which they go back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from popserver.dead_letters import plans
from popserver.dead_letters.plan_requests import CancelPlan, NewPlan, PlanStep, RedriveCounts, RedriveNow, RunPlan
from popserver.dead_letters.rules import RedriveItem, Selection
from popserver.dead_letters.selecting import page_of_letters
from popserver.model.group import Group
from popserver.model.message import Delivery
from popserver.model.states import PlanState
from popserver.model.topic import Topic
from tests.support.open_store import OpenStore, ids

ALL = Selection()


def die(store: OpenStore, group: Group, topic: Topic, count: int = 1, **more: Any) -> list[str]:
    """Dead letters of new messages; their message ids, oldest first."""
    store.send(topic, count, **more)
    held = store.receive(group, topic, count)
    assert len(held) == count
    give_up(store, group, held)
    return ids(held)


def give_up(store: OpenStore, group: Group, held: Sequence[Delivery]) -> None:
    for each in held:
        assert store.forward(group, each) is None


def letters(store: OpenStore, group: Group) -> list[Any]:
    """The group's rows of the view `dead_letters`, oldest first."""
    return store.rows("SELECT * FROM dead_letters WHERE consumer_group = :name ORDER BY id", name=group.name.name)


def letter_ids(store: OpenStore, group: Group) -> list[int]:
    return [row.id for row in letters(store, group)]


def lineage(store: OpenStore, plan_id: str) -> list[Any]:
    query = "SELECT * FROM lineage WHERE plan_id = :plan_id ORDER BY dead_letter_id"
    return store.rows(query, plan_id=plan_id)


def a_plan(group: Group, plan_id: str = "p1", target: Topic | None = None, **more: Any) -> NewPlan:
    values = {"state": PlanState.DRAFT, "reason": "fixed", "selection": "{}", "created_by": "ops"} | more
    return NewPlan(plan_id, group, target=target, **values)


def write_plan(
    store: OpenStore, group: Group, plan_id: str = "p1", target: Topic | None = None, selection: Selection = ALL
) -> None:
    """A plan of all that the selection has, written down in one step."""
    store.one(plans.create_plan, a_plan(group, plan_id, target))
    found = page_of_letters(store.conn, group, selection, 0, 1_000)
    last = found.ids[-1] if found.ids else 0
    store.one(plans.record_step, PlanStep(plan_id, 0, last, found.ids, is_last=True))


def run(store: OpenStore, plan_id: str = "p1", limit: int = 1_000) -> RedriveCounts:
    return store.one(plans.run_plan, RunPlan(plan_id, limit))


def cancel(store: OpenStore, plan_id: str = "p1") -> None:
    store.one(plans.cancel_plan, CancelPlan(plan_id))


def redrive_all(store: OpenStore, group: Group, plan_id: str = "p1", target: Topic | None = None) -> RedriveCounts:
    """All that are dead now, by a plan of that name."""
    write_plan(store, group, plan_id, target)
    return run(store, plan_id)


def order(
    store: OpenStore, group: Group, orders: Sequence[RedriveItem], plan_id: str = "p1", target: Topic | None = None
) -> RedriveCounts:
    """By name, with repairs."""
    new = a_plan(group, plan_id, target, state=PlanState.RUNNING)
    return store.one(plans.redrive_now, RedriveNow(new, orders))


def plan_state(store: OpenStore, plan_id: str = "p1") -> str:
    return str(store.one_value("SELECT state FROM redrive_plan WHERE plan_id = :plan_id", plan_id=plan_id))
