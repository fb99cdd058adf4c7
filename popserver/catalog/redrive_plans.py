"""Redrive plans of operators: which dead letters of a group are sent back, and to which topic.

The row of a plan counts its results. The result for each dead letter is in the records of `messages.redrives`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, delete, insert, literal_column, select, update

from popserver.catalog import groups
from popserver.database.rows import RowStatement
from popserver.database.schema import redrive_plan
from popserver.engine.transaction import Transaction
from popserver.model.states import PlanState


class PlanRow(NamedTuple):
    """A plan's row. The target's name stays when the topic is deleted."""

    plan_id: str
    group_id: int
    state: str
    reason: str
    selection: str
    target_topic_id: int | None
    target_namespace: str | None
    target_topic: str | None
    created_by: str
    created_at_ms: int
    planned: int
    redriven: int
    skipped: int
    planned_up_to: int


def find(conn: Connection, plan_id: str) -> PlanRow | None:
    return _PLAN.first(conn, {"of_plan": plan_id})


def newest(conn: Connection, group_id: int | None, plan_id: str | None, limit: int) -> list[PlanRow]:
    """The newest plans of one group or (None) of all existing groups, or the plan with this id."""
    query = _NEWEST_PLANS.limit(limit)
    if group_id is not None:
        query = query.where(redrive_plan.c.group_id == group_id)
    if plan_id is not None:
        query = query.where(redrive_plan.c.plan_id == plan_id)
    return [PlanRow._make(row) for row in conn.execute(query)]


def add(tx: Transaction, plan: Mapping[str, Any]) -> None:
    """Add a plan. `plan` has all columns except the time and those that are equal in each new plan."""
    tx.conn.execute(insert(redrive_plan), {**plan, "created_at_ms": tx.now_ms, "planned_up_to": 0})


def reach(tx: Transaction, plan_id: str, after_id: int, up_to_id: int, state: PlanState) -> bool:
    """Note that a DRAFT has read the dead letters up to `up_to_id`. False if it had not reached `after_id` before."""
    names = {"of_plan": plan_id, "after": after_id, "up_to": up_to_id, "next_state": state}
    return bool(tx.conn.execute(_REACH, names).rowcount)


def count_planned(tx: Transaction, plan_id: str, written: int) -> None:
    """Add to the number of dead letters that are recorded in the plan."""
    tx.conn.execute(_COUNT_PLANNED, {"of_plan": plan_id, "written": written})


def count_ended(tx: Transaction, plan_id: str, redriven: int, skipped: int) -> None:
    """So many of the planned dead letters were redriven and skipped now."""
    tx.conn.execute(_COUNT_ENDED, {"of_plan": plan_id, "now_redriven": redriven, "now_skipped": skipped})


def finish_step(tx: Transaction, plan_id: str, *, is_left: bool) -> None:
    """A plan that runs is RUNNING if a message is left, else DONE."""
    if is_left:
        tx.conn.execute(_BEGIN, {"of_plan": plan_id})
    else:
        tx.conn.execute(_DONE, {"of_plan": plan_id, "now_ms": tx.now_ms})


def cancel(tx: Transaction, plan_id: str) -> None:
    """Mark the plan as cancelled: it redrives no further messages."""
    tx.conn.execute(_CANCEL, {"of_plan": plan_id, "now_ms": tx.now_ms})


def any_of_group(conn: Connection, group_id: int) -> str | None:
    """The id of a plan of the group; None if it has none."""
    return conn.execute(_ANY_OF_GROUP, {"for_group": group_id}).scalar()


def forget(conn: Connection, plan_id: str) -> int:
    """Remove a plan of a deleted group that has no records any more; returns 1."""
    return conn.execute(_FORGET, {"of_plan": plan_id}).rowcount


_ROWS = select(*(redrive_plan.c[name] for name in PlanRow._fields))
_IS_PLAN = redrive_plan.c.plan_id == bindparam("of_plan")
_PLAN = RowStatement(PlanRow, _ROWS.where(_IS_PLAN))
_NEWEST_PLANS = _ROWS.join(groups.EXISTING, groups.EXISTING.c.group_id == redrive_plan.c.group_id).order_by(
    redrive_plan.c.created_at_ms.desc(), redrive_plan.c.plan_id.desc()
)
_ITS_PLAN = update(redrive_plan).where(_IS_PLAN)
_REACH = _ITS_PLAN.where(
    redrive_plan.c.state == literal_column(f"'{PlanState.DRAFT}'"), redrive_plan.c.planned_up_to == bindparam("after")
).values(planned_up_to=bindparam("up_to"), state=bindparam("next_state"))
_IT_RUNS = _ITS_PLAN.where(redrive_plan.c.state.in_([PlanState.PLANNED.value, PlanState.RUNNING.value]))
_now_ms = bindparam("now_ms", type_=BigInteger)
_BEGIN = _IT_RUNS.values(state=PlanState.RUNNING.value)
_DONE = _IT_RUNS.values(state=PlanState.DONE.value, finished_at_ms=_now_ms)
_CANCEL = _ITS_PLAN.values(state=PlanState.CANCELLED.value, finished_at_ms=_now_ms)
_COUNT_PLANNED = _ITS_PLAN.values(planned=redrive_plan.c.planned + bindparam("written"))
_now_redriven, _now_skipped = (bindparam(name, type_=BigInteger) for name in ("now_redriven", "now_skipped"))
_COUNT_ENDED = _ITS_PLAN.values(
    planned=redrive_plan.c.planned - _now_redriven - _now_skipped,
    redriven=redrive_plan.c.redriven + _now_redriven,
    skipped=redrive_plan.c.skipped + _now_skipped,
)
_ANY_OF_GROUP = select(redrive_plan.c.plan_id).where(redrive_plan.c.group_id == bindparam("for_group")).limit(1)
_FORGET = delete(redrive_plan).where(_IS_PLAN)
