"""Runs `popmq mirror`: looks at both sides, shows its plan or its progress."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popclient._tasks import begin_task
from popclient.admin.mirror_facts import MirrorReport
from popclient.cli import OK, REFUSED
from popclient.cli.arguments import UsageError
from popclient.cli.mirroring.sides import address, open_sides
from popclient.cli.output import print_error, report
from popclient.mirror.counts import State
from popclient.mirror.mirror import Mirror
from popclient.mirror.plans import Plan, Task, look, make
from popclient.mirror.popmq import PopMQSide
from popclient.mirror.records import FileRecord, Record, ServerRecord, new_owner, record_name, this_process
from popclient.mirror.side import Side

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_S = 10.0  # between two lines of progress that no terminal reads


def mirror(arguments: Namespace) -> int:
    """Until SIGINT or SIGTERM; with `--until-empty` until nothing is left."""
    return asyncio.run(_mirror(arguments))


async def _mirror(arguments: Namespace) -> int:
    async with open_sides(arguments, address(arguments, "from"), address(arguments, "to")) as (source, target):
        return await _between(arguments, source, target)


async def _between(arguments: Namespace, source: Side, target: Side) -> int:
    topics = list(dict.fromkeys(arguments.topic))
    groups = list(dict.fromkeys(arguments.group))
    if arguments.all_groups:
        groups = await all_groups(source, topics)
    plan = await look(source, target, topics, groups, arguments.reader)
    if arguments.dry_run:
        report(arguments, _plan_document(plan), _plan_lines(plan, source, target))
        return REFUSED if plan.refusals else OK
    plan.check()
    await make(plan, source, target)
    for note in plan.notes:
        print_error(f"popmq: {note}")
    mirrors = [Mirror(task, source, target, record(arguments.state, task, source, target)) for task in plan.tasks]
    with Shown(arguments, mirrors) as shown:
        ends = await _run_all(mirrors, shown, until_empty=arguments.until_empty)
    document = {"mirrors": [_document(each) for each in mirrors]}
    report(arguments, document, [f"{each.task.handover}: {_counts_text(each)}" for each in mirrors])
    for each in mirrors:
        if each.state is State.HELD:
            print_error(f"popmq: {each.sentence}")
    return REFUSED if State.HELD in ends else OK


async def _run_all(mirrors: Sequence[Mirror], shown: Shown, *, until_empty: bool) -> list[State]:
    """All at once. Raises AlreadyRuns; the others are stopped then."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    running = [begin_task(each.run(stop, until_empty=until_empty, told=shown.show)) for each in mirrors]
    for each in running:
        each.add_done_callback(lambda ended: stop.set() if not ended.cancelled() and ended.exception() else None)
    return list(await asyncio.gather(*running))


async def all_groups(source: Side, topics: Sequence[str]) -> list[str]:
    if not isinstance(source, PopMQSide):
        raise UsageError(f"{source.where} does not list the groups of a topic; name each with --group")
    status = await source.admin.status()
    found = sorted({each.group for each in status.lag if each.topic in topics})
    if not found:
        raise UsageError(f"{source.where} has no group for {', '.join(topics)}; leave --all-groups out")
    return found


def record(path: Path | None, task: Task, source: Side, target: Side, *, move_id: str = "") -> Record:
    """path: of the file that keeps it; None: a PopMQ server keeps it. move_id: of its move; empty: it has none."""
    topic, group = task.handover.topic, task.handover.group
    name = record_name(source.config.endpoints, target.config.endpoints, topic, group, move_id)
    if path is not None:
        return FileRecord(path.with_name(f"{path.name}.{name}"))
    keeper = next((each for each in (target, source) if isinstance(each, PopMQSide)), None)
    if keeper is None:
        raise UsageError("neither side is a PopMQ server; give --state FILE, where the mirror keeps its position")
    # A move runs once at a time, by its file: after a kill it need not wait for the lease of the process before.
    owner, host = move_id or new_owner(), this_process()
    said = MirrorReport(name, source.config.endpoints, target.config.endpoints, topic, group, owner, host)
    return ServerRecord(keeper.admin, said)


# What people and programs read.


