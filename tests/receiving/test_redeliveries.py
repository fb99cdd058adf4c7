"""How many of a group's deliveries are retries (requirement L16)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from popserver.engine.meters import Meters
from popserver.model.retry import MINUTE_MS
from popserver.receiving.redeliveries import DELIVERIES_MIN, RATIO_MAX, Redeliveries, hint
from tests.support.builders import GROUP
from tests.support.running_broker import RunningBroker

NOW = 1_735_689_600_000


class Given:
    """As much of a delivery as is counted."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt


def given(first: int, retries: int) -> list[Any]:
    return [Given(1)] * first + [Given(2)] * retries


@pytest.mark.row("L16")
@pytest.mark.parametrize(
    ("first", "retries", "is_high"),
    [(90, 10, False), (89, 11, True), (17, 3, True), (16, 3, False), (0, 0, False)],
    ids=["a tenth", "above a tenth", "enough to say so", "too few to say so", "none"],
)
def test_above_a_tenth_deserves_a_look(first: int, retries: int, is_high: bool) -> None:
    counts = Redeliveries(NOW, Meters().delivered)
    counts.count_held(1, 1, given(first, retries), NOW + 1)
    share = counts.share(1, NOW + MINUTE_MS)
    assert share == (first + retries, retries, MINUTE_MS)
    assert share.is_high is is_high
    assert bool(hint(GROUP, share)) is is_high
    assert counts.high(NOW + MINUTE_MS) == ([1] if is_high else [])


@pytest.mark.row("L16")
def test_the_page_says_when_the_hint_comes_and_what_else_to_do() -> None:
    page = (Path(__file__).parents[2] / "docs" / "retries.md").read_text()
    assert f"Above {RATIO_MAX:.0%}".replace("%", " %") in page
    assert f"from {DELIVERIES_MIN} deliveries on" in page
    assert "## Retries are not a throttle" in page


def test_old_deliveries_are_forgotten() -> None:
    counts = Redeliveries(NOW, Meters().delivered)
    counts.count_held(1, 1, given(0, 100), NOW)
    counts.count_held(1, 1, given(100, 0), NOW + 31 * MINUTE_MS)
    assert counts.share(1, NOW + 60 * MINUTE_MS) == (200, 100, 60 * MINUTE_MS)
    assert counts.share(1, NOW + 62 * MINUTE_MS) == (100, 0, 31 * MINUTE_MS)
    assert counts.share(1, NOW + 300 * MINUTE_MS) == (0, 0, 0)
    assert (counts._running, counts._before) == ({}, {})


def test_all_deliveries_of_half_an_hour_count() -> None:
    counts = Redeliveries(NOW, Meters().delivered)
    for minute in (0, 1, 29):
        counts.count_held(1, 1, given(7, 1), NOW + minute * MINUTE_MS)
    assert counts.share(1, NOW + 29 * MINUTE_MS) == (24, 3, 29 * MINUTE_MS)


@pytest.mark.row("L16")
async def test_what_is_given_back_is_no_retry(broker: RunningBroker) -> None:
    await broker.send(3)
    failed, unused, done = await broker.receive(push=True)
    await broker.change(failed, 1_000)
    await broker.change(unused, 0, give_back=True)
    await broker.ack(done)
    await broker.advance(1_000)
    again = await broker.receive(push=True)
    assert sorted(each.attempt for each in again) == [1, 2]
    group = await broker.broker.catalog.group(GROUP)
    share = broker.broker.consuming.redeliveries.share(group.group_id, broker.clock.now_ms())
    assert (share.deliveries, share.retries) == (5, 1)
