"""Fuzzing: a short run breaks no rule, each planted fault is found, and the file of a finding repeats it."""

from __future__ import annotations

import base64
import json
import random
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from proof.fuzz import guided
from proof.fuzz.__main__ import main
from proof.fuzz.corpus import CORPUS, keep, keep_new_answers, read_corpus
from proof.fuzz.planted import FAULTS, LEAKS
from proof.fuzz.run import Finding, leak_in, run_inputs
from proof.fuzz.target import FuzzTarget, FuzzViolation, must
from proof.fuzz.targets import SHARES, TARGETS

CORPUS_BYTES_MAX = 300_000


@pytest.mark.parametrize("name", TARGETS)
def test_no_rule_is_broken(name: str) -> None:
    target = TARGETS[name]()
    try:
        counts = run_inputs(target, seed=1, inputs=target.short)
    finally:
        target.close()
    assert counts.finding is None, counts.finding
    assert counts.inputs == target.short


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = FAULTS[name]
    with fault.planted():
        target = TARGETS[fault.target]()
        try:
            counts = run_inputs(target, seed=1, inputs=fault.within)
        finally:
            target.close()
        assert counts.finding is not None, f"not within {fault.within} inputs"
        path = counts.finding.write(tmp_path)
        assert main(["--replay", str(path)]) == 1
    assert main(["--replay", str(path)]) == 0
    assert "no rule is broken" in capsys.readouterr().out


@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = LEAKS[name]
    monkeypatch.setattr(TARGETS[fault.target], "leaked", 40)
    with fault.planted():
        with closing(TARGETS[fault.target]()) as target:
            finding = leak_in(target, seed=1)
        assert finding is not None
        path = finding.write(tmp_path)
        # A server's memory depends on all that it got: no input of it is at fault alone.
        assert main(["--replay", str(path)]) == bool(finding.data)
    assert main(["--replay", str(path)]) == 0


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.full] * TARGETS[each].has_state) for each in TARGETS]
)
def test_no_input_leaves_anything_in_memory(name: str) -> None:
    with closing(TARGETS[name]()) as target:
        assert leak_in(target, seed=1) is None


def test_an_input_depends_on_its_seed_and_number() -> None:
    target = TARGETS["filters"]()
    first, again, other = (
        run_inputs(target, seed, 500, first=1_000).comparisons for seed in (4, 4, 5)
    )  # fmt: skip
    assert first == again != other


def test_the_file_of_a_finding_has_its_input(tmp_path: Path) -> None:
    path = Finding("handles", b"R\xff", "why").write(tmp_path)
    assert base64.b64decode(json.loads(path.read_text())["input"]) == b"R\xff"


def test_the_corpus_is_small_and_every_target_has_a_share() -> None:
    assert sum(path.stat().st_size for path in CORPUS.iterdir()) < CORPUS_BYTES_MAX
    assert SHARES.keys() == TARGETS.keys()
    assert sum(SHARES.values()) == 100


def test_small_inputs_are_kept_once(tmp_path: Path) -> None:
    assert keep("handles", [b"a", b"a", b"b", b"x" * 1_000], tmp_path) == 2
    assert keep("handles", [b"b", b"c"], tmp_path) == 1
    assert read_corpus("handles", tmp_path) == [b"a", b"b", b"c"]


def test_an_input_is_kept_for_each_new_answer(tmp_path: Path) -> None:
    with closing(TARGETS["calls"]()) as target:
        kept = keep_new_answers(target, seed=1, inputs=60, folder=tmp_path)
    assert 10 < kept == len(read_corpus("calls", tmp_path))


@pytest.mark.full
def test_coverage_guides_a_run_to_new_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("atheris")
    monkeypatch.setattr(guided, "read_corpus", lambda _name: [])
    monkeypatch.setattr(guided, "keep", partial(keep, folder=tmp_path))
    monkeypatch.setattr(guided, "REACHED", tmp_path / "reached")
    done = guided.run_guided("offsets", seed=1, inputs=3_000)
    assert done.finding is None
    assert done.kept == len(read_corpus("offsets", tmp_path)) > 5
    assert len([*(tmp_path / "reached" / "offsets").iterdir()]) >= done.kept


class Counting(FuzzTarget):
    """Each third input is wrong, unless it makes the state new."""

    name: ClassVar[str] = "counting"

    def draw(self, dice: random.Random) -> bytes:
        return dice.randbytes(1)

    def judge(self, data: bytes) -> int:
        self.age = 1 if data == b"new" else self.age + 1
        must(self.age < 3, f"{data!r} is input {self.age}")
        return 1


def test_a_guided_finding_is_repeated_with_the_inputs_before_it(tmp_path: Path) -> None:
    judge = guided.judging(Counting(), tmp_path / "slow", tmp_path)
    for data in (b"a", b"new", b"b"):
        judge(data)
    with pytest.raises(FuzzViolation):
        judge(b"c")
    (path,) = tmp_path.iterdir()
    found = Finding.read(path)
    assert (found.target, found.data, found.before) == ("counting", b"c", [b"new", b"b"])
    assert "b'c' is input 3" in found.what
    assert "b'c' is input 3" in (found.judged_again(Counting()) or "")
    assert replace(found, before=[b"b"]).judged_again(Counting()) is None
