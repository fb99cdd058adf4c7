"""`popmq top`: the groups of a server, live on a terminal.

A sample has the answers of the server at one moment. Rates are the difference of two samples. Frames are made from
samples alone; only `top` uses the server and the terminal.
"""

from __future__ import annotations

import select
import sys
import termios
import tty
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, Final, NamedTuple

from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from popclient.admin import Admin, Status
from popclient.cli import OK
from popclient.cli.arguments import UsageError, client_config
from popclient.cli.output import GONE, duration_text, report, visible
from popclient.errors import Unreachable

# The states with their colours and shapes, which are the same in the console.
STATES: Final = (
    ("ready", "○", "dodger_blue1"),
    ("inflight", "◐", "dark_orange"),
    ("waiting retry", "◔", "medium_purple"),
    ("commit", "●", "green3"),
    ("dlq", "✕", "red"),
)
QUIT: Final = "q"
# Widths in characters: from WIDE on, columns have their whole headings; below NARROW there are only counts and ages.
WIDE, NARROW = 130, 72


class TopSample(NamedTuple):
    """Answers of the server. `members`: connected consumers by group; `paused`: the groups with a pause."""

    status: Status
    members: Mapping[str, int]
    paused: frozenset[str]


class TopRow(NamedTuple):
    """One group in one topic; an empty topic: the deleted ones. Rates are messages per second; None before the second
    sample."""

    group: str
    topic: str
    ready: int
    inflight: int
    waiting_retry: int
    commit: int
    dlq: int
    rate_in: float | None
    rate_done: float | None
    oldest_ready: timedelta | None
    members: int
    is_paused: bool


# The orders by their keys: name, and sort key.
SORTS: Final[dict[str, tuple[str, Callable[[TopRow], Any]]]] = {
    "r": ("ready", lambda row: -row.ready),
    "o": ("oldest ready", lambda row: -(row.oldest_ready or timedelta())),
    "i": ("in/s", lambda row: -(row.rate_in or 0)),
    "d": ("dlq", lambda row: -row.dlq),
    "n": ("name", lambda _: 0),
}


def top(arguments: Namespace) -> int:
    """Show the groups until `q` is pressed, or with `--once` one frame."""
    with Admin(client_config(arguments)) as admin:
        if arguments.once or arguments.json:
            now = sample(admin)
            rows = in_order(rows_of(now, None), arguments.sort)
            if arguments.json:
                return report(arguments, [_document(row) for row in rows], [])
            console = Console()
            console.print(frame(now, rows, arguments.sort, "", console.width))
            return OK
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise UsageError("popmq top needs a terminal; print one frame with --once, or JSON with --json")
        _watch(admin, arguments)
    return OK


def sample(admin: Admin) -> TopSample:
    """Get all values of one frame from the server."""
    members = Counter(each.group for each in admin.list_clients() if each.group)
    paused = frozenset(each.name for each in admin.list_groups() if each.pauses)
    return TopSample(admin.status(), members, paused)


def rows_of(now: TopSample, before: TopSample | None) -> list[TopRow]:
    """A row for each group and topic."""
    earlier = {} if before is None else {(each.group, each.namespace, each.topic): each for each in before.status.lag}
    seconds = 0.0 if before is None else (now.status.now - before.status.now).total_seconds()
    rows = []
    for each in (*now.status.lag, *now.status.dead_elsewhere):
        was = earlier.get((each.group, each.namespace, each.topic))
        left = each.ready + each.inflight + each.waiting_retry
        rate_in = rate_done = None
        if was is not None and seconds > 0:
            rate_in = max(0.0, (each.appended - was.appended) / seconds)
            left_before = was.ready + was.inflight + was.waiting_retry
            rate_done = max(0.0, (each.appended - left - was.appended + left_before) / seconds)
        rows.append(
            TopRow(
                each.group,
                each.topic,
                each.ready,
                each.inflight,
                each.waiting_retry,
                max(0, each.stored - left - each.dead_letters),
                each.dead_letters,
                rate_in,
                rate_done,
                _age(each.oldest_ready, now.status.now),
                now.members.get(each.group, 0),
                each.group in now.paused,
            )
        )
    return rows


def in_order(rows: list[TopRow], sort: str) -> list[TopRow]:
    """The rows in the order of this key of `SORTS`, then by name."""
    return sorted(rows, key=lambda row: (SORTS[sort][1](row), row.group, row.topic))


