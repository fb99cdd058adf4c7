"""What a server counts of its deliveries, by group and topic, and of their retries in the last hour."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from popserver.engine.meters import Delivered, Meters
from popserver.model.names import Resource
from popserver.receiving.redeliveries import Redeliveries, Share, hint
from tests.support.builders import GROUP, TOPIC, a_message
from tests.support.running_broker import RunningBroker

NOW = 1_735_689_600_000
SPAN_MS = 30 * 60_000


class Body(NamedTuple):
    """As much of a message as is counted."""

    body: bytes


class Stored(NamedTuple):
    message: Body
    stored_at_ms: int


class Given(NamedTuple):
    """As much of a delivery as is counted."""

    attempt: int
    stored: Stored


def given(attempt: int, size: int = 0, stored_ago_ms: int = 0) -> Any:
    return Given(attempt, Stored(Body(bytes(size)), NOW - stored_ago_ms))


@pytest.fixture
def meters() -> Meters:
    return Meters()


@pytest.fixture
def counts(meters: Meters) -> Redeliveries:
    return Redeliveries(NOW, meters.delivered)


def numbers(counted: Delivered) -> dict[str, int]:
    names = ("bytes", "held", "retries", "retry_bytes", "holds", "acks", "requeued")
    return {name: value for name in names if (value := getattr(counted, name))}


def test_first_attempts_have_delays_and_bytes_and_later_ones_have_bytes_of_their_own(
    meters: Meters, counts: Redeliveries
) -> None:
    counts.count(1, 2, [given(1, 10, 0), given(1, 20, 7), given(2, 100, 9)], NOW)
    counts.count(1, 2, [given(1, 30, 7), given(3, 200, 9), given(2, 300, 9)], NOW)
    counted = meters.delivered[1, 2]
    assert numbers(counted) == {"bytes": 60, "retries": 3, "retry_bytes": 600, "holds": 6}
    delays = counted.delays
    assert (delays.total, delays.count) == (14, 3)
    by_limit = dict(zip(delays.limits, delays.counts, strict=False))
    assert (by_limit[1], by_limit[5], by_limit[10]) == (1, 0, 2)
    assert counts.share(1, NOW) == (6, 3, 0)


def test_what_is_held_is_counted_before_its_bodies_are_read(meters: Meters, counts: Redeliveries) -> None:
    for _ in range(2):
        counts.count_held(1, 2, [given(1), given(1), given(2)], NOW)
    assert numbers(meters.delivered[1, 2]) == {"held": 4, "retries": 2, "holds": 6}
    counts.count_bytes(1, 2, [1, 2, 1, 3], [1, 10, 2, 20])
    counts.count_bytes(1, 2, [1, 2], [4, 40])
    assert numbers(meters.delivered[1, 2]) == {"held": 4, "retries": 2, "holds": 6, "bytes": 7, "retry_bytes": 70}
    assert counts.share(1, NOW) == (6, 2, 0)


def test_a_bulk_pull_counts_messages_that_nobody_has_to_ack(meters: Meters, counts: Redeliveries) -> None:
    for _ in range(2):
        counts.count_pulled(0, 2, 3, 50)
    assert numbers(meters.delivered[0, 2]) == {"held": 6, "bytes": 100}
    assert counts.share(0, NOW) == (0, 0, 0)


def test_each_group_and_topic_has_counts_of_its_own(meters: Meters, counts: Redeliveries) -> None:
    counts.count(1, 2, [given(2)], NOW)
    counts.count(1, 3, [given(1)], NOW)
    counts.count_held(4, 2, [given(2), given(1)], NOW)
    assert {key: each.holds for key, each in meters.delivered.items()} == {(1, 2): 1, (1, 3): 1, (4, 2): 2}
    assert (counts.share(1, NOW), counts.share(4, NOW), counts.share(9, NOW)) == ((2, 1, 0), (2, 1, 0), (0, 0, 0))


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    ("after_ms", "later_ms", "share"),
    [
        (SPAN_MS - 1, 0, (2, 1, SPAN_MS - 1)),
        (SPAN_MS, 0, (2, 1, SPAN_MS)),
        (SPAN_MS, SPAN_MS - 1, (2, 1, 2 * SPAN_MS - 1)),
        (SPAN_MS, SPAN_MS, (1, 0, SPAN_MS)),
        (2 * SPAN_MS - 1, 0, (2, 1, 2 * SPAN_MS - 1)),
        (2 * SPAN_MS, 0, (1, 0, 0)),
        (2 * SPAN_MS, 5, (1, 0, 5)),
        (SPAN_MS, 2 * SPAN_MS, (0, 0, 0)),
    ],
)
def test_the_share_is_of_this_span_and_of_the_one_before(
    counts: Redeliveries, held: bool, after_ms: int, later_ms: int, share: tuple[int, int, int]
) -> None:
    """One retry now, and one first attempt later; each span has 30 minutes."""
    count = counts.count_held if held else counts.count
    count(1, 2, [given(2)], NOW)
    count(1, 2, [given(1)], NOW + after_ms)
    assert counts.share(1, NOW + after_ms + later_ms) == share


def test_groups_with_too_many_retries_are_found_in_both_spans(counts: Redeliveries) -> None:
    counts.count(7, 2, [given(2)] * 20, NOW)
    counts.count(5, 2, [given(1)] * 20, NOW)
    counts.count(3, 2, [given(2)] * 20, NOW + SPAN_MS)
    assert counts.high(NOW + SPAN_MS) == [3, 7]
    assert counts.high(NOW + 2 * SPAN_MS) == [3]
    assert counts.high(NOW + 3 * SPAN_MS) == []


def test_a_share_of_nothing_is_none() -> None:
    assert Share(0, 0, 5).ratio == 0.0
    assert Share(8, 2, 5).ratio == 0.25


@pytest.mark.parametrize(("share", "is_high"), [((20, 3, 1), True), ((20, 2, 1), False), ((19, 19, 1), False)])
def test_a_hint_names_the_group_and_its_share(share: tuple[int, int, int], is_high: bool) -> None:
    said = hint(Resource("n", "g"), Share(*share))
    assert said.startswith("3 of the last 20 deliveries to group 'n/g' (15%) were retries") is is_high
    assert bool(said) is is_high


async def test_a_receive_counts_its_messages_and_their_delays(broker: RunningBroker) -> None:
    await broker.send([a_message(body=b"12345")])
    await broker.advance(40)
    await broker.send([a_message(body=b"123")])
    held = await broker.receive()
    await broker.change(held[0], 1_000)
    await broker.advance(1_000)
    assert [each.attempt for each in await broker.receive()] == [2]
    group, topic = await broker.broker.catalog.subscription(GROUP, TOPIC)
    counted = broker.broker.engine.meters.delivered[group.group_id, topic.topic_id]
    expected = {"bytes": 8, "retries": 1, "retry_bytes": 5, "holds": 3, "requeued": 1}
    assert numbers(counted) == expected
    assert (counted.delays.total, counted.delays.count) == (40, 2)
