"""What a load needs, by figures that a test can compute in its head."""

from __future__ import annotations

import math
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
    send=PerRequest(one=72.0, many=10.0, light=172.0, large=10.0 + 15_360 * 0.001),
    send_database=PerRequest(one=36.0, many=5.0, light=86.0, large=5.0 + 15_360 * 0.002),
    receive=PerRequest(one=134.0, many=10.0, light=334.0, large=10.0 + 15_360 * 0.003),
    receive_database=PerRequest(one=67.0, many=5.0, light=117.0, large=5.0 + 15_360 * 0.004),
    ordered=2.0,
    ordered_database=3.0,
    removal=7.0,
    removal_database=3.0,
    server_bytes=1e8,
    group_bytes=1_000.0,
    group=50.0,
    group_database=20.0,
    poll_bytes=10_000.0,
    poll=11.0,
    poll_database=13.0,
    reached={"stored": 1e8, "groups": 1e4, "message_groups": 1e5, "idle_polls": 5e4, "workers": 4, "body": 16_384},
)
LOAD = Load(rate=1_000, body=1_000, hold_ms=0, retention_ms=HOUR_MS, per_send=32, queues=1_024)
MIB = 1 << 20
BUFFERS = (80 + 128 + 96 + 64) * MIB


def of(load: Load, *, is_sqlite: bool = False) -> Need:
    return need(load, UNITS, is_sqlite=is_sqlite)


def test_the_units_are_bytes_and_cores() -> None:
    found = of(LOAD)
    assert found.stored == 1_000 * 3_600
    assert found.message_bytes == 1_200
    assert found.disk_bytes == 1_000 * 3_600 * 1_200
    assert found.disk_planned_bytes == pytest.approx(1_000 * 3_600 * 1_200 * 1.3)
    assert found.server_cores == pytest.approx((1_000 * (10 + 7) + 1_000 * 10 + 50) / 1e6)
    assert found.database_cores == pytest.approx((1_000 * (5 + 3) + 1_000 * 5 + 20) / 1e6)
    assert found.server_cores_max == pytest.approx(found.server_cores + 1_000 * (100 + 200) / 32 / 1e6)
    assert found.database_cores_max == pytest.approx(found.database_cores + 1_000 * (50 + 50) / 32 / 1e6)
    assert found.memory_bytes == 1e8 + 1_000
    assert found.memory_bytes_max == found.memory_bytes + BUFFERS
    assert (found.workers, found.connections, found.dead_letters_per_day) == (1, 0, 0)


@pytest.mark.parametrize(
    ("more", "grown"),
    [
        (
            {"rate": 2_000.0},
            {
                "stored": 3_600_000,
                "disk_bytes": 3_600_000 * 1_200,
                "disk_planned_bytes": 3_600_000 * 1_200 * 1.3,
                "server_cores": 0.027,
                "database_cores": 0.013,
                "server_cores_max": 0.027 + 0.3 / 32,
                "database_cores_max": 0.013 + 0.1 / 32,
            },
        ),
        (
            {"average_rate": 500.0},
            {"stored": -1_800_000, "disk_bytes": -1_800_000 * 1_200, "disk_planned_bytes": -2.808e9},
        ),
        (
            {"body": 2_048},
            {
                "message_bytes": 1_048 * 10 / 9,
                "disk_bytes": 3_600_000 * 1_048 * 10 / 9,
                "disk_planned_bytes": 3_600_000 * 1_048 * 13 / 9,
                "server_cores": 1.024 * (1 + 3) / 1e3,
                "server_cores_max": 1.024 * (1 + 3) / 1e3,
                "database_cores": 1.024 * (2 + 4) / 1e3,
                "database_cores_max": 1.024 * (2 + 4) / 1e3,
            },
        ),
        (
            {"groups": 3},
            {
                "server_cores": 0.02 + 100 / 1e6,
                "database_cores": 0.01 + 40 / 1e6,
                "server_cores_max": 0.02 + 100 / 1e6 + 0.4 / 32,
                "database_cores_max": 0.01 + 40 / 1e6 + 0.1 / 32,
                "memory_bytes": 2_000,
                "memory_bytes_max": 2_000,
            },
        ),
        (
            {"delivered": 50.0},
            {
                "server_cores": -0.005,
                "database_cores": -0.0025,
                "server_cores_max": -0.005 - 0.1 / 32,
                "database_cores_max": -0.0025 - 0.025 / 32,
            },
        ),
        ({"dead": 1.0}, {"dead_letters_per_day": 864_000, "dead_letter_bytes_per_day": 864_000 * 1_210}),
        (
            {"dead": 1.0, "average_rate": 100.0},
            {
                "dead_letters_per_day": 86_400,
                "dead_letter_bytes_per_day": 86_400 * 1_210,
                "stored": -3_240_000,
                "disk_bytes": -3_240_000 * 1_200,
                "disk_planned_bytes": -3_240_000 * 1_200 * 1.3,
            },
        ),
        ({"hold_ms": 60_000}, {"disk_bytes": 60_000 * 100, "disk_planned_bytes": 60_000 * 130}),
        (
            {"retention_ms": 2 * HOUR_MS},
            {"stored": 3_600_000, "disk_bytes": 3_600_000 * 1_200, "disk_planned_bytes": 3_600_000 * 1_200 * 1.3},
        ),
        (
            {"message_groups": 100},
            {
                "message_bytes": 50,
                "disk_bytes": 3_600_000 * 50 + 100 * 100,
                "disk_planned_bytes": (3_600_000 * 50 + 100 * 100) * 1.3,
                "server_cores": 0.01,
                "server_cores_max": 0.01,
                "database_cores": 0.01,
                "database_cores_max": 0.01,
            },
        ),
        (
            {"idle_polls": 1_000},
            {
                "server_cores": 0.011,
                "server_cores_max": 0.011,
                "database_cores": 0.013,
                "database_cores_max": 0.013,
                "memory_bytes": 1e7,
                "memory_bytes_max": 1e7,
                "connections": 1_000,
            },
        ),
        (
            {"per_send": 1},
            {
                "server_cores": 0.062,
                "database_cores": 0.031,
                "server_cores_max": 0.062 + 0.1 * 31 / 32,
                "database_cores_max": 0.031 + 0.05 * 31 / 32,
            },
        ),
        (
            {"per_receive": 1},
            {
                "server_cores": 0.124,
                "database_cores": 0.062,
                "server_cores_max": 0.124 + 0.2 * 31 / 32,
                "database_cores_max": 0.062 + 0.05 * 31 / 32,
            },
        ),
    ],
)
def test_what_each_option_adds(more: dict[str, Any], grown: dict[str, float]) -> None:
    """All other numbers stay."""
    before, after = of(LOAD)._asdict(), of(replace(LOAD, **more))._asdict()
    numbers = [name for name, value in before.items() if isinstance(value, int | float)]
    found = {name: after[name] - before[name] for name in numbers}
    assert found == {name: pytest.approx(grown.get(name, 0.0), rel=1e-6, abs=1e-9) for name in numbers}