def frame(now: TopSample, rows: list[TopRow], sort: str, trouble: str, width: int, height: int | None = None) -> Group:
    """The whole screen, of a width in characters; `height`: lines, None for as many as needed.

    trouble: the failure since this sample; empty if there is none.
    """
    status = now.status
    up = duration_text(timedelta(seconds=(status.now - status.started_at) // timedelta(seconds=1)))
    behind = sum(1 for row in rows if row.ready)
    head = Text.assemble(
        (f"popmq {visible(status.version)}", "bold"),
        f"  up {up}  {status.messages} messages  {status.topics} topics  {status.groups} groups, {behind} with messages"
        f" ready  {status.connected_clients} clients",
    )
    keys = "  ".join(f"{key} {name}" for key, (name, _) in SORTS.items())
    foot = Text(f"sorted by {SORTS[sort][0]}; keys: {keys}  {QUIT} quit", style="dim")
    hints = [Text(f"hint: {visible(each)}", style="yellow") for each in status.hints]
    wrong = [Text(visible(trouble), style="bold red")] if trouble else []
    around = [head, *wrong, *hints, foot]
    shown = rows
    if height is not None:
        room = height - 2 - sum(len(each.wrap(Console(width=width), width)) for each in around)
        shown = rows[: max(1, room)] if len(rows) > room + 1 else rows
    left_out = [Text(f"and {len(rows) - len(shown)} more rows", style="dim")] if len(shown) < len(rows) else []
    return Group(head, *wrong, _table(shown, width), *left_out, *hints, foot)


def _table(rows: list[TopRow], width: int) -> Table:
    """Cuts long names, but no numbers: in a narrow terminal states have only their shapes, and columns are left out."""
    if not rows:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_row("no group has received from a topic yet")
        return table
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2 if width >= WIDE else 1, 0, 0))
    columns = [each for each in _columns(width) if width >= each.from_width]
    for column in columns:
        table.add_column(
            column.heading,
            justify=column.justify,
            style=column.style,
            no_wrap=column.justify == "right",  # rich makes only columns narrower that may wrap
            overflow="ellipsis",
            min_width=None if column.justify == "left" else _widest(column, rows),
        )
    for row in rows:
        table.add_row(*(Text(column.cell(row)) for column in columns))
    return table


class _TopColumn(NamedTuple):
    heading: str
    cell: Callable[[TopRow], str]
    justify: JustifyMethod = "right"
    style: str = ""
    from_width: int = 0  # of the terminal; in a narrower one the column is left out


def _columns(width: int) -> list[_TopColumn]:
    is_wide = width >= WIDE
    counts: dict[str, Callable[[TopRow], int]] = {
        "ready": lambda row: row.ready,
        "inflight": lambda row: row.inflight,
        "waiting retry": lambda row: row.waiting_retry,
        "commit": lambda row: row.commit,
        "dlq": lambda row: row.dlq,
    }
    return [
        _TopColumn("GROUP", lambda row: visible(row.group), "left"),
        _TopColumn("TOPIC", lambda row: visible(row.topic or GONE), "left", from_width=NARROW),
        *(
            _TopColumn(f"{shape} {name.upper()}" if is_wide else shape, _counted(counts[name]), style=colour)
            for name, shape, colour in STATES
        ),
        _TopColumn("IN/S", lambda row: _rate(row.rate_in), from_width=NARROW),
        _TopColumn("DONE/S", lambda row: _rate(row.rate_done), from_width=NARROW),
        _TopColumn(
            "OLDEST READY" if is_wide else "OLDEST",
            lambda row: "" if row.oldest_ready is None else duration_text(row.oldest_ready),
        ),
        _TopColumn("MEMBERS", lambda row: str(row.members), from_width=WIDE),
        _TopColumn("", lambda row: "paused" if row.is_paused else "", "left", "bold yellow"),
    ]


def _counted(count: Callable[[TopRow], int]) -> Callable[[TopRow], str]:
    return lambda row: f"{count(row):,}".replace(",", " ")


def _widest(column: _TopColumn, rows: list[TopRow]) -> int:
    return max(len(column.heading), *(len(column.cell(row)) for row in rows))


def _watch(admin: Admin, arguments: Namespace) -> None:
    """Draw until the operator quits; if the server does not answer, ask again."""
    sort, before, trouble = arguments.sort, None, ""
    now = sample(admin)
    interval = arguments.interval.total_seconds()
    console = Console()
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            rows = in_order(rows_of(now, before), sort)
            live.update(frame(now, rows, sort, trouble, *console.size), refresh=True)
            key = pressed(interval)
            if key == QUIT:
                return
            if key in SORTS:
                sort = key
                continue
            try:
                before, now, trouble = now, sample(admin), ""
            except Unreachable as error:
                trouble = error.sentence


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that returns the key that is pressed within some seconds; empty if there is none."""
    descriptor = sys.stdin.fileno()
    settings = termios.tcgetattr(descriptor)

    def pressed(seconds: float) -> str:
        # Short waits, because a Ctrl-C just before `select` does not end it.
        end = monotonic() + seconds
        while (left := end - monotonic()) > 0:
            readable, _, _ = select.select([descriptor], [], [], min(left, 0.5))
            if readable:
                return sys.stdin.read(1).lower()
        return ""

    tty.setcbreak(descriptor)
    try:
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, settings)


def _age(moment: datetime | None, now: datetime) -> timedelta | None:
    """The time since the moment, in whole seconds."""
    return None if moment is None else timedelta(seconds=max(0, (now - moment) // timedelta(seconds=1)))


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}".replace(",", " ") if rate >= 10 else f"{rate:.1f}"


def _document(row: TopRow) -> dict[str, Any]:
    oldest = None if row.oldest_ready is None else row.oldest_ready // timedelta(milliseconds=1)
    named = row._asdict()
    del named["oldest_ready"]
    return {**named, "topic": row.topic or None, "oldest_ready_ms": oldest}
