"""docs/compatibility.md is whole, and says what the tests expect."""

from __future__ import annotations

import itertools

import pytest

from tests.interop.matrix.conftest import SERVERS
from tests.interop.matrix.faults import FAULTS, Fault, fault_at
from tests.interop.matrix.page import NOT_RUN, PAGE, Cell, Tables, outcome_of, summary_of_page
from tests.interop.matrix.rocketmq import NAME as ROCKETMQ
from tests.interop.matrix.scenarios import SCENARIOS, CameBack, MessagesLost
from tests.interop.programs import LANGUAGES


def test_what_is_read_is_written_again() -> None:
    tables = Tables.of_page(SERVERS)
    assert str(Tables(SERVERS, str(tables))) == str(tables)
    assert str(tables) in PAGE.read_text(), "write it with make test-clients, make test-rocketmq"


def test_the_summary_says_what_the_tables_say() -> None:
    tables = Tables.of_page(SERVERS)
    assert summary_of_page() == tables.summary(), "write it with make test-clients"
    cell = ("simple", "java", "two servers")
    tables.cells[cell] = "fails"
    assert "| [fails: simple (two servers)](#java-520) |" in tables.summary()


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_cell_has_an_outcome_that_is_explained(language: str) -> None:
    tables = Tables.of_page(SERVERS)
    cells = {(scenario, language, server) for scenario, server in itertools.product(SCENARIOS, SERVERS)}
    assert {cell: tables.cells.get(cell, NOT_RUN) for cell in cells if not tables.has_explained(cell)} == {}


def test_a_failure_that_nobody_expected_is_written_without_a_reason() -> None:
    cell: Cell = ("send", "java", "SQLite")
    assert fault_at(*cell) is None
    for outcome, said in (("passed", "pass"), ("failed", "fails")):
        report = pytest.TestReport("a test", ("", None, ""), {}, outcome, None, "call")  # type: ignore[arg-type]
        assert outcome_of(cell, report) == said


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("no call: push", "no call: push"),
        ("no call: a|b\nc", "no call: a b c"),
        ("mvn -q failed:\n| a | table |", None),
        ("node and npm not found", None),
    ],
)
def test_only_a_call_that_a_client_lacks_is_written_of_a_skip(reason: str, said: str | None) -> None:
    skipped = pytest.TestReport("a test", ("", None, ""), {}, "skipped", ("", 1, f"Skipped: {reason}"), "call")
    assert outcome_of(("send", "java", "SQLite"), skipped) == said


@pytest.mark.parametrize(
    ("failure", "is_explained"),
    [
        (CameBack("acked messages came back: ['1']"), True),
        (MessagesLost("of 20 messages 1 are lost: ['1']"), False),
        (RuntimeError("the server did not start"), False),
        (AssertionError("another"), False),
    ],
)
def test_a_reason_explains_no_other_failure(failure: Exception, is_explained: bool) -> None:
    fault = fault_at("kill", "java", ROCKETMQ)
    assert fault is not None
    assert FAULTS[fault].explains(failure) is is_explained


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.scenarios} of {fault.languages}")
def test_no_reason_explains_a_loss(fault: Fault) -> None:
    assert not fault.explains(MessagesLost("of 20 messages 1 are lost: ['1']"))
    assert not fault.explains(pytest.fail.Exception("mvn failed"))