def test_rows_of_message_groups_are_held_for_each_group() -> None:
    one, three = (of(replace(LOAD, message_groups=100, groups=groups)) for groups in (1, 3))
    assert three.disk_bytes - one.disk_bytes == 2 * 100 * 100


def test_options_on_sqlite_are_of_one_process() -> None:
    found = of(replace(LOAD, rate=40_000.0), is_sqlite=True)
    assert found.workers == 1
    assert found.memory_bytes == 1e8 + 1_000
    assert [limit.name for limit in found.limits if "Postgres" in limit.name] == []


def test_a_busy_server_shares_transactions_however_few_callers_it_has() -> None:
    """One core is all that a server has, so requests wait for each other, and share."""
    found = of(replace(LOAD, rate=20_000.0, per_send=1, per_receive=1), is_sqlite=True)
    assert found.server_cores == found.server_cores_max == pytest.approx(20_000 * (72 + 7 + 134) / 1e6 + 50 / 1e6)
    half = of(replace(LOAD, rate=2_000.0, per_send=1, per_receive=1))
    alone = 2_000 * (172 + 7 + 334) / 1e6 + 50 / 1e6
    assert alone > 1 == half.server_cores_max
    part = (1 - half.server_cores) / (alone - half.server_cores)
    assert half.database_cores_max == pytest.approx(half.database_cores + part * 2_000 * (50 + 50) / 1e6)


def test_a_request_costs_something_and_so_does_each_message_and_each_byte() -> None:
    cost = PerRequest(72.0, 10.0, 172.0, 10.0 + 15_360 * 0.001)
    assert [cost.at(1), cost.at(2), cost.at(32)] == [pytest.approx(72.0), pytest.approx(40.0), pytest.approx(10.0)]
    assert [cost.at(32, body) for body in (0, 1_024, 2_024, 16_384, 32_768)] == pytest.approx(
        [10, 10, 11, 25.36, 41.744]
    )
    assert [cost.alone_at(count) for count in (1, 2, 32)] == pytest.approx([172, 90, 13.125])


@pytest.mark.parametrize(
    ("body", "expected"), [(100, 200), (550, 700), (1_000, 1_200), (5_500, 6_200), (20_000, 22_311)]
)
def test_bytes_are_on_the_line_between_measured_ones(body: int, expected: float) -> None:
    assert UNITS.bytes_of(body) == pytest.approx(expected, abs=1)


