"""The tables of docs/compatibility.md: cells that a run replaces, and reasons."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.interop.matrix.faults import FAULTS, POPMQ, fault_at
from tests.interop.matrix.lite import LITE
from tests.interop.matrix.scenarios import SCENARIOS
from tests.interop.programs import TITLES

PAGE = Path(__file__).parents[3] / "docs" / "compatibility.md"
BEGIN, END = "<!-- The tables: make test-clients test-rocketmq -->\n", "<!-- End of the tables. -->\n"
SUMMARY, SUMMARY_END = "<!-- The summary: make test-clients -->\n", "<!-- End of the summary. -->\n"
_RESTARTS, _TLS = ("restart", "kill"), ("tls",)
# The columns of the summary, and their scenarios.
ASPECTS: dict[str, tuple[str, ...]] = {
    "core": tuple(each for each in SCENARIOS if each not in (*LITE, *_TLS, *_RESTARTS)),
    "lite": tuple(LITE),
    "TLS": _TLS,
    "restart of the server": _RESTARTS,
}
NOT_RUN = ""
UNEXPLAINED = "fails"
NO_CALL = "no call: "
Cell = tuple[str, str, str]  # scenario, language, server


class Tables:
    """The outcome of each cell, as the page has it."""

    def __init__(self, servers: tuple[str, ...], text: str = "") -> None:
        self._servers = servers
        self.cells: dict[Cell, str] = dict(self._read(text))

    def _read(self, text: str) -> Iterator[tuple[Cell, str]]:
        titles = {title: language for language, title in TITLES.items()}
        language = ""
        for line in text.splitlines():
            if line.startswith("## "):
                language = titles.get(line.removeprefix("## "), "")
            elif language and line.startswith("| ") and not line.startswith("| |"):
                scenario, *outcomes = [each.strip() for each in line.strip("|").split("|")]
                for server, outcome in zip(self._servers, outcomes, strict=True):
                    yield (scenario, language, server), outcome

    @classmethod
    def of_page(cls, servers: tuple[str, ...]) -> Tables:
        """Those of the page as it is."""
        _, tables, _ = _parts()
        return cls(servers, tables)

    def has_explained(self, cell: Cell | None) -> bool:
        """Is the cell's outcome one that the tests expect?"""
        if cell is None:
            return False
        outcome, fault = self.cells.get(cell, NOT_RUN), fault_at(*cell)
        if fault is None:
            return outcome == "pass" or outcome.startswith(NO_CALL)
        return outcome == failing(fault) or (outcome == "pass" and not FAULTS[fault].is_constant)

    def __str__(self) -> str:
        return "\n".join([*self._scenarios(), *self._tables(), *self._reasons()]) + "\n"

    def summary(self) -> str:
        """What each client does at PopMQ, with links to the tables."""
        head = [f"\n| Client at PopMQ | {' | '.join(ASPECTS)} |", "|---" * (1 + len(ASPECTS)) + "|"]
        return "\n".join([*head, *map(self._summed_up, TITLES)]) + "\n\n"

    def _summed_up(self, language: str) -> str:
        link = "#" + re.sub(r"[^a-z0-9-]", "", TITLES[language].lower().replace(" ", "-"))
        said = [f"[{self._aspect(language, scenarios)}]({link})" for scenarios in ASPECTS.values()]
        return f"| {' | '.join([f'[{TITLES[language]}]({link})', *said])} |"

    def _aspect(self, language: str, scenarios: Sequence[str]) -> str:
        """ "pass", or which scenarios do not; with the servers if it passes at others."""
        lacks, fails = [], []
        for scenario in scenarios:
            outcomes = {server: self.cells.get((scenario, language, server), NOT_RUN) for server in POPMQ}
            not_passed = [server for server, outcome in outcomes.items() if outcome != "pass"]
            if any(outcome.startswith(NO_CALL) for outcome in outcomes.values()):
                lacks.append(scenario)
            elif not_passed:
                fails.append(scenario if len(not_passed) == len(POPMQ) else f"{scenario} ({', '.join(not_passed)})")
        if len(lacks) == len(scenarios):
            return "no such calls"
        parts = [f"{word}: {', '.join(names)}" for word, names in (("no call", lacks), ("fails", fails)) if names]
        return "; ".join(parts) or "pass"

    @staticmethod
    def _scenarios() -> Iterator[str]:
        yield "\n| Scenario | What is shown |\n|---|---|"
        for scenario, (act, _) in SCENARIOS.items():
            yield f"| {scenario} | {' '.join((act.__doc__ or '').split())} |"

    def _tables(self) -> Iterator[str]:
        for language, title in TITLES.items():
            yield f"\n## {title}\n"
            yield f"| | {' | '.join(self._servers)} |"
            yield "|---" * (1 + len(self._servers)) + "|"
            for scenario in SCENARIOS:
                outcomes = [self.cells.get((scenario, language, server), NOT_RUN) for server in self._servers]
                yield f"| {scenario} | {' | '.join(outcomes)} |"

    def _reasons(self) -> Iterator[str]:
        if FAULTS:
            yield "\n## Reasons\n"
            for index, each in enumerate(FAULTS):
                passes = "" if each.is_constant else " Now and then it passes"
                if passes:
                    passes += (
                        "." if failing(index) in self.cells.values() else ", as it did in all cells of the tables."
                    )
                yield f"{index + 1}. {each.reason}{passes}"


def failing(fault: int) -> str:
    return f"fails ({fault + 1})"


def summary_of_page() -> str:
    """The summary as the page has it."""
    return PAGE.read_text().partition(SUMMARY)[2].partition(SUMMARY_END)[0]


def _parts() -> list[str]:
    """The page before, within and after the tables."""
    return re.split(f"{re.escape(BEGIN)}|{re.escape(END)}", PAGE.read_text())


def outcome_of(cell: Cell, report: pytest.TestReport) -> str | None:
    """What the page says of a test that ran; None if it was skipped because this machine lacks something."""
    if report.outcome == "passed":
        return "pass"
    fault = fault_at(*cell)
    if fault is not None and hasattr(report, "wasxfail"):
        return failing(fault)
    if not report.skipped:
        return UNEXPLAINED
    said = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
    return re.sub(r"[\s|]+", " ", said) if said.startswith(NO_CALL) else None


class Cells:
    """A pytest plugin that writes each outcome as soon as it is known."""

    def __init__(self, servers: tuple[str, ...]) -> None:
        self._servers = servers

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        cell = dict(report.user_properties).get("cell")
        if cell is not None and (report.when == "call" or report.outcome != "passed"):
            scenario, language, server = str(cell).split("/")
            outcome = outcome_of((scenario, language, server), report)
            if outcome is not None:
                self._write((scenario, language, server), outcome)

    def _write(self, cell: Cell, outcome: str) -> None:
        with PAGE.open() as page:
            fcntl.flock(page, fcntl.LOCK_EX)  # runs of several kinds of servers may write at once
            self._replace(cell, outcome)

    def _replace(self, cell: Cell, outcome: str) -> None:
        before, old, after = _parts()
        tables = Tables(self._servers, old)
        tables.cells[cell] = outcome
        first, _, rest = before.partition(SUMMARY)
        before = f"{first}{SUMMARY}{tables.summary()}{SUMMARY_END}{rest.partition(SUMMARY_END)[2]}"
        PAGE.write_text(f"{before}{BEGIN}{tables}{END}{after}")
