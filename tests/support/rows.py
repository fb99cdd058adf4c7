"""Which mission rows the collected tests show; the run fails when a claimed row has no test.

A test says `@pytest.mark.row("A4")`, or `@pytest.mark.user("U8")` for what users complain of elsewhere and must never
complain of here. The claimed ones of both stand in `tests/rows.txt`. Only a run of the whole suite can tell that one is
missing: naming paths or `-k` switches the check off.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest

CLAIMED = Path(__file__).parents[1] / "rows.txt"
_ROW = re.compile(r"([A-Z]+)(\d+)")


class Rows:
    """A pytest plugin."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._carried: set[str] = set()
        self._passed: set[str] = set()
        self._failed: set[str] = set()
        self._skipped: set[str] = set()
        self._collected_all = False
        self._missing_elsewhere: set[str] = set()

    @pytest.hookimpl(tryfirst=True)  # before -m and -k take tests away
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for row in _rows_of(item):
                item.user_properties.append(("row", row))
                self._carried.add(row)
        self._collected_all = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        rows = {str(value) for name, value in report.user_properties if name == "row"}
        if report.failed:
            self._failed |= rows
        elif report.when == "call" and report.passed:
            self._passed |= rows
        elif report.skipped:
            self._skipped |= rows

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["missing_rows"] = sorted(self._missing())
        if self._missing() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A process of a divided run ends: each has collected every test, and the one that reports has none."""
        self._missing_elsewhere |= set(getattr(node, "workeroutput", {}).get("missing_rows", ()))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        shown = self._passed - self._failed
        unseen = (self._skipped & _claimed()) - self._passed - self._failed
        if shown or unseen or self._missing():
            terminalreporter.section("mission rows")
            answered = {row for row in shown if _is_complaint(row)}
            terminalreporter.line(f"{len(shown - answered)} rows shown by passing tests")
            terminalreporter.line(f"{len(answered)} complaints of users (U) answered by passing tests")
            for section, several in itertools.groupby(sorted(shown, key=_place), key=lambda row: _place(row)[0]):
                terminalreporter.line(f"  {section}: {' '.join(several)}")
        if unseen:
            terminalreporter.line(f"claimed, but only skipped: {' '.join(sorted(unseen, key=_place))}", yellow=True)
        if self._missing():
            rows = " ".join(sorted(self._missing(), key=_place))
            terminalreporter.line(f"{CLAIMED.name} claims rows that no test carries: {rows}", red=True)

    def _missing(self) -> set[str]:
        if not self._collected_all or not _is_whole_suite(self._config):
            return self._missing_elsewhere
        return _claimed() - self._carried


def _claimed() -> set[str]:
    return set(CLAIMED.read_text().split())


def _rows_of(item: pytest.Item) -> list[str]:
    rows = [str(row) for mark in item.iter_markers("row") for row in mark.args]
    complaints = [str(row) for mark in item.iter_markers("user") for row in mark.args]
    for row in rows + complaints:
        assert _ROW.fullmatch(row), f"{item.nodeid}: {row!r} is no mission row; they are called A1, M6 and so on"
        assert _is_complaint(row) is (row in complaints), f"{item.nodeid}: U8 is a user's complaint, A4 a mission row"
    return rows + complaints


def _is_complaint(row: str) -> bool:
    return row.startswith("U")


def _place(row: str) -> tuple[str, int]:
    found = _ROW.fullmatch(row)
    assert found is not None, f"{row!r} in {CLAIMED.name} is no mission row"
    return found[1], int(found[2])


def _is_whole_suite(config: pytest.Config) -> bool:
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return not named and not any(config.getoption(name, None) for name in ("keyword", "lf", "deselect", "ignore"))
