"""What the points of a chart say."""

from __future__ import annotations

import pytest

from popserver.administration.facts import Lag
from popserver.charts.rules import (
    LEVELS,
    ChartCounts,
    ChartKind,
    Delays,
    Level,
    Owner,
    Point,
    Shown,
    TopicCount,
    counts_of,
    delays_of,
    first_series,
    level_for,
    shown,
)
from popserver.engine.meters import DELIVERY_MS
from popserver.model.names import Resource
from popserver.model.retry import HOUR_MS, MINUTE_MS, SECOND_MS

AT = 1_700_000_000_000


def lag(group: int, topic: int, **counts: int | None) -> Lag:
    given: dict[str, int | None] = {"ready": 0, "inflight": 0, "waiting_retry": 0, "dead_letters": 0, "stored": 0}
    given |= {"oldest_ready_ms": None, "appended": 100} | counts
    return Lag(Resource("", f"g{group}"), Resource("", f"t{topic}"), group_id=group, topic_id=topic, **given)  # type: ignore[arg-type]


def point(at_ms: int, appended: int | None, done: int | None = None, **more: int) -> Point:
    rest = {"ready": 1, "inflight": 2, "waiting_retry": 3, "oldest_age_ms": 4} | more
    delays = {name: rest.pop(name, 0) for name in Delays._fields}
    return Point(at_ms, appended, done, **rest, **delays)


@pytest.mark.parametrize(
    ("range_ms", "step_s"),
    [(1, 15), (15 * MINUTE_MS, 15), (HOUR_MS, 60), (HOUR_MS + 1, 600), (24 * HOUR_MS, 600), (168 * HOUR_MS, 3_600)],
)
def test_the_finest_level_that_has_the_range_is_taken(range_ms: int, step_s: int) -> None:
    assert level_for(range_ms).step_s == step_s


def test_slots_are_used_in_turn() -> None:
    level = Level(15, 3)
    slots = [level.slot(AT + number * level.step_ms) for number in range(7)]
    assert len(set(slots[:3])) == 3 and slots[:3] == slots[3:6]
    assert level.begin_ms(AT + 1) == level.begin_ms(AT)


def test_a_group_is_summed_over_topics_and_a_topic_over_groups() -> None:
    lags = [
        lag(1, 1, ready=3, inflight=2, oldest_ready_ms=AT - 5_000),
        lag(1, 2, ready=1, dead_letters=4, appended=50, oldest_ready_ms=AT - 9_000),
        lag(2, 1, waiting_retry=7),
    ]
    topics = [TopicCount(1, "t1", 100), TopicCount(2, "t2", 50), TopicCount(3, "empty", 9), TopicCount(4, "%DLQ%g1", 4)]
    found = counts_of(lags, topics, AT)
    assert found[Owner(ChartKind.GROUP, 1)] == ChartCounts(150, 150 - 3 - 2 - 1 - 4, 4, 2, 0, 9_000)
    assert found[Owner(ChartKind.GROUP, 2)] == ChartCounts(100, 93, 0, 0, 7, 0)
    assert found[Owner(ChartKind.TOPIC, 1)] == ChartCounts(100, 95 + 93, 3, 2, 7, 5_000)
    assert found[Owner(ChartKind.TOPIC, 3)] == ChartCounts(9, 0, 0, 0, 0, 0)
    assert Owner(ChartKind.TOPIC, 4) not in found, "it is a group's own"


def test_what_was_created_first_has_a_chart() -> None:
    owners = [Owner(kind, number) for number in (9, 3, 5) for kind in ChartKind]
    assert first_series(owners, 3) == {Owner(ChartKind.GROUP, 3), Owner(ChartKind.TOPIC, 3), Owner(ChartKind.GROUP, 5)}


def test_the_delay_of_nearly_all_deliveries() -> None:
    counts = [0] * (len(DELIVERY_MS) + 1)
    counts[DELIVERY_MS.index(5)], counts[DELIVERY_MS.index(1_000)] = 98, 2
    assert delays_of(counts, 500.4, DELIVERY_MS) == Delays(100, 500, 1_000)
    counts[DELIVERY_MS.index(5)] = 998
    assert delays_of(counts, 0, DELIVERY_MS).slow_ms == 5
    assert delays_of([*[0] * len(DELIVERY_MS), 1], 1, DELIVERY_MS).slow_ms == DELIVERY_MS[-1], "above all limits"


def test_rates_are_of_the_time_between_two_points() -> None:
    first, second = shown([point(AT, 10, 4), point(AT + 15_000, 40, 4, delivered=4, delay_ms=10, slow_ms=5)], LEVELS[0])
    assert (first.stored_rate, first.done_rate) == (None, None)
    assert second == Shown(AT + 15_000, 2.0, 0.0, 1, 2, 3, 4, 2.5, 5)
    assert (first.mean_delay_ms, first.slow_delay_ms) == (None, None), "nothing was delivered"


def test_what_goes_back_is_no_negative_rate() -> None:
    (_, second) = shown([point(AT, 10, 9), point(AT + 15_000, 10, 3)], LEVELS[0])
    assert second.done_rate == 0.0


def test_no_line_goes_over_a_pause() -> None:
    points = [point(AT, 10), point(AT + 15 * SECOND_MS, 20), point(AT + 10 * MINUTE_MS, 30)]
    found = shown(points, LEVELS[0])
    assert [each.ready for each in found] == [1, 1, None, 1]
    assert found[2] == Shown(AT + 30 * SECOND_MS)
    assert found[3].stored_rate is None
    assert shown([], LEVELS[0]) == []


def test_deliveries_without_counts_have_no_rate() -> None:
    found = shown([point(AT, 10, 1), point(AT + 15_000, None), point(AT + 30_000, 40, 7)], LEVELS[0])
    assert [each.stored_rate for each in found] == [None, None, None]


def test_points_that_are_always_far_apart_are_one_line() -> None:
    """As those of a store whose looks take long."""
    far = [point(AT + number * MINUTE_MS, 60 * number) for number in range(6)]
    found = shown([*far, point(AT + HOUR_MS, 4_000)], LEVELS[0])
    assert [each.stored_rate for each in found] == [None, *[1.0] * 5, None, None]
