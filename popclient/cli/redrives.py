"""`popmq dlq redrive|plans|plan|cancel`: dead letters sent back by a plan, which is also the record of it."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from popclient.admin import Admin, Redrive, RedrivePlan
from popclient.admin.requests import new_plan_id
from popclient.cli import INTERRUPTED, UsageError
from popclient.cli.dlq_repair import redrive_repaired
from popclient.cli.output import fields, local, say, table, utc
from popclient.cli.selection import admin_of, narrows, selection_of
from popclient.cli.telling import Telling
from popclient.errors import PopError

_COLUMNS = ["id", "message id", "from", "target", "change", "reason", "state", "outcome", "note"]
_DRY = _COLUMNS.index("state")


def redrive(arguments: Namespace) -> int:
    """Plan and run; with --dry-run plan alone; with --plan go on with one. Exit code 130 where it was interrupted."""
    _require_a_meaning(arguments)
    telling = Telling()
    plan_id = arguments.plan or new_plan_id()
    with admin_of(arguments) as admin:
        try:
            if arguments.repair:
                return redrive_repaired(arguments, admin, plan_id, telling)
            plan = _planned(arguments, admin, plan_id)
            if arguments.dry_run:
                return _show_dry_run(arguments, admin, plan)
            return _run(arguments, admin, plan, telling)
        except KeyboardInterrupt:
            telling.say(_go_on(arguments, plan_id))
            return INTERRUPTED
        except PopError:
            if telling.is_under_way:
                telling.say(_go_on(arguments, plan_id))
            raise


def list_plans(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        plans = admin.redrive_plans(arguments.group)
    columns = ["plan", "group", "state", "planned", "redriven", "skipped", "target", "reason", "by", "created"]
    rows = [
        (
            each.plan_id,
            each.group,
            each.state,
            each.planned,
            each.redriven,
            each.skipped,
            each.target,
            each.reason,
            each.created_by,
            local(each.created_at),
        )
        for each in plans
    ]
    return say(arguments, [plan_document(each) for each in plans], table(columns, rows, "no redrive plans"))


def show_plan(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        plan = admin.redrive_plan(arguments.plan)
        shown = list(islice(admin.redrives(arguments.plan), arguments.max))
    document = {**plan_document(plan), "redrives": redrive_documents(shown)}
    return say(arguments, document, [*_plan_lines(plan), "", *redrive_table(plan, shown)])


def cancel(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        plan = admin.cancel_redrive(arguments.plan)
    line = f"plan {plan.plan_id} is {plan.state}: {plan.redriven} were sent back, the rest stays where it is"
    return say(arguments, plan_document(plan), [line])


def redrive_table(plan: RedrivePlan, shown: Sequence[Redrive], *, dry_run: bool = False) -> list[str]:
    """Without what only a run knows, for a dry one."""
    rows = [
        (
            each.dead_letter_id,
            each.message_id,
            each.topic,
            each.target or f"group {plan.group}",
            each.change,
            each.reason,
            each.state,
            each.outcome,
            each.note,
        )
        for each in shown
    ]
    columns = _COLUMNS[:_DRY] if dry_run else _COLUMNS
    lines = table(columns, [row[: len(columns)] for row in rows], "nothing to send back")
    more = plan.planned + plan.redriven + plan.skipped - len(shown)
    return [*lines, f"… and {more} more; --max shows them"] if more > 0 else lines


def redrive_documents(shown: Iterable[Redrive]) -> list[dict[str, Any]]:
    return [
        {
            "dead_letter_id": each.dead_letter_id,
            "message_id": each.message_id,
            "topic": each.topic,
            "target": each.target,
            "change": each.change,
            "reason": each.reason,
            "state": each.state,
            "note": each.note,
            "redriven_message_id": each.redriven_message_id,
            "redriven_at": utc(each.redriven_at),
            "outcome": each.outcome,
        }
        for each in shown
    ]


def plan_document(plan: RedrivePlan) -> dict[str, Any]:
    return {
        "plan_id": plan.plan_id,
        "group": plan.group,
        "state": plan.state,
        "target": plan.target,
        "reason": plan.reason,
        "created_by": plan.created_by,
        "created_at": utc(plan.created_at),
        "planned": plan.planned,
        "redriven": plan.redriven,
        "skipped": plan.skipped,
    }


def _require_a_meaning(arguments: Namespace) -> None:
    if arguments.group:
        return
    if not arguments.plan:
        raise UsageError("say whose dead letters go back with --group GROUP, or name a plan with --plan PLAN")
    if arguments.repair:
        raise UsageError("--repair needs --group GROUP: a plan does not keep the repairs of what is still to be done")
    if given := narrows(arguments):
        raise UsageError(f"{given[0]} selects among the dead letters of a group; name it with --group GROUP")


def _planned(arguments: Namespace, admin: Admin, plan_id: str) -> RedrivePlan:
    """The plan that is named; written down, or to its end, where the dead letters it is about are named."""
    if not arguments.group:
        plan = admin.redrive_plan(plan_id)
        if plan.state == "DRAFT":
            raise UsageError(
                f"plan {plan_id} is not written down to its end; repeat the command that made it, with --plan {plan_id}"
            )
    else:
        selection = selection_of(arguments)
        plan = admin.plan_redrive(selection, reason=arguments.reason, target=arguments.to, plan_id=plan_id)
    if arguments.to is not None and plan.target != arguments.to:
        goes = f"to topic {plan.target}" if plan.target else f"back to group {plan.group}"
        raise UsageError(
            f"plan {plan_id} sends {goes}, not to topic {arguments.to}; leave --to out, or make a new plan"
        )
    return plan


def _show_dry_run(arguments: Namespace, admin: Admin, plan: RedrivePlan) -> int:
    shown = list(islice(admin.redrives(plan.plan_id), arguments.max))
    document = {"dry_run": True, **plan_document(plan), "redrives": redrive_documents(shown)}
    ends = [
        "",
        f"nothing has moved; run it: popmq dlq redrive --plan {plan.plan_id}",
        f"or drop it: popmq dlq cancel {plan.plan_id}",
    ]
    return say(arguments, document, [*redrive_table(plan, shown, dry_run=True), *ends])


def _run(arguments: Namespace, admin: Admin, plan: RedrivePlan, telling: Telling) -> int:
    telling.say(f"plan {plan.plan_id}: {plan.planned} dead letters of {plan.group} to send back")
    for step in admin.run_redrive(plan.plan_id, rate=arguments.rate) if plan.planned else ():
        plan = step.plan
        telling.progress(f"{plan.redriven} sent back, {plan.skipped} skipped, {plan.planned} to go")
    line = f"plan {plan.plan_id}: {plan.redriven} sent back, {plan.skipped} skipped, {plan.planned} to go"
    if plan.skipped:
        line += f"; why: popmq dlq plan {plan.plan_id}"
    return say(arguments, plan_document(plan), [line])


def _go_on(arguments: Namespace, plan_id: str) -> str:
    same = "the same command goes" if arguments.plan else f"the same command with --plan {plan_id} goes"
    return f"stopped; {same} on where this one was, and sends nothing twice"


def _plan_lines(plan: RedrivePlan) -> list[str]:
    return fields(
        [
            ("plan", plan.plan_id),
            ("group", plan.group),
            ("state", plan.state),
            ("target", plan.target or f"group {plan.group}"),
            ("reason", plan.reason),
            ("by", plan.created_by),
            ("created", local(plan.created_at)),
            ("to go", plan.planned),
            ("redriven", plan.redriven),
            ("skipped", plan.skipped),
        ]
    )
