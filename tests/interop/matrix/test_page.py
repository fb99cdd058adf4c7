"""docs/compatibility.md is whole, and says what the tests expect."""

from __future__ import annotations

import itertools

import pytest

from tests.interop.matrix.conftest import SERVERS
from tests.interop.matrix.faults import fault_at
from tests.interop.matrix.page import NOT_RUN, PAGE, Cell, Tables, outcome_of
from tests.interop.matrix.scenarios import SCENARIOS
from tests.interop.programs import LANGUAGES


def test_what_is_read_is_written_again() -> None:
    tables = Tables.of_page(SERVERS)
    assert str(Tables(SERVERS, str(tables))) == str(tables)
    assert str(tables) in PAGE.read_text(), "write it with make test-clients, make test-rocketmq"


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_cell_has_an_outcome_that_is_explained(language: str) -> None:
    tables = Tables.of_page(SERVERS)
    cells = {(scenario, language, server) for scenario, server in itertools.product(SCENARIOS, SERVERS)}
    unexplained = {cell: tables.cells[cell] for cell in cells if not tables.has_explained(cell)}
    assert {cell: outcome for cell, outcome in unexplained.items() if outcome != NOT_RUN} == {}


def test_a_failure_that_nobody_expected_is_written_without_a_reason() -> None:
    cell: Cell = ("send", "java", "SQLite")
    assert fault_at(*cell) is None
    for outcome, said in (("passed", "pass"), ("failed", "fails")):
        report = pytest.TestReport("a test", ("", None, ""), {}, outcome, None, "call")  # type: ignore[arg-type]
        assert outcome_of(cell, report) == said
    skipped = pytest.TestReport("a test", ("", None, ""), {}, "skipped", ("", 1, "Skipped: no call: push"), "call")
    assert outcome_of(cell, skipped) == "no call: push"
