"""Every benchmark runs: with tiny numbers, to see that it measures what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import run
from benchmarks.cases import CASES
from benchmarks.machine import Cores
from benchmarks.plan import Plan
from benchmarks.report import table, targets_table

TINY = Plan(
    rounds=1,
    seconds=0.8,
    warm_up=0.2,
    stock=8_000,
    backlog_small=1_000,
    backlog_large=3_000,
    latency_seconds=0.2,
    idle_polls=20,
    idle_poll_seconds=5,
    idle_seconds=0.3,
    starts=1,
    insert_seconds=0.05,
)


@pytest.mark.timeout(300)
def test_every_case_measures_every_server(tmp_path: Path) -> None:
    result = run(list(CASES), TINY, ["noop", "sqlite", "postgres"], tmp_path, Cores(pin=False))

    assert list(result["cases"]) == list(CASES)
    for name, case in result["cases"].items():
        assert {"sqlite", "postgres"} <= set(case["variants"]), name
        medians = {variant: figures["median"] for variant, figures in case["variants"].items()}
        assert case["unit"] != "msg/s" or min(medians.values()) > 0, (name, medians)
    assert result["environment"]["fsync_us"]["p50"] > 0
    assert all(name in table(result["cases"]) for name in CASES)
    assert "large backlog" in targets_table(result["targets"])
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
