"""Mutation testing: weak tests have survivors and strong tests have none; tests of handles and the law are strong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from proof.mutations import judge
from proof.mutations.forks import Verdict
from proof.mutations.host import Baseline, Failures
from proof.mutations.mutants import Mutant, mutants_of
from proof.mutations.near import lines_near
from proof.mutations.rebound import rebinding_of
from proof.mutations.record import Record
from proof.mutations.rooms import ROOMS
from proof.mutations.survivors import divide, read_explained
from proof.mutations.types import by_types
from proof.totals import read_totals

ROOT = Path(__file__).parents[2]
SOURCE = """
LIMIT = 3

def is_full(count):
    return count >= LIMIT
"""
BOXES = """
LIMIT = 3
UNUSED = 1

class Box:
    size: int = 0

def is_full(box, more=1):
    return more > LIMIT

def grown(box):
    return max(LIMIT, box.size)
"""
WHILE = """
def doubled(count):
    total = 0
    while count > 0:
        total += 2
        count -= 1
    return total
"""
TABLE = """
ENDS = {"ack": 1, "skip": 2}
assert len(ENDS) == 2

def end_of(event):
    return ENDS[event]
"""
COUNTED = """
def counted(count):
    while count > 0:
        yield count
        count -= 1
"""
HANGS_OR_FAILS = """assert sum(counted(2)) == 3

def test_that_ends():
    import itertools
    assert sum(range(2_000_000))  # so it is not the quickest
    assert [*itertools.islice(counted(3), 4)] == [3, 2, 1]
"""
ENDS_IN_TIME = """pass

import pytest

@pytest.mark.timeout(0.5)
def test_that_ends_in_time():
    assert doubled(2) == 4
"""
WEAK, STRONG = "assert is_full(9)", "assert is_full(3) and not is_full(2)"
AT_LIMIT = "planted.py:is_full: return count >= LIMIT → return count > LIMIT"


# The databases of forks before this one are gone, and the one with an empty store is there.
ON_POSTGRES = """
import os
import psycopg
from planted import *

def test_on_postgres():
    with psycopg.connect(os.environ["POPMQ_TEST_PG_URL"], autocommit=True) as conn:
        assert conn.execute("SELECT COUNT(*) FROM pg_database WHERE datname LIKE 'popmq_test_%'").fetchone() == (1,)
        conn.execute(f"CREATE DATABASE popmq_test_{os.getpid()}_0")
    assert is_full(9)
    with psycopg.connect(os.environ["POPMQ_TEST_PG_TEMPLATE"]) as conn:
        conn.execute("SELECT * FROM topic")
"""
TABLES = """
def first():
    return _STEPS[0]

_STEP = 2
_STEPS = [_STEP * each for each in range(3)]
PUBLIC = _STEP

def steps():
    return _STEPS

