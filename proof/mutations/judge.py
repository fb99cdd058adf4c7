"""Makes the mutants of a room and judges all of them."""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from proof.mutations.forks import KILLED, SETTLED, Task, Verdict, nothing, run_forks, run_surely
from proof.mutations.host import (
    BUDGET_S,
    CONTROL_S,
    PATIENCE,
    SECONDS_MIN,
    Baseline,
    Host,
    Judged,
    OnVerdict,
    no_one_listens,
    pytest_options,
    quickest,
)
from proof.mutations.imported import ImportedTrial, load_others
from proof.mutations.mutants import Mutant, mutants_of
from proof.mutations.near import lines_near
from proof.mutations.postgres import drop_databases, shared_postgres
from proof.mutations.record import in_drawn_order
from proof.mutations.rooms import MutatedRoom
from proof.mutations.types import by_types

HOUR_S = 3_600.0
FIRST_LOOK = 60  # tests
# Importing the project, and collecting.
IMPORT_SECONDS_MAX = 60.0


class RoomResult(NamedTuple):
    """The verdicts on mutants of a room."""

    mutants: list[Mutant]
    verdicts: list[Verdict]

    @classmethod
    def of(cls, mutants: Sequence[Mutant], known: Sequence[Verdict | None]) -> RoomResult:
        """Of those that have a verdict."""
        judged = [(one, verdict) for one, verdict in zip(mutants, known, strict=True) if verdict is not None]
        return cls([one for one, _ in judged], [verdict for _, verdict in judged])

    @property
    def killed(self) -> int:
        return sum(verdict in KILLED for verdict in self.verdicts)

    @property
    def refused(self) -> int:
        return self.verdicts.count(Verdict.REFUSED)

    @property
    def score(self) -> float:
        """The part of the mutants that the tests notice, 0 to 1; without those that mypy refuses in their place."""
        needed = len(self.mutants) - self.refused
        return self.killed / needed if needed else 1.0

    def survivors(self) -> list[Mutant]:
        return [each for each, verdict in zip(self.mutants, self.verdicts, strict=True) if verdict not in SETTLED]


class Selection(NamedTuple):
    """Which mutants of a room are judged."""

    only: str = ""  # text in the place
    sample: int = 0  # how many, drawn by `seed`; 0: all
    seed: int = 0
    with_imports: bool = True  # also those that have to be imported, one second or more each

    @property
    def is_whole(self) -> bool:
        return self._replace(sample=0, seed=0) == Selection()

    def of(self, mutants: Sequence[Mutant], places: Iterable[int]) -> list[int]:
        """The places of those that are judged, in the order of the list."""
        chosen = [
            at for at in places if self.only in mutants[at].place and (self.with_imports or mutants[at].is_in_body)
        ]
        return sorted(in_drawn_order(chosen, len(mutants), self.seed)[: self.sample or None])


def mutants_in(room: MutatedRoom, root: Path) -> list[Mutant]:
    """All of them, one file after the other."""
    return [each for path in room.sources for each in mutants_of(path, root)]


def judge(
    room: MutatedRoom,
    root: Path,
    mutants: Sequence[Mutant],
    jobs: int,
    seconds_min: float = SECONDS_MIN,
    on_verdict: OnVerdict = no_one_listens,
) -> list[Verdict]:
    """Judge mutants of a room, in their order.

    seconds_min: what a mutant may take at least. on_verdict: called with each verdict as soon as there is one, in this
    process or a fork. Raises `RuntimeError` if a test fails without a change.
    """
    with shared_postgres() if room.with_postgres else nullcontext():
        return _judge(room, root, mutants, jobs, seconds_min, on_verdict)


def _judge(
    room: MutatedRoom, root: Path, mutants: Sequence[Mutant], jobs: int, seconds_min: float, on_verdict: OnVerdict
) -> list[Verdict]:
    with tempfile.TemporaryDirectory(prefix="popmq-mutations-") as folder:
        answer = Path(folder) / "answer.json"
        host = Host(root, mutants, jobs, answer, seconds_min, on_verdict, with_postgres=room.with_postgres)
        judged = _host(room, host)
    if judged.baseline.failed:
        raise RuntimeError(f"These tests fail without a change: {', '.join(judged.baseline.failed)}")
    verdicts = dict(judged.verdicts)
    left = [index for index in range(len(mutants)) if index not in verdicts]
    if left:
        load_others(judged.baseline.loaded)
        _check_control(mutants[left[0]].path, room, root, judged.baseline)
        imports = [_Import(index, mutants[index], room, root, judged.baseline) for index in left]
        for done, (index, verdict) in enumerate(_judge_imports(imports, jobs), start=1):
            verdicts[index] = verdict
            on_verdict(index, verdict)
            if done % 20 == 0 or done == len(imports):
                sys.stderr.write(f"  {done} of {len(imports)} mutants that are imported\n")
    if room.is_typed:
        for index, verdict in verdicts.items():
            if (typed := by_types(verdict, mutants[index], root)) is not verdict:
                verdicts[index] = typed
                on_verdict(index, typed)
    return [verdicts[index] for index in range(len(mutants))]


