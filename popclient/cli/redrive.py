"""`popmq dlq redrive|plans|plan|cancel`: sends dead letters back, as they are or repaired, by plans that are kept."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, NamedTuple

from popclient.admin import Admin, DeadLetter, Redrive, RedriveOrder, RedrivePlan, Repair
from popclient.admin.pace import Pace
from popclient.admin.requests import new_plan_id
from popclient.cli import INTERRUPTED
from popclient.cli.arguments import UsageError
from popclient.cli.output import ProgressLog, fields, picked, say, table
from popclient.cli.selection import GONE, UserFunction, admin_of, narrows, selection_of
from popclient.errors import PopError

_COLUMNS = ["id", "message id", "from", "target", "change", "reason", "state", "outcome", "note"]
_DRY = _COLUMNS.index("state")


def redrive(arguments: Namespace) -> int:
    """Plan and run; with --dry-run plan alone; with --plan go on with one. Exit code 130 where it was interrupted."""
    _require_a_meaning(arguments)
    progress_log = ProgressLog()
    plan_id = arguments.plan or new_plan_id()
    with admin_of(arguments) as admin:
        try:
            if arguments.repair:
                return redrive_repaired(arguments, admin, plan_id, progress_log)
            if arguments.group and not arguments.plan and not _are_any(arguments, admin):
                return _say_nothing_to_do(arguments)
            plan = _planned(arguments, admin, plan_id)
            if arguments.dry_run:
                return _show_dry_run(arguments, admin, plan)
            return _run(arguments, admin, plan, progress_log)
        except KeyboardInterrupt:
            progress_log.say(_go_on(arguments, plan_id))
            return INTERRUPTED
        except PopError:
            if progress_log.is_under_way:
                progress_log.say(_go_on(arguments, plan_id))
            raise


def list_plans(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        plans = admin.redrive_plans(arguments.group)
    columns = ["plan", "group", "state", "planned", "redriven", "skipped", "target", "reason", "by", "created"]
    shown = attrgetter(
        "plan_id", "group", "state", "planned", "redriven", "skipped", "target", "reason", "created_by", "created_at"
    )
    rows = map(shown, plans)
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
        picked(
            each,
            "dead_letter_id message_id topic target change reason state note redriven_message_id redriven_at outcome",
        )
        for each in shown
    ]


def plan_document(plan: RedrivePlan) -> dict[str, Any]:
    return picked(plan, "plan_id group state target reason created_by created_at planned redriven skipped")


def _require_a_meaning(arguments: Namespace) -> None:
    if arguments.group:
        return
    if not arguments.plan:
        raise UsageError("say whose dead letters go back with --group GROUP, or name a plan with --plan PLAN")
    if arguments.repair:
        raise UsageError("--repair needs --group GROUP: a plan does not keep the repairs of what is still to be done")
    if given := narrows(arguments):
        raise UsageError(f"{given[0]} selects among the dead letters of a group; name it with --group GROUP")


def _are_any(arguments: Namespace, admin: Admin) -> bool:
    return next(iter(admin.dead_letters(selection_of(arguments), without_bodies=True)), None) is not None


def _say_nothing_to_do(arguments: Namespace) -> int:
    """A plan without a message would only be one more in `popmq dlq plans`; one with a name of yours is kept."""
    document = {"plan_id": None, "group": arguments.group, "planned": 0, "redriven": 0, "skipped": 0}
    return say(arguments, document, [f"no dead letter of {arguments.group} is selected: nothing to send back"])


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


def _run(arguments: Namespace, admin: Admin, plan: RedrivePlan, progress_log: ProgressLog) -> int:
    progress_log.say(f"plan {plan.plan_id}: {plan.planned} dead letters of {plan.group} to send back")
    for step in admin.run_redrive(plan.plan_id, rate=arguments.rate) if plan.planned else ():
        plan = step.plan
        progress_log.progress(f"{plan.redriven} sent back, {plan.skipped} skipped, {plan.planned} to go")
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
            ("created", plan.created_at),
            ("to go", plan.planned),
            ("redriven", plan.redriven),
            ("skipped", plan.skipped),
        ]
    )


# Bodies of one request; the server's limit is four times as much, so one more repair fits.
BATCH_BYTES: Final = 8 * 1024 * 1024
LEFT: Final = "LEFT"


class Repaired(NamedTuple):
    """A dead letter, and what the function said of it; None: it stays where it is."""

    letter: DeadLetter
    repair: Repair | None

    @property
    def change(self) -> str:
        if self.repair is None:
            return LEFT
        return f"REPAIR {','.join(self.repair.changed)}" if self.repair.changed else "NONE"

    @property
    def order(self) -> RedriveOrder:
        return RedriveOrder(self.letter.id, self.repair if self.repair and self.repair.changed else None)

    @property
    def size(self) -> int:
        """The bytes of its new body, of at most four each where it is text."""
        body = self.repair.body if self.repair else None
        return len(body) * (4 if isinstance(body, str) else 1) if body else 0


class Tally:
    """How many went back, were no dead letters any more, and were left."""

    def __init__(self) -> None:
        self.redriven = 0
        self.skipped = 0
        self.left = 0

    def __str__(self) -> str:
        return f"{self.redriven} sent back, {self.skipped} skipped, {self.left} left where they are"


def redrive_repaired(arguments: Namespace, admin: Admin, plan_id: str, progress_log: ProgressLog) -> int:
    repair = UserFunction(arguments.repair, Repair)
    letters = admin.dead_letters(selection_of(arguments))
    judged = (Repaired(letter, repair(letter)) for letter in letters)
    if arguments.dry_run:
        return _show(arguments, judged)
    progress_log.say(f"plan {plan_id}: dead letters of {arguments.group} are repaired and sent back")
    tally = _send(arguments, admin, plan_id, judged, progress_log)
    document = {"plan_id": plan_id, "group": arguments.group, **picked(tally, "redriven skipped left")}
    line = f"plan {plan_id}: {tally}"
    if tally.skipped:
        line += f"; why: popmq dlq plan {plan_id}"
    return say(arguments, document, [line])


def batches(judged: Iterable[Repaired], count: int, size: int = BATCH_BYTES) -> Iterator[list[Repaired]]:
    """In order, at most `count` that go back in each, and about `size` bytes of new bodies."""
    batch: list[Repaired] = []
    orders, bytes_held = 0, 0
    for each in judged:
        batch.append(each)
        orders += each.repair is not None
        bytes_held += each.size
        if orders == count or bytes_held >= size:
            yield batch
            batch, orders, bytes_held = [], 0, 0
    if batch:
        yield batch


def _send(
    arguments: Namespace, admin: Admin, plan_id: str, judged: Iterable[Repaired], progress_log: ProgressLog
) -> Tally:
    pace, tally = Pace(arguments.rate), Tally()
    for batch in batches(judged, pace.step):
        orders = [each.order for each in batch if each.repair is not None]
        tally.left += len(batch) - len(orders)
        if orders:
            pace.await_turn()
            redrives = admin.redrive_dead_letters(
                plan_id, arguments.group, orders, target=arguments.to, reason=arguments.reason
            )
            redriven = sum(1 for each in redrives if each.state == "REDRIVEN")
            pace.spent(redriven)
            tally.redriven += redriven
            tally.skipped += len(orders) - redriven
        progress_log.progress(str(tally))
    return tally


def _show(arguments: Namespace, judged: Iterable[Repaired]) -> int:
    """Everything is judged, some of it shown."""
    shown: list[Repaired] = []
    counts = {"NONE": 0, "REPAIR": 0, LEFT: 0}
    for each in judged:
        counts[each.change.partition(" ")[0]] += 1
        if len(shown) < arguments.max:
            shown.append(each)
    target = arguments.to or f"group {arguments.group}"
    rows = [
        (
            each.letter.id,
            each.letter.origin_message_id,
            each.letter.topic or GONE,
            "" if each.repair is None else target,
            each.change,
            each.letter.reason,
        )
        for each in shown
    ]
    lines = table(["id", "message id", "from", "target", "change", "dead because"], rows, "nothing to send back")
    if (more := sum(counts.values()) - len(shown)) > 0:
        lines.append(f"… and {more} more; --max shows them")
    ends = f"{counts['REPAIR']} repaired, {counts['NONE']} as they are, {counts[LEFT]} left; nothing has moved"
    document = {
        "dry_run": True,
        "group": arguments.group,
        "target": arguments.to,
        "repaired": counts["REPAIR"],
        "unchanged": counts["NONE"],
        "left": counts[LEFT],
        "redrives": [_document(each, arguments.to) for each in shown],
    }
    return say(arguments, document, [*lines, "", ends])


def _document(each: Repaired, target: str | None) -> dict[str, Any]:
    return {
        "dead_letter_id": each.letter.id,
        "message_id": each.letter.origin_message_id,
        "topic": each.letter.topic,
        "target": None if each.repair is None else target,
        "change": each.change,
        "reason": each.letter.reason,
    }
