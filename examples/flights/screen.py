"""The output of the demo; on a terminal the middle part is updated in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from examples.flights.cancellations import Cancellations
from examples.flights.groups import ARRIVALS
from examples.flights.proof import Proof
from examples.flights.watching import Lag

CARRIERS_SHOWN = 8


class Screen:
    """Prints steps, and between them a live table."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._steps = 0
        self._live: Live | None = None
        self._progress = Progress()
        self._bars: dict[str, TaskID] = {}
        self._total = 0

    def step(self, title: str) -> None:
        self._steps += 1
        self._console.print(f"\n[bold cyan]{self._steps}[/]  [bold]{title}[/]")

    def say(self, words: str) -> None:
        self._console.print(Text(f"   {words}"), soft_wrap=True)

    def note(self, words: str) -> None:
        """A line above the live table."""
        self._console.print(Text(f"   {words}", style="yellow"))

    def failed(self, words: str) -> None:
        self._console.print(Text(f"\nfailed: {words}", style="bold red"))

    @contextmanager
    def waiting(self, words: str) -> Iterator[None]:
        with self._console.status(words):
            yield

    # ---- The live part ----

    @contextmanager
    def watching(self, total: int) -> Iterator[None]:
        self._progress = Progress(
            TextColumn("   {task.description:<18}"), BarColumn(32), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._bars = {}
        self._total = total
        with Live(console=self._console, auto_refresh=False) as self._live:
            yield
        self._live = None
        if not self._console.is_terminal:
            self._console.print()

    def show(self, sent: int, groups: Mapping[str, Lag]) -> None:
        """`sent` comes from the producers; all other numbers come from the view `group_lag`."""
        self._advance("sent", sent)
        for name, lag in groups.items():
            self._advance(f"{name}, ended", lag.committed + lag.dead_letters)
        if self._live is not None:
            self._live.update(Group(self._progress, _states(groups)), refresh=self._console.is_terminal)

    def _advance(self, name: str, done: int) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=self._total)
        self._progress.update(self._bars[name], completed=done)

    # ---- Results ----

    def cancellations(self, found: Cancellations, names: Mapping[str, str], parquet: Path) -> None:
        table = _table("carrier", *found.origins, "cancelled")
        for carrier in found.carriers[:CARRIERS_SHOWN]:
            counts = [f"{found.counts.get((carrier, origin), 0):,}" for origin in found.origins]
            table.add_row(f"{carrier}  {names.get(carrier, '')}", *counts, f"{found.of_carrier(carrier):,}")
        if rest := found.carriers[CARRIERS_SHOWN:]:
            table.add_row(f"{len(rest)} more", *([""] * len(found.origins)), f"{sum(map(found.of_carrier, rest)):,}")
        self._print(table)
        self.say(f"{found.written:,} dead letters written as Parquet: {_short(parquet)}")

    def proof(self, proofs: Sequence[Proof], holds: bool, out: Path) -> None:
        shown = [name for name in _PROVED if name != "waiting" or any(each.waiting for each in proofs)]
        table = _table("group", *shown)
        for each in proofs:
            table.add_row(each.consumer_group, *(f"{getattr(each, name):,}" for name in shown))
        self._print(table)
        for each in proofs:
            waiting = f" + waiting {each.waiting:,}" if each.waiting else ""
            self.say(
                f"{each.consumer_group}: sent {each.sent:,} = committed {each.committed:,}"
                f" + dead letters {each.dead_letters:,}{waiting};"
                f" duplicates while held {each.duplicates}; lost {each.lost}"
            )
        verdict = Text("   proved", style="bold green") if holds else Text("   NOT proved", style="bold red")
        self._console.print(verdict)
        self.say(f"ask again: sqlite3 {_short(out / 'popmq.db')} < {_short(out / 'proof.sql')}")

    def sent_back(self, classes: Mapping[str, int], redriven: int, taken: int) -> None:
        self.say("dead letters: " + ", ".join(f"{count:,} {name}" for name, count in classes.items()))
        self.say(f"sent back with an arrival time: {redriven:,}; taken by '{ARRIVALS}' this time: {taken:,}")
        self.say("each with its story: SELECT * FROM lineage")

    def pictures(self, flight: Path, states: Path) -> None:
        self.say(f"a flight that failed, its holds and attempts: {_short(flight)}")
        self.say(f"the states of all flights over time: {_short(states)}")

    def console(self, address: str, flight: str) -> None:
        self.say(f"the console: {address}")
        self.say(f"the flight of the picture: {address}messages/{flight}")
        self.say(f"the dead letters: {address}dead-letters/{ARRIVALS}")
        self.say("nobody has to sign in: this server has no users, and only this machine reaches it")
        self.say("it runs until Ctrl-C")

    def _print(self, table: Table) -> None:
        self._console.print(_indented(table))


_STATES = ("ready", "inflight", "waiting_retry", "committed", "dead_letters")
_PROVED = ("sent", "committed", "dead_letters", "waiting", "lost", "ended_twice", "duplicates")


def _states(groups: Mapping[str, Lag]) -> Table:
    table = _table("group", *_STATES)
    for name, lag in groups.items():
        table.add_row(name, *(f"{getattr(lag, state):,}" for state in _STATES))
    return _indented(table)


def _table(name: str, *numbers: str) -> Table:
    columns = [
        Column(number.replace("_", " "), justify="right", min_width=max(map(len, number.split("_"))))
        for number in numbers
    ]
    return Table(Column(name, min_width=8), *columns, box=None, header_style="dim")


def _indented(table: Table) -> Table:
    around = Table.grid(padding=(0, 0, 0, 2))
    around.add_row("", table)
    return around


def _short(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
