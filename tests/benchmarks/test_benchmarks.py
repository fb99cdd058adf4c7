"""Every benchmark runs: with tiny numbers, to see that it measures what is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import run
from benchmarks.abuse_cases import abuse_table
from benchmarks.admin_calls import admin_table
from benchmarks.bench import DOORS, ENGINES
from benchmarks.cases import CASES
from benchmarks.machine import Cores
from benchmarks.plan import Plan
from benchmarks.report import table, targets_table
from benchmarks.together_cases import COUNTS
from popproto.v2 import admin_pb2

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
    admin_topics=100,
    insert_seconds=0.05,
    dead_letters=2_000,
    micro_batches=3,
    flights=500,
)

ADMIN = admin_pb2.DESCRIPTOR.services_by_name["Admin"]

# They take their time however small the numbers are: holds of ten seconds, members that share queues.
LONG = ("hold", "rebalance", "churn", "backlog_pull", "backlog_seek", "backlog_first_receive")
SPARK = ("spark_dead_letters", "spark_micro_batch", "spark_flights")


@pytest.mark.row("M18")
@pytest.mark.timeout(1_800)
def test_every_case_measures_every_server(tmp_path: Path) -> None:
    result = _measured([name for name in CASES if name not in LONG + SPARK], tmp_path)
    assert all(words in targets_table(result["targets"]) for words in ("large backlog", "over the tag filter"))
    assert {each.name for each in ADMIN.methods} == {
        method
        for call in result["cases"]["admin_calls"]["variants"]["sqlite"]["rounds"][0]["calls"]
        if (method := call.split()[0].rstrip(",")) in ADMIN.methods_by_name
    }
    assert "slowest on postgres: " in admin_table(result["cases"])


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_every_long_case_measures_every_server(tmp_path: Path) -> None:
    result = _measured(LONG, tmp_path)
    lost = {variant: figures["median"] for variant, figures in result["cases"]["churn"]["variants"].items()}
    assert lost == {"sqlite": 0, "postgres": 0}


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_every_case_of_spark_measures_every_store(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")
    result = _measured(SPARK, tmp_path)
    for name, ratio in zip(SPARK, ("of_rows", "of_empty", "of_parquet"), strict=True):
        assert all(figures[ratio] > 0 for figures in result["cases"][name]["variants"].values()), name


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("attack", "outcomes"), [("bodies", range(24, 25)), ("pings", range(100, 1 << 30))])
def test_an_attack_is_measured_beside_a_client(tmp_path: Path, attack: str, outcomes: range) -> None:
    plan = TINY._replace(abuse_quiet_seconds=0.3, abuse_seconds=1.5, abuse_after_seconds=0.2)
    result = run([f"abuse_{attack}"], plan, [], tmp_path, Cores(pin=False))
    (figures,) = result["cases"][f"abuse_{attack}"]["variants"]["this"]["rounds"]
    assert sum(figures["outcome"].values()) in outcomes
    assert all(figures["calls"][call]["p99"] > 0 for call in ("send", "receive", "ack"))
    assert figures["lost"] == 0
    assert figures["peak_mib"] >= figures["idle_mib"] > 0
    assert attack in abuse_table(result["cases"])


def _measured(names: Sequence[str], folder: Path) -> dict[str, Any]:
    result = run(list(names), TINY, ["noop", "sqlite", "postgres"], folder, Cores(pin=False))

    assert list(result["cases"]) == [name for name in CASES if name in names]
    for name, case in result["cases"].items():
        variants = set(case["variants"])
        families = {"door": set(DOORS), "engine": set(ENGINES), "servers": set(COUNTS)}
        if family := families.get(name.partition("_")[0]):
            assert variants == family, name
        else:
            assert {"sqlite", "postgres"} <= variants, name
        medians = {variant: figures["median"] for variant, figures in case["variants"].items()}
        assert case["unit"] not in ("msg/s", "calls/s", "rows/s") or min(medians.values()) > 0, (name, medians)
    assert result["environment"]["fsync_us"]["p50"] > 0
    assert all(name in table(result["cases"]) for name in names)
    assert list(folder.iterdir()) == [], "nothing is left behind"
    return result
