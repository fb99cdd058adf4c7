"""The screen of `popmq top` on a terminal, which needs `rich`. Frames are made from samples alone."""

from __future__ import annotations

import select
import sys
import termios
import tty
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final, NamedTuple

from rich.console import Console, Group, JustifyMethod
from rich.live import Live
from rich.table import Table
from rich.text import Text

from popclient.admin import Admin
from popclient.cli.output import GONE, visible
from popclient.cli.top.sample import SORTS, TopRow, TopSample, heading, in_order, oldest_text, rows_of, sample
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


def frame(now: TopSample, rows: list[TopRow], sort: str, trouble: str, width: int, height: int | None = None) -> Group:
    """The whole screen, of a width in characters; `height`: lines, None for as many as needed.

    trouble: the failure since this sample; empty if there is none.
    """
    version, numbers = heading(now, rows)
    head = Text.assemble((visible(version), "bold"), numbers)
    keys = "  ".join(f"{key} {name}" for key, (name, _) in SORTS.items())
    foot = Text(f"sorted by {SORTS[sort][0]}; keys: {keys}  {QUIT} quit", style="dim")
    hints = [Text(f"hint: {visible(each)}", style="yellow") for each in now.status.hints]
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
            oldest_text,
        ),
        _TopColumn("MEMBERS", lambda row: str(row.members), from_width=WIDE),
        _TopColumn("", lambda row: "paused" if row.is_paused else "", "left", "bold yellow"),
    ]


def _counted(count: Callable[[TopRow], int]) -> Callable[[TopRow], str]:
    return lambda row: f"{count(row):,}".replace(",", " ")


def _widest(column: _TopColumn, rows: list[TopRow]) -> int:
    return max(len(column.heading), *(len(column.cell(row)) for row in rows))


def watch(admin: Admin, arguments: Namespace) -> None:
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


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,.0f}".replace(",", " ") if rate >= 10 else f"{rate:.1f}"
