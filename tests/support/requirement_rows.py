"""Which requirements the collected tests show; the run fails when a claimed row has no test.

A test says `@pytest.mark.row("A4")`, or `@pytest.mark.user("U8")` for what users complain of elsewhere and must never
complain of here. The claimed ones of both stand in `tests/rows.txt`. Only a run of the whole suite can tell that one is
missing: naming paths or `-k` switches the check off. `-m` does not: it takes tests away after they were collected.

In CI (`CI=true`) a claimed row must also be shown. The run fails when all of a row's tests were skipped, or are `slow`,
which CI does not run. CI runs the suite in parts that `-m` selects, so the ids of skipped tests are kept in pytest's
cache until those tests pass: the part that skips the last test of a row fails.
"""

from __future__ import annotations

import itertools
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

CLAIMED = Path(__file__).parents[1] / "rows.txt"
_ROW = re.compile(r"([A-Z]+)(\d+)")
_SKIPPED = "popmq/skipped"


class Rows:
    """A pytest plugin. claimed: the file that lists the rows."""

    def __init__(self, config: pytest.Config, claimed: Path = CLAIMED) -> None:
        self._config = config
        self._claimed_in = claimed
        self._in_ci = os.environ.get("CI") == "true"
        self._tests: dict[str, set[str]] = {}  # by row, also of rows whose tests are all slow: without those
        self._passed: set[str] = set()
        self._failed: set[str] = set()
        self._ended: defaultdict[str, set[str]] = defaultdict(set)  # by outcome, ids of tests
        self._skipped: set[str] = set()
        self._is_whole = False

    @pytest.hookimpl(tryfirst=True)  # before -m and -k take tests away
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for row in _rows_of(item):
                item.user_properties.append(("row", row))
                tests = self._tests.setdefault(row, set())
                if item.get_closest_marker("slow") is None:
                    tests.add(item.nodeid)
        self._is_whole = is_whole_suite(self._config)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = {str(value) for name, value in report.user_properties if name == "row"}
        if report.failed:
            self._failed |= rows
        elif report.when == "call" and report.passed:
            self._passed |= rows
        elif report.skipped:
            self._skipped |= rows
        if rows and (report.when == "call" or not report.passed):
            self._ended[report.outcome].add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workeroutput"):
            tests = {row: sorted(several) for row, several in self._tests.items()}
            self._config.workeroutput["row_tests"] = (self._is_whole, tests)
            return
        self._remember_skipped()
        is_wrong = self._missing() or (self._in_ci and (self._only_skipped() or self._only_slow()))
        if is_wrong and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A process of a divided run ends: each has collected every test, and the one that reports has none."""
        if "row_tests" in (output := getattr(node, "workeroutput", {})):
            self._is_whole, tests = output["row_tests"]
            self._tests = {row: set(several) for row, several in tests.items()}

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        shown = self._passed - self._failed
        unseen = (self._skipped & self._claimed()) - self._passed - self._failed
        if shown or unseen or self._missing():
            terminalreporter.section("requirements")
            answered = {row for row in shown if _is_complaint(row)}
            terminalreporter.line(f"{len(shown - answered)} rows shown by passing tests")
            terminalreporter.line(f"{len(answered)} complaints of users (U) answered by passing tests")
            for section, several in itertools.groupby(sorted(shown, key=_place), key=lambda row: _place(row)[0]):
                terminalreporter.line(f"  {section}: {' '.join(several)}")
        said = [
            ("claimed, but only skipped", unseen, False),
            (f"{self._claimed_in.name} claims rows that no test carries", self._missing(), True),
        ]
        if self._in_ci:
            said += [
                ("claimed, but every test of them was skipped, which fails in CI", self._only_skipped(), True),
                ("claimed, but every test of them is slow, which fails in CI", self._only_slow(), True),
            ]
        for sentence, rows, is_wrong in said:
            if rows:
                terminalreporter.line(
                    f"{sentence}: {' '.join(sorted(rows, key=_place))}", red=is_wrong, yellow=not is_wrong
                )

    def _missing(self) -> set[str]:
        return self._claimed() - self._tests.keys() if self._is_whole else set()

    def _only_skipped(self) -> set[str]:
        """Rows of which one test was skipped now, and each other one now or when it last ran."""
        if not self._is_whole:
            return set()
        all_skipped = {row for row, tests in self._tests.items() if tests and tests <= self._skipped_tests()}
        return all_skipped & self._skipped & self._claimed()

    def _only_slow(self) -> set[str]:
        if not self._is_whole:
            return set()
        return {row for row, tests in self._tests.items() if not tests} & self._claimed()

    def _remember_skipped(self) -> None:
        if (cache := self._cache()) is not None and self._ended:
            cache.set(_SKIPPED, sorted(self._skipped_tests()))

    def _skipped_tests(self) -> set[str]:
        before = set() if (cache := self._cache()) is None else set(cache.get(_SKIPPED, []))
        return (before | self._ended["skipped"]) - self._ended["passed"] - self._ended["failed"]

    def _cache(self) -> pytest.Cache | None:
        return getattr(self._config, "cache", None)  # `-p no:cacheprovider`

    def _claimed(self) -> set[str]:
        return set(self._claimed_in.read_text().split())


def _rows_of(item: pytest.Item) -> list[str]:
    rows = [str(row) for mark in item.iter_markers("row") for row in mark.args]
    complaints = [str(row) for mark in item.iter_markers("user") for row in mark.args]
    for row in rows + complaints:
        assert _ROW.fullmatch(row), f"{item.nodeid}: {row!r} is no requirement; they are called A1, M6 and so on"
        assert _is_complaint(row) is (row in complaints), f"{item.nodeid}: U8 is a user's complaint, A4 a requirement"
    return rows + complaints


def _is_complaint(row: str) -> bool:
    return row.startswith("U")


def _place(row: str) -> tuple[str, int]:
    found = _ROW.fullmatch(row)
    assert found is not None, f"{row!r} in the file of claimed rows is no requirement"
    return found[1], int(found[2])


def is_whole_suite(config: pytest.Config) -> bool:
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return not named and not any(config.getoption(name, None) for name in ("keyword", "lf", "deselect", "ignore"))
