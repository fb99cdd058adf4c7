"""Totals are sums over runs, and a run says whether it found a violation."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.totals import add_totals, read_totals


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
    assert read_totals("torture", tmp_path) == {}