def _host(room: MutatedRoom, host: Host) -> Judged:
    """Judge in a fork, which imports the project; this process stays without it."""
    log = host.answer.with_suffix(".log")

    def run(_patience: float) -> int:
        output = os.open(log, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        return int(pytest.main([*pytest_options, *room.options, *room.tests], plugins=[host]))

    [(_, verdict)] = run_forks([Task("host", run, 6 * HOUR_S)], 1)
    if verdict is not Verdict.SURVIVED or not host.answer.exists():
        raise RuntimeError(f"pytest did not run: {verdict}\n{log.read_text() if log.exists() else ''}")
    baseline, verdicts = json.loads(host.answer.read_text())
    return Judged(Baseline(*baseline), {int(index): Verdict(each) for index, each in verdicts.items()})


def _check_control(path: str, room: MutatedRoom, root: Path, baseline: Baseline) -> None:
    """The same file without a change has to survive its import."""
    same = Mutant(path, "", "", (0, 0), is_in_body=False, source=(root / path).read_text())
    control = _Import(-1, same, room, root, baseline)
    [(_, verdict)] = run_forks([control.trial(control.tests(CONTROL_S))], 1, _after(room))
    if verdict is not Verdict.SURVIVED:
        raise RuntimeError(f"{path} is imported without a change, and yet: {verdict}")


def _after(room: MutatedRoom) -> Callable[[int], None]:
    return drop_databases if room.with_postgres else nothing


class _Import(NamedTuple):
    """A mutant that has to be imported."""

    key: int
    mutant: Mutant
    room: MutatedRoom
    root: Path
    baseline: Baseline

    def tests(self, budget_s: float = BUDGET_S) -> list[str]:
        return _chosen(self.mutant, self.root, self.baseline, budget_s)

    def trial(self, tests: Sequence[str]) -> Task[int]:
        limit = max(SECONDS_MIN, PATIENCE * sum(self.baseline.seconds[each] for each in tests)) + IMPORT_SECONDS_MAX
        return Task(self.key, ImportedTrial(self.root, self.mutant, self.room.options, tests), limit)


def _judge_imports(imports: Sequence[_Import], jobs: int) -> Iterator[tuple[int, Verdict]]:
    """First by a few tests: to collect all of them takes seconds, and most mutants fail soon."""
    waiting = {each.key: each for each in imports}
    after = _after(imports[0].room)
    for key, verdict in run_forks((each.trial(_first_look(each.tests())) for each in imports), jobs, after):
        if verdict in KILLED:
            del waiting[key]
            yield key, verdict
    yield from run_surely((each.trial(each.tests()) for each in waiting.values()), jobs, after)


def _first_look(tests: Sequence[str]) -> list[str]:
    """The first of these tests, as far as they are in the two files that have most of them."""
    first = tests[:FIRST_LOOK]
    files = Counter(each.partition("::")[0] for each in first).most_common(2)
    return [each for each in first if each.partition("::")[0] in dict(files)]


def _chosen(mutant: Mutant, root: Path, baseline: Baseline, budget_s: float) -> list[str]:
    """First the tests that run what changes, then those whose files import the module, then those that reach it, then
    others: as many as fit.

    A test of a constant reaches no line: what runs while a module is imported belongs to no test.
    """
    near = lines_near(mutant, (root / mutant.path).read_text())
    reached = baseline.reached[mutant.path]
    nearest = {test for line, tests in reached.items() if line in near for test in tests}
    tests = baseline.seconds.keys()
    importing = {test for test in tests if mutant.path in _imported_by(root / test.partition("::")[0])}
    chosen: dict[str, None] = {}
    for some in (nearest, importing, {test for tests in reached.values() for test in tests}, tests):
        left_s = budget_s - sum(baseline.seconds[each] for each in chosen)
        chosen |= dict.fromkeys(quickest(some - chosen.keys(), baseline.seconds, max(0.0, left_s)))
    return [*chosen]


@cache
def _imported_by(path: Path) -> frozenset[str]:
    """The modules that a file may import by name, as paths. Names of other things are among them."""
    imports = [each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.ImportFrom)]
    names = {f"{each.module}.{one.name}" for each in imports for one in each.names}
    return frozenset(f"{name.replace('.', '/')}.py" for name in names | {f"{each.module}" for each in imports})
