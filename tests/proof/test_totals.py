"""Totals are sums over runs or the last run of each part, and a run says whether it found a violation."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.totals import add_totals, read_totals, replace_totals


def test_runs_are_summed(tmp_path: Path) -> None:
    assert read_totals("torture", tmp_path) == {}
    add_totals("torture", {"kills": 3, "violations": 0}, tmp_path)
    assert add_totals("torture", {"kills": 4, "pauses": 1, "violations": 0}, tmp_path) == {
        "kills": 7, "pauses": 1, "violations": 0,
    }  # fmt: skip
    assert read_totals("torture", tmp_path)["kills"] == 7


def test_a_run_names_its_violations(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="violations=0"):
        add_totals("torture", {"kills": 3}, tmp_path)
    with pytest.raises(ValueError, match="violations=0"):
        replace_totals("torture", "servers", {"kills": 3}, tmp_path)
    assert read_totals("torture", tmp_path) == {}


def test_a_part_has_the_counts_of_its_last_run(tmp_path: Path) -> None:
    """Sums of earlier runs are no part, and are dropped."""
    add_totals("mutations", {"mutants": 500, "violations": 0}, tmp_path)
    replace_totals("mutations", "law", {"mutants": 9, "violations": 1}, tmp_path)
    replace_totals("mutations", "fifo", {"mutants": 3, "violations": 0}, tmp_path)
    sums = {"mutants": 11, "violations": 0}
    assert replace_totals("mutations", "law", {"mutants": 8, "violations": 0}, tmp_path) == sums
    assert read_totals("mutations", tmp_path) == sums
