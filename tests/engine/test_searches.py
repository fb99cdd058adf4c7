"""A search by time begins where the last one saw the first row, and misses none for long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.engine import searches
from popserver.engine.searches import (
    INTERVAL_MS_MAX,
    INTERVAL_MS_MIN,
    LOOKBACK_MS,
    PAUSE_MS_MAX,
    SEARCHES_MAX,
    SearchedFrom,
)
from tests.support.open_store import HOUR, START_MS

NOW = START_MS
SLACK_MS = 20_000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time in which searches take none, unless a test lets it pass."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(searches, "meters", SimpleNamespace(now_s=lambda: clock.now_s))
    return clock


class SearchedInTest(SearchedFrom[int]):
    slack_ms: ClassVar = SLACK_MS


def look(searched: SearchedInTest, first_ms: int | None, now_ms: int, search: int = 1) -> None:
    """A look at everything, which saw that row."""
    assert searched.of(search, now_ms) == 0
    searched.saw(search, first_ms, now_ms)()


def test_the_first_search_looks_at_everything() -> None:
    searched = SearchedInTest()
    look(searched, None, NOW)
    assert (searched.of(1, NOW), searched.of(2, NOW)) == (NOW - SLACK_MS, 0)


def test_the_next_begins_at_the_first_row() -> None:
    searched = SearchedInTest()
    look(searched, NOW - HOUR, NOW)
    assert searched.of(1, NOW) == NOW - HOUR
    searched.saw(1, None, NOW + 1)()
    assert searched.of(1, NOW + 1) == NOW + 1 - SLACK_MS
    searched.saw(1, NOW, NOW + 2)()
    assert searched.of(1, NOW + 2) == NOW + 2 - SLACK_MS, "the clocks of servers differ"


def test_a_look_at_everything_is_repeated_soon_and_then_more_rarely() -> None:
    searched, now_ms, pauses = SearchedInTest(), NOW, []
    for _ in range(7):
        look(searched, None, now_ms)
        pauses.append(next(ms for ms in range(1, 100_000) if not searched.of(1, now_ms + ms)))
        now_ms += pauses[-1]
    assert pauses == [
        INTERVAL_MS_MIN,
        2_000,
        4_000,
        8_000,
        INTERVAL_MS_MAX,
        INTERVAL_MS_MAX,
        INTERVAL_MS_MAX,
    ]


@pytest.mark.parametrize(("took_s", "pause_ms"), [(0.0004, INTERVAL_MS_MIN), (0.05, 150_000), (1_000, PAUSE_MS_MAX)])
def test_looks_at_everything_take_little_of_the_time(clock: SimpleNamespace, took_s: float, pause_ms: int) -> None:
    searched = SearchedInTest()
    assert searched.of(1, NOW) == 0
    clock.now_s += took_s
    after_commit = searched.saw(1, None, NOW)
    clock.now_s += 1_000  # a COMMIT that waits for a standby is no part of the look
    after_commit()
    assert searched.of(1, NOW + pause_ms - 1) > 0
    searched.saw(1, None, NOW + pause_ms - 1)()  # An early look does not move the next one.
    assert searched.of(1, NOW + pause_ms) == 0


def test_between_them_searches_look_back_two_minutes(clock: SimpleNamespace) -> None:
    searched = SearchedInTest()
    assert searched.of(1, NOW) == 0
    clock.now_s += 1_000
    searched.saw(1, None, NOW)()
    now_ms = NOW + INTERVAL_MS_MIN
    assert searched.of(1, now_ms) == now_ms - LOOKBACK_MS
    searched.saw(1, None, now_ms)()
    assert searched.of(1, now_ms + 1) == now_ms - SLACK_MS
    searched.saw(1, NOW - HOUR, now_ms + 1)()
    assert searched.of(1, now_ms + 2 * INTERVAL_MS_MIN) == NOW - HOUR, "never later than what is known"


def test_one_that_found_what_others_had_missed_is_repeated_soon() -> None:
    searched, now_ms = SearchedInTest(), NOW
    for _ in range(5):
        look(searched, None, now_ms)
        now_ms += INTERVAL_MS_MAX
    look(searched, NOW - HOUR, now_ms)
    assert searched.of(1, now_ms + INTERVAL_MS_MIN - 1) == NOW - HOUR
    assert searched.of(1, now_ms + INTERVAL_MS_MIN) == 0


def test_after_a_clock_that_went_back_it_looks_at_everything() -> None:
    searched = SearchedInTest()
    look(searched, None, NOW)
    assert searched.of(1, NOW - 1) == 0


def test_a_search_that_began_before_it_was_forgotten_tells_nothing() -> None:
    searched = SearchedInTest()
    look(searched, None, NOW)
    after_commit = searched.saw(1, None, NOW)
    searched._seen.clear()  # as when there are too many
    after_commit()
    assert searched.of(1, NOW) == 0


def test_a_look_back_that_began_before_it_was_forgotten_tells_nothing(clock: SimpleNamespace) -> None:
    searched = SearchedInTest()
    assert searched.of(1, NOW) == 0
    clock.now_s += 1
    searched.saw(1, None, NOW)()
    assert searched.of(1, NOW + INTERVAL_MS_MIN) > 0
    after_commit = searched.saw(1, None, NOW)
    searched._seen.clear()  # as when there are too many
    after_commit()
    assert searched.of(1, NOW) == 0


def test_it_remembers_no_more_than_it_may() -> None:
    searched = SearchedInTest()
    for number in range(SEARCHES_MAX + 1):
        look(searched, None, NOW, number)
    assert searched.of(0, NOW) == 0
    assert searched.of(SEARCHES_MAX, NOW) > 0


@given(st.lists(st.tuples(st.integers(0, 3_000), st.integers(-SLACK_MS, HOUR), st.booleans()), max_size=60))
def test_what_is_stored_in_time_is_found_by_the_first_search_after_it_is_due(
    steps: list[tuple[int, int, bool]],
) -> None:
    searched, now_ms, stored = SearchedInTest(), NOW, list[int]()
    for after_ms, due_in_ms, is_held_up in steps:
        now_ms += after_ms
        from_ms = searched.of(1, now_ms)
        due = sorted(each for each in stored if each <= now_ms)
        found = [each for each in due if each >= from_ms]
        assert found == due
        stored = [each for each in stored if each not in due[is_held_up:]]
        left = [each for each in stored if each >= from_ms]
        searched.saw(1, min(left, default=None), now_ms)()
        stored.append(now_ms + due_in_ms)