def test_one_sqlite_server_ends_at_one_core_and_the_answer_says_what_then() -> None:
    fitting, too_much = (
        of(replace(LOAD, rate=25_000.0), is_sqlite=True),
        of(replace(LOAD, rate=40_000.0), is_sqlite=True),
    )
    assert fitting.fits
    assert not too_much.fits
    assert "SQLite" in too_much.limits[0].name
    assert "use Postgres and --workers" in too_much.limits[0].advice
    assert too_much.workers == 1


def test_workers_are_as_many_as_the_load_keeps_busy() -> None:
    found = of(replace(LOAD, rate=150_000.0, postgres_cores=64))
    assert found.server_cores == pytest.approx(150_000 * 27 / 1e6 + 6 * 50 / 1e6)
    assert found.workers == 6  # 4.05 cores at 70 %
    assert found.fits
    assert "6 workers: measured up to 4" in found.beyond


def test_groups_of_which_each_worker_has_all_make_more_workers() -> None:
    """10,000 groups take half of each worker's core."""
    found = of(replace(LOAD, rate=15_000.0, groups=10_000, delivered=0.01, postgres_cores=64))
    assert found.workers == math.ceil(15_000 * 27 / 1e6 / (BUSY_MAX - 0.5))
    assert found.server_cores == pytest.approx(15_000 * 27 / 1e6 + found.workers * 0.5)
    assert found.database_cores == pytest.approx(15_000 * 13 / 1e6 + found.workers * 0.2)
    crowded = of(replace(LOAD, groups=20_000, delivered=0.01))
    assert not crowded.fits
    assert crowded.workers == WORKERS_MAX + 1


def test_the_memory_of_workers() -> None:
    """A supervisor, and workers that share the buffers, of which each has room for the largest request."""
    found = of(replace(LOAD, rate=150_000.0))
    assert found.memory_bytes == 48e6 + 6 * (112e6 + 1_000)
    assert found.memory_bytes_max - found.memory_bytes == 6 * (43 + 32 + 16 + 11) * MIB


def test_the_first_limit_is_that_of_which_most_is_used() -> None:
    postgres = of(replace(LOAD, rate=600_000.0))
    assert postgres.limits[0].name == "connections to Postgres, of which its default leaves 97"
    assert postgres.limits[0].used == postgres.workers * 10 / 97
    assert f"set max_connections of Postgres to {postgres.workers * 10 + 3} or more" in postgres.limits[0].advice
    (cores,) = (limit for limit in postgres.limits if limit.name == "one Postgres with 8 cores")
    assert cores.used == pytest.approx(postgres.database_cores / 8 / BUSY_MAX)
    (workers,) = (limit for limit in postgres.limits if limit.name == f"{WORKERS_MAX} workers on one port")
    assert workers.used == postgres.workers / WORKERS_MAX
    assert [limit.used for limit in postgres.limits] == sorted((each.used for each in postgres.limits), reverse=True)


@pytest.mark.parametrize(("rate", "connections"), [(1_000.0, 20_000), (100_000.0, 25_000)])
def test_connections_of_clients_end_and_workers_have_uneven_shares(rate: float, connections: int) -> None:
    found = of(replace(LOAD, rate=rate, idle_polls=20_000))
    (limit,) = (limit for limit in found.limits if limit.name.startswith("connections of clients"))
    assert limit.used == connections / 10_000
    assert f"set --max-connections to {connections:,} or more" in limit.advice
    assert found.connections == 20_000


def test_offsets_of_few_queues_end() -> None:
    found = of(replace(LOAD, rate=50_000.0, queues=1))
    assert "offsets" in found.limits[0].name
    assert "popmq topic update --queues" in found.limits[0].advice
    assert found.limits[0].used == 50_000 * 365 * 86_400 / 2**40
    assert of(replace(LOAD, rate=50_000.0, average_rate=10_000.0, queues=1)).fits


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"rate": 100_000.0, "retention_ms": 24 * HOUR_MS},
            "8,640,000,000 messages stored: measured up to 100,000,000",
        ),
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
        ({"retention_ms": 0}, ("--retention 0s", "removes nothing", "how long to plan for")),
        ({"retention_ms": -1}, ("--retention -1 ms", "at least 1")),
        ({"hold_ms": -1}, ("--hold -1 ms",)),
        ({"average_rate": 2_000.0}, ("--average-rate 2,000", "--rate 1,000", "the peak")),
        ({"average_rate": 0.0}, ("--average-rate 0", "at least 0.001")),
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
    for units in figures.of.values():
        assert units.reached.keys() == UNITS.reached.keys()
        sizes = sorted(units.message_bytes)
        assert all(units.message_bytes[size] > size for size in sizes)
        for cost in (units.send, units.receive):
            assert cost.light > cost.one > cost.many > 0
            assert cost.large > cost.many
        assert units.removal > 0
    assert figures.of["sqlite"].send_database == PerRequest(0, 0, 0, 0)
    assert figures.of["postgres"].send_database.one > 0
    assert figures.of["postgres"].removal_database > 0
    assert figures.of["sqlite"].reached["workers"] == 1
