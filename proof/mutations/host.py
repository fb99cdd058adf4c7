"""Judges mutants of functions: in forks of a pytest process that has imported and collected everything.

The fork gives the loaded function the code of the mutant, and runs the tests that reach the changed lines.
"""

from __future__ import annotations

import gc
import importlib
import json
import mmap
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import coverage
import pytest

from proof.mutations.exchange import exchange, functions_of
from proof.mutations.forks import (
    BROKEN,
    FAILED,
    KILLED,
    PASSED,
    Task,
    Verdict,
    end_after,
    nothing,
    run_forks,
    run_surely,
    silence,
)
from proof.mutations.mutants import Mutant
from proof.mutations.postgres import drop_databases, make_template
from proof.mutations.rebound import Rebinding, rebinding_of

# What a mutant may take: of the time that its tests take without a change, and at least.
PATIENCE = 10
SECONDS_MIN = 15.0
BASELINE_SECONDS_MAX = 900.0
# What the tests of a mutant that survives may take, without a change. Slower tests do not judge it.
BUDGET_S = 30.0
# What the tests of a file without a change may take, to know that importing it anew, or running statements of it again,
# harms nothing by itself.
CONTROL_S = 5.0
# Tests with these marks need more than this process, or minutes.
_MARKS_LEFT_OUT = ("full", "slow", "browser", "matrix")

# How tests are put in order: what a fixture costs at least, how much more a mutant of the same function says than
# another of the same file, and how often a new test would have failed in one run.
_SECONDS_OF_ANY_TEST = 0.02
_NEIGHBOURS = 3
_FAILED_BEFORE = 0.1

