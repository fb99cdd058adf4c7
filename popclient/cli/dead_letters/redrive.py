"""`popmq dlq redrive|plans|plan|cancel`: sends dead letters back, repaired or not, by plans that the server keeps."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from popclient.admin import Admin, DeadLetter, Redrive, RedriveOrder, RedrivePlan, Repair
from popclient.admin.pace import Pace
from popclient.admin.requests import new_plan_id
from popclient.cli import INTERRUPTED
from popclient.cli.arguments import UsageError, counted
from popclient.cli.dead_letters.selection import UserFunction, admin_of, given_options, selection_of
from popclient.cli.output import GONE, ProgressLog, fields, picked, report, table, table_of
from popclient.errors import PopError

_DRY_COLUMNS: Final = "id message_id from target change reason"


def redrive(arguments: Namespace) -> int:
    """Make a plan and run it; with --dry-run only make it; with --plan continue one. Exit code 130 if interrupted."""
    _check_arguments(arguments)
    progress_log = ProgressLog()
    plan_id = arguments.plan or new_plan_id()
    with admin_of(arguments) as admin:
        try:
            if arguments.repair:
                return redrive_repaired(arguments, admin, plan_id, progress_log)
            if arguments.group and not arguments.plan and not _has_any(arguments, admin):
                return _report_none(arguments)
            plan = _planned(arguments, admin, plan_id)
            if arguments.dry_run:
                return _show_dry_run(arguments, admin, plan)
            return _run(arguments, admin, plan, progress_log)
        except KeyboardInterrupt:
            progress_log.write(_how_to_continue(arguments, plan_id))
            return INTERRUPTED
        except PopError:
            if progress_log.has_progress:
                progress_log.write(_how_to_continue(arguments, plan_id))
            raise


def list_plans(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        plans = admin.redrive_plans(arguments.group)
    lines = table_of(
        plans,
        "plan group state sent_back skipped not_sent_yet target reason by created",
        "no redrive plans",
        plan="plan_id",
        sent_back="redriven",
        not_sent_yet="planned",
        by="created_by",
        created="created_at",
    )
    return report(arguments, list(map(plan_document, plans)), lines)


def show_plan(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        plan = admin.redrive_plan(arguments.plan)
        shown = list(islice(admin.redrives(arguments.plan), arguments.max))
    document = {**plan_document(plan), "redrives": redrive_documents(shown)}
    return report(arguments, document, [*_plan_lines(plan), "", *redrive_table(plan, shown)])


def cancel(arguments: Namespace) -> int:
    with admin_of(arguments) as admin:
        plan = admin.cancel_redrive(arguments.plan)
    line = f"plan {plan.plan_id} is {plan.state}: {_done(plan)}, {_stay_dead(plan.planned)}"
    return report(arguments, plan_document(plan), [line])


def _done(plan: RedrivePlan | Tally) -> str:
    return f"{plan.redriven:,} sent back, {plan.skipped:,} skipped"


def _stay_dead(count: int) -> str:
    return f"{count:,} {'stays' if count == 1 else 'stay'} dead"


def redrive_table(plan: RedrivePlan, shown: Sequence[Redrive], *, dry_run: bool = False) -> list[str]:
    """A dry run has no results to show."""
    lines = table_of(
        shown,
        _DRY_COLUMNS if dry_run else f"{_DRY_COLUMNS} state outcome note",
        "nothing to send back",
        id="dead_letter_id",
        target=lambda each: each.target or f"group {plan.group}",
        **{"from": "topic"},
    )
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


def _check_arguments(arguments: Namespace) -> None:
    if arguments.group:
        return
    if not arguments.plan:
        raise UsageError("name the group whose dead letters to redrive with --group GROUP, or a plan with --plan PLAN")
    if arguments.repair:
        raise UsageError(
            "--repair needs --group GROUP: a plan does not store the repairs of messages that were not sent yet"
        )
    if given := given_options(arguments):
        raise UsageError(f"{given[0]} selects among the dead letters of a group; name it with --group GROUP")


def _has_any(arguments: Namespace, admin: Admin) -> bool:
    return next(iter(admin.dead_letters(selection_of(arguments), without_bodies=True)), None) is not None


def _report_none(arguments: Namespace) -> int:
    """Makes no plan: a plan without messages would only lengthen the list of `popmq dlq plans`."""
    document = {"plan_id": None, "group": arguments.group, "planned": 0, "redriven": 0, "skipped": 0}
    return report(arguments, document, [f"no dead letter of {arguments.group} is selected: nothing to send back"])


def _planned(arguments: Namespace, admin: Admin, plan_id: str) -> RedrivePlan:
    """The plan of that id. If a group is given, the server creates or completes it."""
    if not arguments.group:
        plan = admin.redrive_plan(plan_id)
        if plan.state == "DRAFT":
            raise UsageError(
                f"plan {plan_id} is not complete; repeat the command that created it, with --plan {plan_id}"
            )
    else:
        selection = selection_of(arguments)
        plan = admin.plan_redrive(selection, reason=arguments.reason, target=arguments.to, plan_id=plan_id)
    if arguments.to is not None and plan.target != arguments.to:
        goes = f"to topic {plan.target}" if plan.target else f"back to group {plan.group}"
        raise UsageError(
            f"plan {plan_id} sends {goes}, not to topic {arguments.to}; leave --to out, or create a new plan"
        )
    return plan


def _show_dry_run(arguments: Namespace, admin: Admin, plan: RedrivePlan) -> int:
    shown = list(islice(admin.redrives(plan.plan_id), arguments.max))
    document = {"dry_run": True, **plan_document(plan), "redrives": redrive_documents(shown)}
    ends = [
        "",
        f"nothing was sent; run the plan: popmq dlq redrive --plan {plan.plan_id}",
        f"or cancel it: popmq dlq cancel {plan.plan_id}",
    ]
    if not plan.planned:
        ends = []
    return report(arguments, document, [*redrive_table(plan, shown, dry_run=True), *ends])


def _run(arguments: Namespace, admin: Admin, plan: RedrivePlan, progress_log: ProgressLog) -> int:
    progress_log.write(f"plan {plan.plan_id}: {counted(plan.planned, 'dead letter')} of {plan.group} to send back")
    for step in admin.run_redrive(plan.plan_id, rate=arguments.rate) if plan.planned else ():
        plan = step.plan
        progress_log.progress(f"{_done(plan)}, {plan.planned:,} not sent yet")
    line = f"plan {plan.plan_id}: {_done(plan)}, {plan.planned:,} not sent yet"
    if plan.skipped:
        line += f"; why: popmq dlq plan {plan.plan_id}"
    return report(arguments, plan_document(plan), [line])


def _how_to_continue(arguments: Namespace, plan_id: str) -> str:
    same = "the same command" if arguments.plan else f"the same command with --plan {plan_id}"
    return f"stopped; {same} continues here, and sends nothing twice"


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
            ("sent back", plan.redriven),
            ("skipped", plan.skipped),
            ("not sent yet", plan.planned),
        ]
    )


# Bodies of one request; the server's limit is four times as much, so one more repair fits.
BATCH_BYTES: Final = 8 * 1024 * 1024
LEFT: Final = "LEFT"


class Repaired(NamedTuple):
    """A dead letter, and the result of the user's function; None: it stays a dead letter."""

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
        """The size of its new body in bytes; of a text the largest possible size."""
        body = self.repair.body if self.repair else None
        return len(body) * (4 if isinstance(body, str) else 1) if body else 0


