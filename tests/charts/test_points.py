"""The rows of charts: bounded, and right whichever servers write them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from popserver.charts import points
from popserver.charts.points import WritePoints, write
from popserver.charts.rules import LEVELS, ChartCounts, ChartKind, Delays, Level, Owner, Point
from popserver.database.database import Database
from popserver.engine.transaction import Transaction
from popserver.model.retry import HOUR_MS
from tests.support.emptied_database import emptied
from tests.support.open_store import OpenStore

GROUP, TOPIC = Owner(ChartKind.GROUP, 7), Owner(ChartKind.TOPIC, 7)
FINE = LEVELS[0]


def put(
    store: OpenStore,
    at_ms: int,
    counts: Mapping[Owner, ChartCounts] | None = None,
    delays: Mapping[Owner, Delays] | None = None,
) -> None:
    store.now_ms = at_ms
    store.one(write, WritePoints(at_ms, counts or {}, delays or {}))


def of(store: OpenStore, owner: Owner = GROUP, level: Level = FINE, now_ms: int | None = None) -> list[Point]:
    return points.points(store.conn, owner, level, store.now_ms if now_ms is None else now_ms)


def counts(number: int, ready: int = 0) -> ChartCounts:
    return ChartCounts(number, number, ready, ready, ready, ready)


@pytest.fixture
def start(store: OpenStore) -> int:
    """The begin of a step of every level."""
    return LEVELS[-1].begin_ms(store.now_ms) + LEVELS[-1].step_ms


def test_a_point_has_the_last_counts_and_the_highest_values_of_its_step(store: OpenStore, start: int) -> None:
    for after_s, ready in ((0, 3), (5, 9), (10, 4)):
        put(store, start + after_s * 1_000, {GROUP: counts(after_s, ready), TOPIC: counts(1)})
    for level in LEVELS:
        (found,) = of(store, level=level)
        assert found == Point(start + 10_000, 10, 10, 9, 9, 9, 9, 0, 0, 0)
    (other,) = of(store, TOPIC)
    assert other.appended == 1, "a topic with the id of a group is another chart"


def test_the_next_step_begins_anew(store: OpenStore, start: int) -> None:
    put(store, start, {GROUP: counts(5, 9)}, {GROUP: Delays(3, 30, 10)})
    put(store, start + 15_000, {GROUP: counts(6, 1)})
    first, second = of(store)
    assert (first.ready, first.delivered) == (9, 3)
    assert (second.ready, second.delivered, second.appended) == (1, 0, 6)
    (minute,) = of(store, level=LEVELS[1])
    assert (minute.ready, minute.delivered, minute.appended) == (9, 3, 6)


def test_rows_have_a_limit_and_old_ones_leave(store: OpenStore, start: int) -> None:
    laps = range(3 * FINE.size)
    for number in laps:
        put(store, start + number * FINE.step_ms, {GROUP: counts(number), **({TOPIC: counts(1)} if number < 9 else {})})
    found = of(store)
    assert [each.appended for each in found] == list(laps)[-FINE.size :]
    rows = "SELECT COUNT(*) FROM chart_point WHERE step_s = :step AND kind = :kind"
    assert store.one_value(rows, step=FINE.step_s, kind="GROUP") == FINE.size
    assert store.one_value(rows, step=FINE.step_s, kind="TOPIC") == 0, "what no chart writes any more"
    assert of(store, TOPIC) == []


def test_after_a_stop_nothing_old_is_shown(store: OpenStore, start: int) -> None:
    put(store, start, {GROUP: counts(1)})
    later = start + FINE.range_ms + 5 * FINE.step_ms
    assert of(store, now_ms=later) == []
    put(store, later, {GROUP: counts(2)})
    assert [each.appended for each in of(store)] == [2]
    assert [each.appended for each in of(store, level=LEVELS[-1])] == [2], "one step of an hour"


def test_a_clock_that_was_set_back_writes_over_the_future(store: OpenStore, start: int) -> None:
    put(store, start + HOUR_MS, {GROUP: counts(9, 9)})
    assert of(store, now_ms=start) == []
    put(store, start + HOUR_MS - FINE.range_ms, {GROUP: counts(1, 1)})
    (found,) = of(store)
    assert (found.appended, found.ready) == (1, 1)


def test_two_servers_count_once_and_deliver_together(store: OpenStore, start: int) -> None:
    put(store, start, None, {GROUP: Delays(2, 20, 10)})
    assert of(store) == [Point(start, None, None, None, None, None, None, 2, 20, 10)], "not yet counted"
    put(store, start + 1_000, {GROUP: counts(5, 3)}, {GROUP: Delays(1, 1_000, 1_000)})
    put(store, start + 1_500, {GROUP: counts(5, 3)})
    put(store, start + 2_000, None, {GROUP: Delays(1, 4, 5)})
    assert of(store) == [Point(start + 1_500, 5, 5, 3, 3, 3, 3, 4, 1_024, 1_000)]


def test_many_charts_are_written_in_steps(store: OpenStore, start: int) -> None:
    many = {Owner(ChartKind.GROUP, number): counts(number) for number in range(2_500)}
    put(store, start, many, {owner: Delays(1, 1, 1) for owner in many})
    assert store.one_value("SELECT COUNT(*) FROM chart_point") == len(LEVELS) * len(many)
    assert of(store, Owner(ChartKind.GROUP, 2_499))[0].appended == 2_499


def test_a_server_does_not_wait_for_another_that_writes(postgres_database: Database) -> None:
    with emptied(postgres_database) as store:
        start = LEVELS[-1].begin_ms(store.now_ms) + LEVELS[-1].step_ms
        request = WritePoints(start, {GROUP: counts(1)}, {GROUP: Delays(1, 1, 1)})
        with postgres_database.writing.connect() as stopped:
            postgres_database.begin(stopped)
            assert write(Transaction.at(stopped, start), [request]) == [True]
            assert store.one(write, request) is False
            stopped.exec_driver_sql("ROLLBACK")
        assert store.one(write, request) is True
        (found,) = of(store, now_ms=start)
        assert found.delivered == 1