K = TypeVar("K")
OnVerdict = Callable[[int, Verdict], None]  # the index of a mutant, and its verdict
_Reached = dict[str, dict[int, list[str]]]  # the tests that reach a line, by path and line
pytest_options = ("-q", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:terminalreporter")


class Baseline(NamedTuple):
    """The tests without a change."""

    seconds: dict[str, float]  # by test
    reached: _Reached
    imported: dict[str, list[int]]  # the lines that run when their module is imported, by path
    failed: list[str]
    loaded: list[str]  # modules that are not the project's


class Judged(NamedTuple):
    """The verdict on each mutant of a function by its index; the others have to be imported."""

    baseline: Baseline
    verdicts: dict[int, Verdict]


def no_one_listens(_index: int, _verdict: Verdict) -> None: ...


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Host:
    """A plugin of pytest: it runs no test itself, and its forks run all."""

    def __init__(
        self,
        root: Path,
        mutants: Sequence[Mutant],
        jobs: int,
        answer: Path,
        seconds_min: float,
        on_verdict: OnVerdict = no_one_listens,
        *,
        with_postgres: bool = False,
    ) -> None:
        self._root, self._mutants, self._jobs, self.answer = root, mutants, jobs, answer
        self.seconds_min = seconds_min
        self._on_verdict = on_verdict
        self._with_postgres = with_postgres
        self._after = drop_databases if with_postgres else nothing
        self._paths = sorted({each.path for each in mutants})
        self._importing = self._measure()
        self._importing.start()
        self._failed = False
        self._own_limit: threading.Timer | None = None  # of a test
        self._rebindings: dict[str, list[Rebinding]] = {}

    def _measure(self) -> coverage.Coverage:
        include = [str(self._root / path) for path in self._paths]
        measure = coverage.Coverage(data_file=None, include=include, config_file=False, messages=False)
        # A share of the tests may reach none of the files, and pytest makes warnings errors.
        measure.set_option("run:disable_warnings", ["no-data-collected"])
        return measure

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for path in self._paths:
            importlib.import_module(module_of(path))
        self._importing.stop()
        imported = {path: self._importing.get_data().lines(str(self._root / path)) or [] for path in self._paths}
        items = [each for each in session.items if is_taken(each, with_postgres=self._with_postgres)]
        if self._with_postgres:
            [*run_forks([Task("template", lambda _: make_template(), BASELINE_SECONDS_MAX)], 1, self._after)]
        seconds, reached, failed = self._without_a_change(items)
        baseline = Baseline(seconds, reached, imported, failed, sorted(_foreign(self._root)))
        verdicts = {} if failed else self._judge({each.nodeid: each for each in items}, baseline)
        self.answer.write_text(json.dumps([baseline, {str(index): verdict for index, verdict in verdicts.items()}]))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed

    def pytest_timeout_set_timer(self, settings: Any) -> bool:
        """In place of pytest-timeout's own timers: one is that of `end_after`, and the other needs a terminal."""
        self._own_limit = threading.Timer(settings.timeout, os._exit, [FAILED])
        self._own_limit.daemon = True
        self._own_limit.start()
        return True

    def pytest_timeout_cancel_timer(self) -> bool:
        if self._own_limit is not None:
            self._own_limit.cancel()
        return True

    def _without_a_change(self, items: Sequence[pytest.Item]) -> tuple[dict[str, float], _Reached, list[str]]:
        """How long each test takes, which lines it reaches, and which fail. The tests of a file stay in one fork."""
        files = [*dict.fromkeys(each.path for each in items)]
        shares = [[each for each in items if files.index(each.path) % self._jobs == at] for at in range(self._jobs)]
        noted = {self.answer.with_suffix(f".{at}"): share for at, share in enumerate(shares) if share}
        tasks = [
            Task(path, partial(self._baseline, share, path), BASELINE_SECONDS_MAX) for path, share in noted.items()
        ]
        [*run_forks(tasks, self._jobs, self._after)]
        seconds: dict[str, float] = {}
        reached: _Reached = {path: {} for path in self._paths}
        failed: list[str] = []
        for each in noted:
            if not each.exists():
                raise RuntimeError("The tests without a change did not end; run them by pytest first.")
            its_seconds, its_reached, its_failed = json.loads(each.read_text())
            seconds |= its_seconds
            failed += its_failed
            for path, lines in its_reached.items():
                for line, tests in lines.items():
                    reached[path].setdefault(int(line), []).extend(tests)
        os.write(2, f"  {len(items)} tests without a change: {sum(seconds.values()):.0f} s\n".encode())
        return seconds, reached, failed

    def _baseline(self, items: Sequence[pytest.Item], noted: Path, _patience: float) -> int:
        silence()
        seconds: dict[str, float] = {}
        failed: list[str] = []
        measure = self._measure()
        measure.start()
        for item, following in _pairs(items):
            measure.switch_context(item.nodeid)
            started = time.perf_counter()
            self._failed = False
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            seconds[item.nodeid] = time.perf_counter() - started
            if self._failed:
                failed.append(item.nodeid)
        measure.stop()
        data = measure.get_data()
        reached = {
            path: {
                line: [each for each in tests if each]
                for line, tests in data.contexts_by_lineno(str(self._root / path)).items()
            }
            for path in self._paths
        }
        noted.write_text(json.dumps([seconds, reached, failed]))
        return PASSED

    def _judge(self, items: dict[str, pytest.Item], baseline: Baseline) -> dict[int, Verdict]:
        verdicts: dict[int, Verdict] = {}
        planned: dict[int, tuple[Callable[[], None], list[str]]] = {}
        for index, mutant in enumerate(self._mutants):
            change = self._change(mutant, baseline.imported[mutant.path])
            if change is None:
                continue
            if tests := tests_of(mutant.path, change.lines, baseline):
                planned[index] = change.run, tests
            else:
                verdicts[index] = Verdict.UNREACHED
                self._on_verdict(index, Verdict.UNREACHED)
        gc.collect()
        gc.freeze()
        self._check_rebinding(items, baseline)
        failures = Failures(baseline.seconds, len(self._mutants))
        tasks = (
            self._task(
                index,
                change,
                failures.in_order(index, self._mutants[index], tests),
                items,
                baseline,
                failures.of(index),
            )
            for index, (change, tests) in planned.items()
        )
        for done, (index, verdict) in enumerate(run_surely(tasks, self._jobs, self._after), start=1):
            verdicts[index] = verdict
            self._on_verdict(index, verdict)
            failures.count(index, self._mutants[index], verdict)
            _say(done, len(planned), self._mutants[index], verdict)
        return verdicts

    def _task(
        self,
        key: K,
        change: Callable[[], None],
        tests: Sequence[str],
        items: dict[str, pytest.Item],
        of: Baseline,
        notes: Notes | None = None,
    ) -> Task[K]:
        limits = {each: max(self.seconds_min, PATIENCE * of.seconds[each]) for each in tests}
        trial = _Trial(self, change, [items[each] for each in tests], limits, notes or Notes())
        return Task(key, trial, sum(limits.values()))

    def _check_rebinding(self, items: dict[str, pytest.Item], baseline: Baseline) -> None:
        """The statements that run again have to survive that, without a change."""
        for path, found in self._rebindings.items():
            runs = [partial(each.run_unchanged, module_of(path)) for each in found]
            tests = tests_of(path, {line for each in found for line in each.lines}, baseline, CONTROL_S)
            control = self._task(path, partial(_run_all, runs), tests, items, baseline)
            if tests and [*run_forks([control], 1, self._after)] != [(path, Verdict.SURVIVED)]:
                raise RuntimeError(f"The statements of {path} run again without a change, and its tests fail.")

    def _change(self, mutant: Mutant, imported: Sequence[int]) -> _Change | None:
        """How the loaded module becomes that of the mutant; None if it has to be imported."""
        if functions := functions_of(mutant, self._root, imported):
            first, last = mutant.lines
            return _Change(partial(exchange, functions), range(first, last + 1))
        path = self._root / mutant.path
        rebinding = rebinding_of(path.read_text(), mutant.source, str(path), imported)
        if rebinding is None:
            return None
        self._rebindings.setdefault(mutant.path, []).append(rebinding)
        return _Change(partial(rebinding.run, module_of(mutant.path)), rebinding.lines)

    def passes(self, items: Sequence[pytest.Item], seconds_max: Mapping[str, float], notes: Notes) -> int:
        """Run tests until one fails. One that takes longer than it may ends this process."""
        for item, following in _pairs(items):
            notes.begins(item.nodeid)
            end_after(seconds_max[item.nodeid])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return FAILED
        return PASSED


class Notes:
    """Which test of a mutant runs; known after its fork, too."""

    def begins(self, test: str) -> None:
        """In a fork."""

    @property
    def last(self) -> str:
        """The test that began last; empty if none did."""
        return ""


class _SharedNotes(Notes):
    def __init__(self, index: int, tests: Sequence[str], numbers: memoryview) -> None:
        self._index, self._tests, self._numbers = index, tests, numbers

    def begins(self, test: str) -> None:
        self._numbers[self._index] = self._tests.index(test) + 1

    @property
    def last(self) -> str:
        number = self._numbers[self._index]
        return self._tests[number - 1] if number else ""


class Failures:
    """Which tests notice mutants. Of the tests of the next mutant, those begin that will end it soonest."""

    def __init__(self, seconds: Mapping[str, float], mutants: int) -> None:
        """seconds: of each test."""
        self._seconds = seconds
        self._tests = [*seconds]
        self._numbers = memoryview(mmap.mmap(-1, max(1, mutants) * 4)).cast("i")  # shared with the forks
        self._orders: dict[int, list[str]] = {}
        # By place or path, and test.
        self._run: Counter[tuple[str, str]] = Counter()
        self._failed: Counter[tuple[str, str]] = Counter()

    def of(self, index: int) -> Notes:
        return _SharedNotes(index, self._tests, self._numbers)

    def in_order(self, index: int, mutant: Mutant, tests: Iterable[str]) -> list[str]:
        """These tests of a mutant, by their chance to fail in a second."""
        chances = {each: self._chance(mutant, each) / max(self._seconds[each], _SECONDS_OF_ANY_TEST) for each in tests}
        self._orders[index] = sorted(chances, key=lambda each: -chances[each])
        return self._orders[index]

    def count(self, index: int, mutant: Mutant, verdict: Verdict) -> None:
        """After the fork."""
        if verdict not in (Verdict.FAILED, Verdict.SURVIVED):
            return
        order, last = self._orders.pop(index), self.of(index).last
        for test in order[: order.index(last) + 1]:
            for key in ((mutant.place, test), (mutant.path, test)):
                self._run[key] += 1
                self._failed[key] += verdict is Verdict.FAILED and test == last

    def _chance(self, mutant: Mutant, test: str) -> float:
        """That the test fails: by mutants of the same function, and less by others of the same file."""
        place, path = (mutant.place, test), (mutant.path, test)
        failed = _NEIGHBOURS * self._failed[place] + self._failed[path] + _FAILED_BEFORE
        return failed / (_NEIGHBOURS * self._run[place] + self._run[path] + 1)


class _Change(NamedTuple):
    """How a loaded module becomes that of a mutant, and the lines that tests have to reach."""

    run: Callable[[], None]
    lines: Collection[int]


@dataclass(frozen=True)
class _Trial:
    host: Host
    change: Callable[[], None]
    items: list[pytest.Item]
    seconds_max: dict[str, float]  # of each test
    notes: Notes

    def __call__(self, patience: float) -> int:
        silence()
        # A test that has ended a fork before, as one that hangs, leaves the others the chance to fail.
        ended = self.notes.last
        items = sorted(self.items, key=lambda each: each.nodeid == ended)
        try:
            self.change()
        except Exception:  # noqa: BLE001 - as an import that fails
            return BROKEN
        return self.host.passes(items, {test: patience * each for test, each in self.seconds_max.items()}, self.notes)


def is_taken(item: pytest.Item, *, with_postgres: bool) -> bool:
    """Whether a test can judge mutants. Those that use Postgres can if the room has one for all forks."""
    if any(item.get_closest_marker(mark) for mark in _MARKS_LEFT_OUT):
        return False
    if with_postgres:
        return True
    names: Sequence[str] = getattr(item, "fixturenames", ())
    return "postgres" not in item.nodeid and not any("postgres" in name for name in names)


def _run_all(runs: Iterable[Callable[[], None]]) -> None:
    for run in runs:
        run()


def tests_of(path: str, lines: Collection[int], baseline: Baseline, budget_s: float = BUDGET_S) -> list[str]:
    """The quickest tests that reach lines of a file, the quickest first."""
    tests = {test for line, those in baseline.reached[path].items() if line in lines for test in those}
    return quickest(tests, baseline.seconds, budget_s)


def quickest(tests: Iterable[str], seconds: Mapping[str, float], budget_s: float = BUDGET_S) -> list[str]:
    """The quickest tests that fit into so many seconds; at least one."""
    ordered = sorted(tests, key=lambda each: (seconds[each], each))
    sums = accumulate(seconds[each] for each in ordered)
    return [each for at, (each, sum_s) in enumerate(zip(ordered, sums, strict=True)) if at == 0 or sum_s <= budget_s]


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    yield from zip(items, [*items[1:], None], strict=True)


def _foreign(root: Path) -> Iterator[str]:
    """Modules of other packages that are loaded, but no plugins of pytest, which pytest wants to load itself."""
    for name, module in list(sys.modules.items()):
        place = getattr(module, "__file__", None) or ""
        ours = place.startswith(str(root)) and "site-packages" not in place
        if place.endswith((".py", ".so")) and not ours and "pytest" not in name and not name.startswith("_"):
            yield name


def _say(done: int, of: int, mutant: Mutant, verdict: Verdict) -> None:
    if verdict not in KILLED:
        os.write(2, f"  {mutant.place}, line {mutant.lines[0]} ({verdict}):\n    {mutant.change}\n".encode())
    if done % 50 == 0 or done == of:
        os.write(2, f"  {done} of {of} mutants of functions\n".encode())
