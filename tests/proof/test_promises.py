"""The page of promises shows what the harnesses have counted, and each invariant and fault has its test."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from proof.torture.__main__ import KILLS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "promises.md").read_text()


@pytest.fixture(scope="module")
def promises() -> ModuleType:
    spec = importlib.util.spec_from_file_location("promises", ROOT / "docs" / "promises.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_row_for_each_harness_that_has_run(promises: ModuleType) -> None:
    totals = {"torture": {"client_kills": 2, "kills": 1_200, "violations": 0}, "soak": {"minutes": 10, "violations": 1}}
    assert promises.table(totals).splitlines()[2:] == [
        "| servers, databases and clients that are killed, stopped and cut off under load | `make torture` |"
        " 2 client kills, 1,200 kills | 0 |",
        "| a server under load: memory, files, threads, tables must not grow | `make soak` | 10 minutes | 1 |",
    ]


def test_kinds_of_faults_have_a_table_of_their_own(promises: ModuleType) -> None:
    totals = {"torture": {"fault: kill server": 7, "fault: network cut": 1_000, "kills": 7, "violations": 0}}
    rows = promises.table(totals).splitlines()
    assert rows[2].endswith("| 7 kills | 0 |")
    assert rows[-1] == "| `make torture` | kill server: 7; network cut: 1,000 |"


def test_settings_have_a_table_and_their_combinations_are_counted(promises: ModuleType) -> None:
    counts = {"combination: none": 4, "combination: pooler + time zone": 1, "setting: PgBouncer": 1_000}
    rows = promises.table({"torture": {**counts, "rounds": 5, "violations": 0}}).splitlines()
    assert rows[2].endswith("| 5 rounds | 0 |")
    assert rows[-3:] == [
        "| `make torture` | PgBouncer: 1,000 |",
        "",
        "Different combinations of these: 2 in `make torture`. `proof/totals/` names each.",
    ]


def test_the_readme_shows_violations_of_all(promises: ModuleType) -> None:
    totals = {"torture": {"client_kills": 2, "kills": 1_200, "violations": 0}, "soak": {"minutes": 10, "violations": 1}}
    assert promises.headline(totals).startswith("**1,202 kills: 1 violations**")


def test_the_readme_counts_every_kill(promises: ModuleType) -> None:
    assert ("kills", "torture", KILLS) in promises.HEADLINE


def test_before_any_run_nothing_is_claimed(promises: ModuleType) -> None:
    assert promises.table({}) == "No run has been counted yet.\n"
    assert "0" not in promises.headline({})


def test_each_harness_with_totals_is_in_the_table(promises: ModuleType) -> None:
    assert {path.stem for path in (ROOT / "proof" / "totals").glob("*.json")} <= promises.HARNESSES.keys()


@pytest.mark.parametrize("kind, count", [("I", 14), ("F", 20)])
def test_each_invariant_and_fault_has_a_test(kind: str, count: int) -> None:
    rows = re.findall(rf"^\| {kind}(\d+) \| .+ \| (.+) \|$", PAGE, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, count + 1))
    assert [number for number, shown in rows if "`tests/" not in shown] == []