class Tally:
    """The numbers of messages that were sent back, that were no longer dead letters, and that stay dead letters."""

    def __init__(self) -> None:
        self.redriven = 0
        self.skipped = 0
        self.left = 0

    def __str__(self) -> str:
        return f"{_done(self)}, {_stay_dead(self.left)}"


def redrive_repaired(arguments: Namespace, admin: Admin, plan_id: str, progress_log: ProgressLog) -> int:
    repair = UserFunction(arguments.repair, Repair)
    letters = admin.dead_letters(selection_of(arguments))
    judged = (Repaired(letter, repair(letter)) for letter in letters)
    if arguments.dry_run:
        return _show(arguments, judged)
    progress_log.write(f"plan {plan_id}: dead letters of {arguments.group} are repaired and sent back")
    tally = _send(arguments, admin, plan_id, judged, progress_log)
    if arguments.plan and not tally.redriven + tally.skipped:
        admin.redrive_dead_letters(plan_id, arguments.group, [], target=arguments.to, reason=arguments.reason)
    document = {"plan_id": plan_id, "group": arguments.group, **picked(tally, "redriven skipped left")}
    line = f"plan {plan_id}: {tally}"
    if tally.skipped:
        line += f"; why: popmq dlq plan {plan_id}"
    return report(arguments, document, [line])


def batches(judged: Iterable[Repaired], count: int, size: int = BATCH_BYTES) -> Iterator[list[Repaired]]:
    """In order, with at most `count` messages to send in each, and about `size` bytes of new bodies."""
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
    """Calls the function for all dead letters, and shows some."""
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
            "stays dead" if each.repair is None else each.change,
            each.letter.reason,
        )
        for each in shown
    ]
    lines = table(["id", "message id", "from", "target", "change", "dead because"], rows, "nothing to send back")
    if (more := sum(counts.values()) - len(shown)) > 0:
        lines.append(f"… and {more} more; --max shows them")
    ends = (
        f"{counts['REPAIR']:,} would be sent back repaired, {counts['NONE']:,} without a change,"
        f" {_stay_dead(counts[LEFT])}; nothing was sent"
    )
    document = {
        "dry_run": True,
        "group": arguments.group,
        "target": arguments.to,
        "repaired": counts["REPAIR"],
        "unchanged": counts["NONE"],
        "left": counts[LEFT],
        "redrives": [_document(each, arguments.to) for each in shown],
    }
    return report(arguments, document, [*lines, "", ends])


def _document(each: Repaired, target: str | None) -> dict[str, Any]:
    return {
        "dead_letter_id": each.letter.id,
        "message_id": each.letter.origin_message_id,
        "topic": each.letter.topic,
        "target": None if each.repair is None else target,
        "change": each.change,
        "reason": each.letter.reason,
    }
