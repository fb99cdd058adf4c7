"""Redrive plans: they record the dead letters to redrive, and the outcome of each. Both are done in steps.

A transaction that changes a plan locks its id at its start. So two servers that run the same plan take turns, and each
message is redriven once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

from sqlalchemy import select

from popserver.catalog import groups, lookup, redrive_plans, topics
from popserver.catalog.redrive_plans import PlanRow
from popserver.database.rows import encode_column
from popserver.dead_letters.plan_requests import CancelPlan, NewPlan, PlanStep, RedriveCounts, RedriveNow, RunPlan
from popserver.dead_letters.redrive import NO_COPY, NOT_DEAD, FoundLetters, Plan, find, send, why_not
from popserver.dead_letters.rules import RedriveItem
from popserver.engine.transaction import Transaction, carries_out_each
from popserver.messages import redrives
from popserver.messages.by_key import HEADS
from popserver.messages.dead_letters import RECORDED
from popserver.model.errors import BadRequest, MessageNotFound, NotFound, PopError, TooLate, TopicNotFound
from popserver.model.group import Group
from popserver.model.names import dead_letter_topic
from popserver.model.states import PlanState

R = TypeVar("R")
S = TypeVar("S")


def no_such_plan(plan_id: str) -> NotFound:
    return NotFound(f"redrive plan '{plan_id}' does not exist; list them with: popmq dlq plans")


def _under_savepoint(verb: Callable[[Transaction, R], S]) -> Callable[[Transaction, R], S | PopError]:
    """Run each request under a savepoint: a refusal undoes its changes, and the other requests continue."""

    @wraps(verb)
    def run(tx: Transaction, request: R) -> S | PopError:
        tx.conn.exec_driver_sql("SAVEPOINT redrive")
        try:
            answer: S | PopError = verb(tx, request)
        except PopError as refusal:
            tx.conn.exec_driver_sql("ROLLBACK TO SAVEPOINT redrive")
            answer = refusal
        tx.conn.exec_driver_sql("RELEASE SAVEPOINT redrive")
        return answer

    return run


@carries_out_each(NewPlan)
@_under_savepoint
def create_plan(tx: Transaction, request: NewPlan) -> None:
    """Make the plan. An existing plan stays; it must have the same group, selection and target."""
    _existing_group(tx, request)
    found = redrive_plans.find(tx.conn, request.plan_id)
    if found is None:
        _insert(tx, request)
        return
    _check_same(request, found)
    if _without_reach(found.selection) != _without_reach(request.selection):
        raise BadRequest(
            f"redrive plan '{request.plan_id}' exists already, with another selection; repeat that selection, or use"
            " another plan id"
        )


def _without_reach(selection: str) -> dict[str, Any]:
    """The selection without `up_to_id`, which only depends on when the plan was made."""
    return {name: value for name, value in json.loads(selection).items() if name != "up_to_id"}


@carries_out_each(PlanStep)
@_under_savepoint
def record_step(tx: Transaction, request: PlanStep) -> None:
    """Record matches for a DRAFT. Nothing happens if another call has recorded them meanwhile."""
    state = PlanState.PLANNED if request.is_last else PlanState.DRAFT
    if not redrive_plans.reach(tx, request.plan_id, request.after_id, request.up_to_id, state):
        return
    if request.ids:
        row = redrive_plans.find(tx.conn, request.plan_id)
        assert row is not None, "it was changed just now"
        _write_records(tx, row, request.ids)
    if request.is_last and not redrives.next_planned(tx.conn, request.plan_id, 1):
        redrive_plans.finish_step(tx, request.plan_id, is_left=False)  # nothing will run an empty plan


def _write_records(tx: Transaction, row: PlanRow, ids: Sequence[int]) -> None:
    names = {"of_plan": row.plan_id, "for_group": row.group_id, "why": row.reason, "target": row.target_topic_id}
    names["ids"] = encode_column(ids)
    written = tx.conn.execute(_RECORD, names, execution_options={"preserve_rowcount": True}).rowcount
    redrive_plans.count_planned(tx, row.plan_id, written)


@carries_out_each(RunPlan)
@_under_savepoint
def run_plan(tx: Transaction, request: RunPlan) -> RedriveCounts:
    """Redrive the next messages of the plan. Refused if it is a DRAFT or cancelled."""
    row, group = _existing(tx, request.plan_id)
    if row.state == PlanState.DRAFT:
        raise TooLate(
            f"redrive plan '{request.plan_id}' is a DRAFT: not all of its messages are recorded; plan it again with"
            " its id, then run it"
        )
    _check_not_cancelled(row)
    plan = _plan(tx, row, group)
    ids = redrives.next_planned(tx.conn, request.plan_id, request.limit)
    done = _send(tx, plan, [RedriveItem(each, row.reason) for each in ids]) if ids else RedriveCounts(0, 0)
    _finish_step(tx, request.plan_id)
    return done


def _finish_step(tx: Transaction, plan_id: str) -> None:
    redrive_plans.finish_step(tx, plan_id, is_left=bool(redrives.next_planned(tx.conn, plan_id, 1)))


@carries_out_each(CancelPlan)
@_under_savepoint
def cancel_plan(tx: Transaction, request: CancelPlan) -> None:
    """Cancel the plan: it redrives no further messages. Refused if it is done."""
    row, _ = _existing(tx, request.plan_id)
    if row.state == PlanState.DONE:
        raise TooLate(f"redrive plan '{request.plan_id}' is done; there is nothing left to cancel")
    if row.state != PlanState.CANCELLED:
        redrive_plans.cancel(tx, request.plan_id)


@carries_out_each(RedriveNow)
@_under_savepoint
def redrive_now(tx: Transaction, request: RedriveNow) -> RedriveCounts:
    """Redrive the named dead letters, except those that the plan has redriven already."""
    new = request.new
    group = _existing_group(tx, new)
    row = redrive_plans.find(tx.conn, new.plan_id)
    if row is None:
        _insert(tx, new)
        row = redrive_plans.find(tx.conn, new.plan_id)
        assert row is not None, "it was made just now"
    _check_same(new, row)
    _check_not_cancelled(row)
    plan = _plan(tx, row, group)
    ids = [each.dead_letter_id for each in request.orders]
    ended = redrives.ended_among(tx.conn, new.plan_id, ids)
    orders = [
        each if each.reason else each._replace(reason=row.reason)
        for each in request.orders
        if each.dead_letter_id not in ended
    ]
    _write_records(tx, row, ids)
    done = _send(tx, plan, orders, must_exist=True)
    _finish_step(tx, new.plan_id)
    return done


def _send(tx: Transaction, plan: Plan, orders: Sequence[RedriveItem], *, must_exist: bool = False) -> RedriveCounts:
    """Redrive what can be redriven, and record why the others cannot. `must_exist`: refuse unknown dead letters."""
    found = find(tx, plan.group, [each.dead_letter_id for each in orders])
    notes: dict[int, str] = {}
    for each in orders:
        if why := why_not(plan, found, each.dead_letter_id):
            notes[each.dead_letter_id] = why
    if must_exist:
        _check_all_there(plan, found, notes)
    send(tx, plan, found, [each for each in orders if each.dead_letter_id not in notes])
    redrives.note_skipped(tx, plan.plan_id, notes)
    counts = RedriveCounts(len(orders) - len(notes), len(notes))
    redrive_plans.count_ended(tx, plan.plan_id, counts.redriven, counts.skipped)
    return counts


def _check_all_there(plan: Plan, found: FoundLetters, notes: dict[int, str]) -> None:
    group = plan.group.name
    for dead_letter_id, note in notes.items():
        if dead_letter_id not in found.letters:
            raise MessageNotFound(
                f"group '{group}' has no dead letter {dead_letter_id}; nothing was redriven, list them with:"
                f" popmq dlq list --group {group.name}"
            )
        if note == NO_COPY:
            raise MessageNotFound(
                f"dead letter {dead_letter_id} of group '{group}' was deleted with topic '{dead_letter_topic(group)}';"
                " nothing was redriven"
            )
        if note != NOT_DEAD:
            raise TopicNotFound(
                f"the topic that dead letter {dead_letter_id} of group '{group}' came from is deleted; nothing was"
                " redriven, name a target topic"
            )


def _check_same(request: NewPlan, found: PlanRow) -> None:
    if found.group_id != request.group.group_id:
        raise BadRequest(
            f"redrive plan '{request.plan_id}' belongs to another group, not to '{request.group.name}'; use another"
            " plan id"
        )
    target_id = None if request.target is None else request.target.topic_id
    if found.target_topic_id != target_id:
        wanted = "its group alone" if request.target is None else f"topic '{request.target.name}'"
        raise BadRequest(
            f"redrive plan '{request.plan_id}' does not send to {wanted}; use another plan id, or do not change the"
            " target"
        )


def _check_not_cancelled(row: PlanRow) -> None:
    if row.state == PlanState.CANCELLED:
        raise TooLate(f"redrive plan '{row.plan_id}' was cancelled; make a new plan for the remaining dead letters")


def _existing(tx: Transaction, plan_id: str) -> tuple[PlanRow, Group]:
    """The plan and its group. Raises `NotFound` also for plans of a deleted group, although their rows stay a while."""
    row = redrive_plans.find(tx.conn, plan_id)
    group = None if row is None else _group(tx, row.group_id)
    if row is None or group is None:
        raise no_such_plan(plan_id)
    return row, group


def _existing_group(tx: Transaction, new: NewPlan) -> Group:
    group = _group(tx, new.group.group_id)
    if group is None:
        raise lookup.group_not_found(new.group.name)
    return group


def _group(tx: Transaction, group_id: int) -> Group | None:
    found = groups.groups_by_id(tx.conn, [group_id]).get(group_id)
    return None if found is None or found.is_deleted else found.group


def _plan(tx: Transaction, row: PlanRow, group: Group) -> Plan:
    if row.target_topic_id is None:
        return Plan(row.plan_id, group, row.created_at_ms, None)
    target = topics.topics_by_id(tx.conn, [row.target_topic_id]).get(row.target_topic_id)
    if target is None:
        raise TopicNotFound(
            f"the target topic of redrive plan '{row.plan_id}' is deleted; nothing was redriven, cancel it and make"
            " another"
        )
    return Plan(row.plan_id, group, row.created_at_ms, target)


def _insert(tx: Transaction, new: NewPlan) -> None:
    row = {
        "plan_id": new.plan_id,
        "group_id": new.group.group_id,
        "state": new.state.value,
        "reason": new.reason,
        "selection": new.selection,
        "target_topic_id": None if new.target is None else new.target.topic_id,
        "target_namespace": None if new.target is None else new.target.name.namespace,
        "target_topic": None if new.target is None else new.target.name.name,
        "created_by": new.created_by,
    }
    redrive_plans.add(tx, row)


_RECORD = redrives.recording(
    select(RECORDED, HEADS.c.message_id).join(HEADS, HEADS.c.message_key == RECORDED.c.copy_key).subquery()
)
