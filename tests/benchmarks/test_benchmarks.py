"""Every benchmark runs: with tiny numbers, to see that it measures what is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.__main__ import run
from benchmarks.bench import DOORS
from benchmarks.cases import CASES
from benchmarks.machine import Cores
from benchmarks.plan import Plan
from benchmarks.report import table, targets_table
from benchmarks.server_cases import TOGETHER

TINY = Plan(
    rounds=1,
    seconds=0.8,
    warm_up=0.2,
    stock=8_000,
    backlog_small=1_000,
    backlog_large=3_000,
    over_time_small=1_000,
    over_time_large=3_000,
    latency_seconds=0.2,
    far_from_due=2_000,
    due_burst=200,
    group_members=3,
    member_queues=8,
    member_changes=2,
    churns=4,
    idle_polls=20,
    idle_poll_seconds=5,
    idle_seconds=0.3,
    starts=1,
    insert_seconds=0.05,
)


@pytest.mark.row("M18")
@pytest.mark.timeout(600)
def test_every_case_measures_every_server(tmp_path: Path) -> None:
    result = run(list(CASES), TINY, ["noop", "sqlite", "postgres"], tmp_path, Cores(pin=False))

    assert list(result["cases"]) == list(CASES)
    for name, case in result["cases"].items():
        variants = set(case["variants"])
        if name.startswith(("door", "servers")):
            assert variants == set(DOORS if name.startswith("door") else TOGETHER), name
        else:
            assert {"sqlite", "postgres"} <= variants, name
        medians = {variant: figures["median"] for variant, figures in case["variants"].items()}
        assert case["unit"] not in ("msg/s", "calls/s") or min(medians.values()) > 0, (name, medians)
    lost = {variant: figures["median"] for variant, figures in result["cases"]["churn"]["variants"].items()}
    assert lost == {"sqlite": 0, "postgres": 0}
    assert result["environment"]["fsync_us"]["p50"] > 0
    assert all(name in table(result["cases"]) for name in CASES)
    assert all(words in targets_table(result["targets"]) for words in ("large backlog", "over the tag filter"))
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"