def other():
    return PUBLIC
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "proof.mutations", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def judged(folder: Path, source: str, test: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The report about a file `planted.py` with one test."""
    (folder / "planted.py").write_text(source)
    (folder / "test_planted.py").write_text(f"from planted import *\n\ndef test_planted():\n    {test}\n")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    return run("--root", str(folder), "--source", "planted.py", "--tests", "test_planted.py", *arguments)


@pytest.mark.parametrize(
    "source, test, expected",
    [
        pytest.param(SOURCE, STRONG, ["0 unexplained; score 1.000"], id="strong"),
        pytest.param(
            SOURCE, WEAK, ["return count >= LIMIT → return count > LIMIT", "LIMIT = 3 → LIMIT = 4"], id="weak"
        ),
        pytest.param(SOURCE, "pass", ["(no test reaches it)"], id="unreached"),
        pytest.param(WHILE, "assert doubled(2) == 4", ["× no end in time, twice"], id="hangs"),
        pytest.param(COUNTED, HANGS_OR_FAILS, ["0 unexplained; score 1.000"], id="hangs or fails"),
        pytest.param(WHILE, ENDS_IN_TIME, ["0 unexplained; score 1.000"], id="has a limit of its own"),
        pytest.param(TABLE, "assert end_of('ack') == 1", ["5 × it cannot be imported", '"skip": 3}'], id="imports"),
    ],
)
def test_it_knows_weak_tests_from_strong_ones(tmp_path: Path, source: str, test: str, expected: list[str]) -> None:
    report = judged(tmp_path, source, test, "--seconds", "1")
    for words in expected:
        assert words in report.stdout, report.stdout + report.stderr
    unexplained = ("(all tests passed)", "(no test reaches it)", "(no end in time, twice)")
    assert report.returncode == any(words in report.stdout for words in unexplained)


def test_forks_use_one_postgres_and_leave_it_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "test_on_postgres.py").write_text(ON_POSTGRES)
    report = judged(tmp_path, SOURCE, "pass", "--postgres", "--tests", "test_on_postgres.py", "--jobs", "1")
    assert "3 mutants, 1 killed" in report.stdout, report.stdout + report.stderr


@pytest.mark.parametrize(
    "before, after, lines",
    [
        pytest.param("range(3)", "range(4)", {3, 10}, id="a value that functions use"),
        pytest.param("_STEP = 2", "_STEP = 3", None, id="a value that others may have"),
        pytest.param("return PUBLIC", "return None", None, id="a function that others may have"),
    ],
)
def test_a_value_of_a_module_is_made_again(before: str, after: str, lines: set[int] | None) -> None:
    """Without an import, if nobody else can have it."""
    found = rebinding_of(TABLES, TABLES.replace(before, after), "planted.py", imported=[2, 5, 6, 7])
    assert (set(found.lines) if found else None) == lines


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        pytest.param("LIMIT = 3", {9, 12}, id="a constant"),
        pytest.param("    size: int = 0", {12}, id="a field"),
        pytest.param("def is_full(box, more=1):", {9}, id="parameters"),
        pytest.param("UNUSED = 1", set(), id="what no function uses"),
    ],
)
def test_tests_of_what_uses_it_judge_a_value_first(changed: str, lines: set[int]) -> None:
    at = BOXES.splitlines().index(changed) + 1
    mutant = Mutant("boxes.py", "", "", (at, at), is_in_body=False, source=BOXES)
    assert lines_near(mutant, BOXES) == lines


def test_a_constant_is_judged_by_tests_that_reach_no_line_of_its_file(tmp_path: Path) -> None:
    tests = "assert is_full(9)\n\ndef test_limit():\n    assert LIMIT == 3"
    report = judged(tmp_path, SOURCE, tests)
    assert AT_LIMIT.partition("is_full: ")[2] in report.stdout
    assert "LIMIT = 3 →" not in report.stdout


def test_files_that_import_a_module_judge_it_before_quicker_ones(tmp_path: Path) -> None:
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "limits.py").write_text("MOST = 3\n")
    (tmp_path / "test_slow.py").write_text("from room import limits\n")
    (tmp_path / "test_direct.py").write_text("from room.limits import MOST\n")
    (tmp_path / "test_quick.py").write_text("from room import limited\n")
    seconds = {"test_slow.py::test": 3.0, "test_direct.py::test": 2.0, "test_quick.py::test": 1.0}
    baseline = Baseline(seconds, reached={"room/limits.py": {}}, imported={}, failed=[], loaded=[])
    mutant = mutants_of("room/limits.py", tmp_path)[0]
    chosen = judge._chosen(mutant, tmp_path, baseline, budget_s=9)
    assert chosen == [f"test_{each}.py::test" for each in ("direct", "slow", "quick")]


def test_a_survivor_with_a_reason_may_survive(tmp_path: Path) -> None:
    explained = tmp_path / "survivors.toml"
    explained.write_text(
        '[[survivor]]\nplace = "planted.py:is_full"\nwhy = "Planted."\n'
        'changes = ["return count >= LIMIT → return count > LIMIT", "gone → gone"]\n'
    )
    report = judged(tmp_path, SOURCE, "assert is_full(4) and not is_full(2)", "--explained", str(explained))
    assert "1 explained" in report.stdout
    assert "explained, but killed or gone: planted.py:is_full: gone → gone" in report.stdout


def test_a_red_test_is_no_judge(tmp_path: Path) -> None:
    report = judged(tmp_path, SOURCE, "assert is_full(2)")
    assert "fail without a change: test_planted.py::test_planted" in report.stderr
    assert report.returncode == 1


def test_tables_lose_entries_and_states_are_exchanged() -> None:
    changes = [each.change for each in mutants_of("popserver/model/states.py", ROOT)]
    assert "(State.INFLIGHT, Event.ACK): State.COMMIT, → " in changes
    assert "(State.INFLIGHT, Event.ACK): State.COMMIT, → (State.INFLIGHT, Event.ACK): State.DLQ," in changes


def test_type_variables_are_left_out() -> None:
    assert [each.change for each in mutants_of("popserver/fifo/order.py", ROOT) if not each.function] == []


@pytest.mark.parametrize("part", [["--only", "decode"], ["--functions"], ["--source", "a.py"]])
def test_totals_are_of_whole_rooms(part: list[str]) -> None:
    report = run("--totals", *part)
    assert "--totals and --again are about whole rooms" in report.stderr
    assert report.returncode == 2


def test_a_run_goes_on_where_the_last_one_stopped(tmp_path: Path) -> None:
    def counts() -> dict[str, int]:
        report = run("fifo", "--totals", "--sample", "3", "--record", str(tmp_path))
        assert report.returncode == 0, report.stdout + report.stderr
        return read_totals("mutations", tmp_path)

    assert [counts()["judged"] for _ in range(3)] == [3, 6, 9]
    assert counts() == {
        "mutants": 34,
        "judged": 12,
        "killed": 12,
        "refused": 0,
        "explained": 0,
        "survived": 0,
        "violations": 0,
    }


def test_a_file_that_changed_is_judged_anew(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SOURCE)
    (tmp_path / "other.py").write_text(WHILE)
    record = Record(tmp_path, tmp_path / "totals")
    mutants = [*mutants_of("one.py", tmp_path), *mutants_of("other.py", tmp_path)]
    assert {*record.read(mutants)} == {None}
    verdicts = [Verdict.FAILED if at % 2 else Verdict.SURVIVED for at in range(len(mutants))]
    record.keep(mutants, verdicts)
    assert record.read(mutants) == verdicts
    (tmp_path / "other.py").write_text(WHILE + "\n")
    of_one = verdicts[: len(mutants_of("one.py", tmp_path))]
    assert record.read(mutants) == of_one + [None] * (len(mutants) - len(of_one))


def test_verdicts_of_a_run_that_was_killed_are_kept(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SOURCE)
    record = Record(tmp_path, tmp_path / "totals")
    mutants = mutants_of("one.py", tmp_path)
    record.noting(mutants)(1, Verdict.FAILED)
    record.noting(mutants)(2, Verdict.SURVIVED)
    noted = [None, Verdict.FAILED, Verdict.SURVIVED]
    assert record.read(mutants) == noted
    record.keep(mutants, record.read(mutants))
    assert [each.name for each in (tmp_path / "totals" / "verdicts").iterdir()] == ["mutations.json"]
    assert record.read(mutants) == noted
    record.noting(mutants)(0, Verdict.FAILED)
    (tmp_path / "one.py").write_text(SOURCE + "\n")
    assert record.read(mutants) == [None] * 3


def test_what_mypy_refuses_needs_no_test() -> None:
    [refused] = [
        each
        for each in mutants_of("popserver/engine/timers.py", ROOT)
        if each.change == "self._closed = False → self._closed = None"
    ]
    taken = mutants_of("popserver/fifo/order.py", ROOT)[-1]
    assert by_types(Verdict.SURVIVED, refused, ROOT) is Verdict.REFUSED
    assert by_types(Verdict.UNREACHED, refused, ROOT) is Verdict.REFUSED
    assert by_types(Verdict.HUNG, refused, ROOT) is Verdict.REFUSED
    assert by_types(Verdict.FAILED, refused, ROOT) is Verdict.FAILED
    assert by_types(Verdict.SURVIVED, taken, ROOT) is Verdict.SURVIVED


def test_survivors_are_judged_again_when_there_are_more_tests(tmp_path: Path) -> None:
    record = Record(ROOT, tmp_path)
    mutants = mutants_of("popserver/fifo/order.py", ROOT)
    record.keep(mutants, [*[Verdict.FAILED] * (len(mutants) - 2), Verdict.SURVIVED, Verdict.UNREACHED])
    report = run("fifo", "--again", "--record", str(tmp_path))
    assert "34 mutants, 34 killed" in report.stdout, report.stdout + report.stderr
    assert {*record.read(mutants)} == {Verdict.FAILED}


def test_what_has_noticed_a_mutant_judges_its_neighbours_first() -> None:
    [one, *_, other] = mutants_of("popserver/fifo/order.py", ROOT)
    elsewhere = mutants_of("popserver/model/states.py", ROOT)[0]
    failures = Failures({"a": 0.1, "b": 0.2, "c": 0.9}, 2)
    assert failures.in_order(0, one, ["c", "a", "b"]) == ["a", "b", "c"]
    failures.of(0).begins("c")
    failures.count(0, one, Verdict.FAILED)
    assert one.place != other.place
    assert failures.in_order(0, one, ["a", "b", "c"]) == ["c", "a", "b"]
    assert failures.in_order(1, other, ["a", "b", "c"])[0] == "c"
    assert failures.in_order(1, elsewhere, ["a", "b", "c"])[0] == "a"
    failures.of(1).begins("c")
    for _ in range(9):
        failures.in_order(1, one, ["a", "b", "c"])
        failures.count(1, one, Verdict.SURVIVED)
    assert failures.in_order(0, one, ["a", "b", "c"])[0] == "a"


@pytest.mark.parametrize("path", sorted({place.partition(":")[0] for place, _ in read_explained()}))
def test_each_explained_mutant_exists(path: str) -> None:
    """Whether it survives is judged by `make mutations`."""
    reasons = {key: why for key, why in read_explained().items() if key[0].partition(":")[0] == path}
    mutants = mutants_of(path, ROOT)
    assert divide(mutants, mutants, reasons).stale == []


def test_rooms_name_files_that_exist() -> None:
    for room in ROOMS.values():
        assert [path for path in (*room.sources, *room.tests) if not (ROOT / path).exists()] == []


def test_the_tests_of_handles_are_strong() -> None:
    report = run("handles", "--functions")
    assert report.returncode == 0, report.stdout + report.stderr


@pytest.mark.full
def test_the_tests_of_the_law_and_of_order_are_strong() -> None:
    report = run("law", "fifo", "--functions", "--sample", "60")
    assert report.returncode == 0, report.stdout + report.stderr