class Shown:
    """The progress: bars on a terminal, if `rich` is installed; else a line now and then, in JSON with `--json`."""

    def __init__(self, arguments: Namespace, mirrors: Sequence[Mirror]) -> None:
        self._json = bool(arguments.json)
        self._mirrors = mirrors
        self._bars = _bars() if sys.stderr.isatty() and not self._json else None
        self._lines: dict[int, TaskID] = {}
        self._since, self._told_at = time.monotonic(), 0.0

    def __enter__(self) -> Shown:
        if self._bars is not None:
            self._bars.start()
        self._first = [each.counts.handed for each in self._mirrors]
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show(self) -> None:
        """Called after each report of a mirror."""
        now = time.monotonic()
        if self._bars is not None:
            for index, each in enumerate(self._mirrors):
                self._show_bar(self._bars, index, each, now)
        elif now - self._told_at >= LINE_S:
            self._told_at = now
            for each in self._mirrors:
                line = json.dumps(_document(each)) if self._json else f"{each.task.handover}: {_counts_text(each)}"
                print_error(line)

    def _show_bar(self, bars: Progress, index: int, of: Mirror, now: float) -> None:
        if index not in self._lines:
            self._lines[index] = bars.add_task(str(of.task.handover), rate=0.0, said="")
        handed = of.counts.handed
        total = None if of.counts.lag < 0 else handed + of.counts.lag
        rate = max(0, handed - self._first[index]) / max(0.001, now - self._since)
        bars.update(self._lines[index], completed=handed, total=total, rate=rate, said=of.sentence[:60])


def _bars() -> Progress | None:
    """Bars on standard error; None without the extra `cli`."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ModuleNotFoundError:
        return None
    rate = TextColumn("{task.fields[rate]:.0f}/s {task.fields[said]}", markup=False)
    name = TextColumn("{task.description}", markup=False)
    return Progress(name, BarColumn(), MofNCompleteColumn(), rate, console=Console(stderr=True))


def _document(of: Mirror) -> dict[str, Any]:
    counts = of.counts
    return {
        "topic": of.task.handover.topic,
        "group": of.task.handover.group,
        "way": of.task.handover.way.value,
        "state": of.state.value,
        "sentence": of.sentence,
        "handed": counts.handed,
        "repeated": counts.repeated,
        "dead_letters": counts.dead_letters,
        "scheduled": counts.scheduled,
        "unsure": counts.unsure,
        "bytes": counts.bytes,
        "lag": None if counts.lag < 0 else counts.lag,
    }


def _counts_text(of: Mirror) -> str:
    counts = of.counts
    parts = [f"{of.state.value}, {counts.handed} handed over"]
    others = {
        "of them there already": counts.repeated,
        "dead letters": counts.dead_letters,
        "delayed": counts.scheduled,
        "perhaps twice": counts.unsure,
    }
    parts += [f"{count} {name}" for name, count in others.items() if count]
    parts.append("lag unknown" if counts.lag < 0 else f"{counts.lag} left")
    return ", ".join(parts) + (f" ({of.sentence})" if of.sentence else "")


def _plan_document(plan: Plan) -> dict[str, Any]:
    return {
        "dry_run": True,
        "handovers": [
            {
                "topic": each.handover.topic,
                "group": each.handover.group,
                "way": each.handover.way.value,
                "lag": each.lag,
            }
            for each in plan.tasks
        ],
        "topics_to_create": [each.name for each in plan.topics],
        "groups_to_prepare": [each.name for each, _ in plan.groups],
        "notes": plan.notes,
        "refusals": plan.refusals,
    }


def _plan_lines(plan: Plan, source: Side, target: Side) -> list[str]:
    lines = [f"from {source.where} to {target.where}"]
    lines += [
        f"hands over {each.handover}: " + ("lag unknown" if each.lag is None else f"{each.lag} messages now")
        for each in plan.tasks
    ]
    lines += [f"makes topic {each.name} ({' and '.join(each.accepts)}, {each.queues} queues)" for each in plan.topics]
    lines += [f"makes or completes group {each.name}" for each, _ in plan.groups]
    lines += [f"note: {each}" for each in plan.notes]
    lines += [f"refused: {each}" for each in plan.refusals]
    return [*lines, "", "nothing has changed"]
