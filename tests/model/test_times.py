"""Durations as people say them."""

from __future__ import annotations

import pytest

from popserver.model.retry import HOUR_MS, MINUTE_MS, SECOND_MS
from popserver.model.times import apart, span
from popserver.producing.rules import DAY_MS


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (SECOND_MS, "1 s"),
        (90 * SECOND_MS, "1 min 30 s"),
        (2 * HOUR_MS, "2 h"),
        (DAY_MS, "1 day"),
        (41 * DAY_MS, "41 days"),
        (40 * DAY_MS + 1, "40 days 1 ms"),
        (40 * DAY_MS + 59 * MINUTE_MS + 59 * SECOND_MS, "40 days 1 h"),
        (41 * DAY_MS - 5, "41 days"),
        (3 * DAY_MS + 4 * HOUR_MS + 5 * MINUTE_MS + 6, "3 days 4 h"),
    ],
)
def test_the_two_largest_units_that_are_not_zero_are_said(ms: int, said: str) -> None:
    assert span(ms) == said


def test_before_and_after() -> None:
    assert apart(HOUR_MS, 0) == "in 1 h"
    assert apart(21_345, 0) == "in 21 s"
    assert apart(1_345, 0) == "in 1 s 345 ms"
    assert apart(0, 0) == "0 ms ago"
    assert apart(0, 2 * DAY_MS) == "2 days ago"
