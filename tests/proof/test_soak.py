"""What level is, and what a soak measures; a server that leaks is found by each measure, and a sound one is level."""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from proof.soak import planted
from proof.soak.level import SAMPLES_MIN, Bar, judge, thirds
from proof.soak.run import Result, compared, hold, soak
from proof.soak.samples import MIB, process_of
from tests.support.postgres import PostgresServer, fresh_database, postgres_server

BAR = Bar(0.1, 5)  # of a level of 100: 10
SHORT_MINUTES = 0.2


def noisy(values: list[float]) -> list[float]:
    chance = random.Random(1)
    return [each + chance.uniform(-15, 15) for each in values]


LEVEL = [100.0] * 120
SAWTOOTH = [80.0 + number % 13 * 4 for number in range(120)]
STEP = [80.0] * 50 + [100.0] * 70
OUTLIERS = [900.0 if number % 10 == 0 else 100.0 for number in range(120)]
WARMS_UP = [min(100.0, 3.0 * number) for number in range(120)]
FALLS = [200.0 - number for number in range(120)]
SLOW_LEAK = [100.0 + 0.25 * number for number in range(120)]
LATE_LEAK = [100.0] * 90 + [100.0 + 2 * number for number in range(30)]
LEAK_IN_STEPS = [100.0 + number // 20 * 5 for number in range(120)]


@pytest.mark.parametrize("values", [LEVEL, noisy(LEVEL), SAWTOOTH, noisy(SAWTOOTH), STEP, OUTLIERS, WARMS_UP, FALLS])
def test_it_is_level(values: list[float]) -> None:
    assert not judge("measure", values, BAR).grows


@pytest.mark.parametrize(
    "values",
    [
        SLOW_LEAK,
        LATE_LEAK,
        LEAK_IN_STEPS,
        noisy([each + 0.1 * number for number, each in enumerate(SLOW_LEAK)]),
        [tooth + 0.4 * number for number, tooth in enumerate(SAWTOOTH)],
    ],
)
def test_it_grows(values: list[float]) -> None:
    assert judge("measure", values, BAR).grows


def test_a_low_level_may_grow_by_a_fixed_amount() -> None:
    assert not judge("threads", [float(number > 100) for number in range(120)], Bar(0, 2)).grows
    assert judge("threads", [number / 10 for number in range(120)], Bar(0, 2)).grows


def test_too_few_samples_are_not_judged() -> None:
    with pytest.raises(ValueError, match=f"{SAMPLES_MIN} are the least"):
        judge("measure", [1.0], BAR)


def test_thirds_leave_nothing_out() -> None:
    values = [float(each) for each in range(20)]
    assert [each for part in thirds(values) for each in part] == values


def test_a_cost_that_doubles_beside_a_transaction_is_found() -> None:
    cost = "cost, ms per message"
    before, twice = [{cost: 10.0}] * 30, [{cost: 10.0}] * 20 + [{cost: 20.0}] * 10
    assert compared(cost, before, twice).grows
    assert not compared(cost, before, [{cost: 19.0}] * 30).grows


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a process is measured as Linux tells it")
def test_a_process_is_measured() -> None:
    before = process_of(os.getpid())
    kept, file = bytes([1]) * (32 * MIB), os.open(os.devnull, os.O_RDONLY)
    after = process_of(os.getpid())
    os.close(file)
    assert kept
    assert after["open files"] == before["open files"] + 1
    assert after["memory, MiB"] > before["memory, MiB"] + 16
    assert after["threads"] >= 1


# Leaks of one server whose measures do not hide each other: threads and tasks take memory too.
TOGETHER = (
    (),
    ("memory of each call", "a log that nobody empties", "rows that nobody removes"),
    ("a file of each connection", "a thread of each call", "a task of each call"),
)


@pytest.mark.full
@pytest.mark.timeout(540)
@pytest.mark.parametrize("leaks", TOGETHER, ids=lambda leaks: ", ".join(leaks) or "sound")
async def test_leaks_are_found(leaks: tuple[str, ...], tmp_path: Path) -> None:
    under = (sys.executable, "-m", "proof.soak.planted", ",".join(leaks))
    result = await soak(f"sqlite:///{tmp_path / 'soak.db'}", SHORT_MINUTES, options=planted.OPTIONS, under=under)
    watched = {measure for measure, _ in planted.LEAKS.values()}
    if "a thread of each call" in leaks:
        watched.remove("memory, MiB")
    found = {each.measure for each in result.violations} & watched
    assert found == {planted.LEAKS[leak][0] for leak in leaks}, "\n".join(map(str, result.growths))
    assert result.counts["messages"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_ten_minutes(database_url: str) -> None:
    result = await soak(database_url, 10)
    assert result.violations == [], "\n".join(map(str, result.growths))


def test_each_leak_is_planted() -> None:
    assert {leak for leaks in TOGETHER for leak in leaks} == set(planted.LEAKS)


@pytest.mark.full
@pytest.mark.timeout(540)
async def test_a_run_beside_an_open_transaction() -> None:
    """That it runs; whether costs grow, a run of half an hour shows."""
    with postgres_server(own=True) as postgres:
        assert isinstance(postgres, PostgresServer)
        with fresh_database(postgres) as url:
            result = await hold(url, 0.1, before_minutes=0.1)
    assert {each.measure for each in result.growths} >= {"Postgres ms per message", "CPU ms per message"}
    assert all(each.early > 0 and each.late > 0 for each in result.growths)


@pytest.mark.parametrize(
    ("failed", "fails"), [({}, False), ({"failures": 1}, False), ({"failures": 2}, True), ({"unknown": 2}, True)]
)
def test_clients_that_fail_are_no_level(failed: dict[str, int], fails: bool) -> None:
    assert Result([], Counter({"calls": 1_000} | failed)).fails == fails
