"""What a load needs, by figures that a test can compute in its head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from popserver.config import WORKERS_MAX
from popserver.model.message import BODY_BYTES_MAX
from popserver.model.retry import HOUR_MS
from popserver.sizing.load import BadLoad, Load, check
from popserver.sizing.need import BUSY_MAX, Need, need
from popserver.sizing.units import PerRequest, Units, measured

UNITS = Units(
    message_bytes={100: 200.0, 1_000: 1_200.0, 10_000: 11_200.0},
    held_bytes=100.0,
    ordered_bytes=50.0,
    dead_letter_bytes=10.0,
    send=PerRequest(72.0, 10.0),
    send_database=PerRequest(36.0, 5.0),
    receive=PerRequest(72.0, 10.0),
    receive_database=PerRequest(36.0, 5.0),
    ordered=2.0,
    ordered_database=3.0,
    server_bytes=1e8,
    group_bytes=1_000.0,
    group_us=1.0,
    poll_bytes=10_000.0,
    poll_us=10.0,
    removal_us=0.0,
)
REACHED = {"stored": 1e8, "groups": 1e4, "message_groups": 1e5, "idle_polls": 5e4, "workers": 4, "body": 16_384}
LOAD = Load(rate=1_000, body=1_000, retention=HOUR_MS, per_send=32, queues=1_024)


def of(load: Load, *, is_sqlite: bool = False) -> Need:
    return need(load, UNITS, REACHED, is_sqlite=is_sqlite)


@pytest.mark.row("M18")
def test_the_units_are_bytes_and_cores() -> None:
    found = of(replace(LOAD, hold=0))
    assert found.stored == 1_000 * 3_600
    assert found.disk_bytes == 1_000 * 3_600 * 1_200
    assert found.server_cores == pytest.approx((1_000 * 10 + 1_000 * 10 + 1) / 1e6)
    assert found.database_cores == pytest.approx((1_000 * 5 + 1_000 * 5) / 1e6)
    assert found.memory_bytes == 1e8 + 1_000


def test_a_request_costs_something_and_so_does_each_message() -> None:
    cost = PerRequest(72.0, 10.0)
    assert [cost.at(1), cost.at(2), cost.at(32)] == [pytest.approx(72.0), pytest.approx(40.0), pytest.approx(10.0)]


@pytest.mark.parametrize(
    ("body", "expected"), [(100, 200), (550, 700), (1_000, 1_200), (5_500, 6_200), (20_000, 22_311)]
)
def test_bytes_are_on_the_line_between_measured_ones(body: int, expected: float) -> None:
    assert UNITS.bytes_of(body) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("is_sqlite", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {"rate": 2_000.0},
        {"body": 2_000},
        {"groups": 3},
        {"dead": 1.0},
        {"hold": 60_000},
        {"retention": 2 * HOUR_MS},
        {"message_groups": 100},
        {"idle_polls": 1_000},
        {"per_send": 1},
        {"per_receive": 1},
    ],
)
def test_more_load_never_needs_less(more: dict[str, Any], is_sqlite: bool) -> None:
    before, after = of(LOAD, is_sqlite=is_sqlite), of(replace(LOAD, **more), is_sqlite=is_sqlite)
    numbers = ("disk_bytes", "dead_letter_bytes_per_day", "server_cores", "database_cores", "memory_bytes", "workers")
    grown = [(getattr(before, name), getattr(after, name)) for name in numbers]
    assert all(old <= new for old, new in grown)
    assert any(old < new for old, new in grown)


def test_a_filter_and_a_larger_batch_need_less() -> None:
    full = of(LOAD)
    assert (
        of(replace(LOAD, delivered=10.0)).server_cores < full.server_cores < of(replace(LOAD, per_send=1)).server_cores
    )


def test_one_sqlite_server_ends_at_one_core_and_the_answer_says_what_then() -> None:
    fitting, too_much = (
        of(replace(LOAD, rate=30_000.0), is_sqlite=True),
        of(replace(LOAD, rate=40_000.0), is_sqlite=True),
    )
    assert fitting.fits
    assert not too_much.fits
    assert "SQLite" in too_much.limits[0].name
    assert "use Postgres and --workers" in too_much.limits[0].advice
    assert too_much.workers == 1


def test_workers_are_as_many_as_the_load_keeps_busy() -> None:
    found = of(replace(LOAD, rate=200_000.0, postgres_cores=64))
    assert found.server_cores == pytest.approx(4.0, abs=0.01)
    assert found.workers == 6  # 4 cores at 70 %
    assert found.fits
    assert "6 workers: measured up to 4" in found.beyond


def test_the_first_limit_is_that_of_which_most_is_used() -> None:
    postgres, workers = of(replace(LOAD, rate=600_000.0)), of(replace(LOAD, rate=6_000_000.0, postgres_cores=1_000))
    assert postgres.limits[0].name == "one Postgres with 8 cores"
    assert postgres.limits[0].used == pytest.approx(6 / 8 / BUSY_MAX, rel=0.01)
    assert workers.limits[0].name == f"{WORKERS_MAX} workers on one port"
    assert [limit.used for limit in postgres.limits] == sorted((each.used for each in postgres.limits), reverse=True)


def test_offsets_of_few_queues_end() -> None:
    found = of(replace(LOAD, rate=50_000.0, queues=1))
    assert "offsets" in found.limits[0].name
    assert "popmq topic update --queues" in found.limits[0].advice
    assert of(replace(LOAD, rate=50_000.0, queues=64)).fits


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"rate": 100_000.0, "retention": 24 * HOUR_MS}, "8,640,000,000 messages stored: measured up to 100,000,000"),
        ({"groups": 20_000}, "20,000 consumer groups: measured up to 10,000"),
        ({"message_groups": 100_001}, "100,001 message groups: measured up to 100,000"),
        ({"idle_polls": 60_000}, "60,000 idle polls: measured up to 50,000"),
        ({"body": 20_000}, "20,000 bytes in a body: measured up to 16,384"),
    ],
)
def test_what_is_more_than_was_measured_is_named(more: dict[str, Any], sentence: str) -> None:
    assert of(LOAD).beyond == []
    assert sentence in of(replace(LOAD, **more)).beyond


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"rate": 0.0}, ("--rate 0", "at least 0.001", "such as 500")),
        ({"rate": float("nan")}, ("--rate nan", "10,000,000")),
        ({"rate": float("inf")}, ("--rate inf", "10,000,000")),
        ({"body": BODY_BYTES_MAX + 1}, ("--body 4,194,305", "4,194,304", "send a reference")),
        ({"delivered": 101.0}, ("--delivered 101", "at most 100", "per cent")),
        ({"retention": 0}, ("--retention 0 ms", "how long to plan for")),
        ({"per_send": 33}, ("--per-send 33", "at most 32")),
        ({"groups": -1}, ("--groups -1", "at least 0")),
    ],
)
def test_nonsense_is_refused_with_the_value_the_limit_and_the_way_out(
    more: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(BadLoad) as refusal:
        check(replace(LOAD, **more))
    assert [each for each in words if each not in str(refusal.value)] == []


def test_the_figures_of_the_package_are_those_of_the_benchmark() -> None:
    figures = measured()
    assert set(figures.of) == {"sqlite", "postgres"}
    assert figures.reached.keys() == REACHED.keys()
    for units in figures.of.values():
        sizes = sorted(units.message_bytes)
        assert all(units.message_bytes[size] > size for size in sizes)
        assert units.send.one > units.send.many > 0
        assert units.receive.one > units.receive.many > 0
    assert figures.of["sqlite"].send_database.one == 0
    assert figures.of["postgres"].send_database.one > 0
