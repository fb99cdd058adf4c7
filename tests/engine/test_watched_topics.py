"""A topic is watched while somebody waits in it, and for a minute after the last of them."""

from __future__ import annotations

import pytest

from popserver.engine.clock import ManualClock
from popserver.engine.wakeups import WatchedTopics

WATCHED_MS = 60_000


async def nothing() -> None:
    return


@pytest.fixture
def watched(clock: ManualClock) -> WatchedTopics:
    return WatchedTopics(clock)


def test_a_topic_is_new_once_however_many_wait_in_it(watched: WatchedTopics) -> None:
    told: list[frozenset[int]] = []
    watched.on_new = lambda: told.append(watched.topics())
    with watched.at(1):
        assert told == [frozenset({1})]
        with watched.at(1), watched.at(2):
            assert told == [frozenset({1}), frozenset({1, 2})]
        with watched.at(2):
            assert len(told) == 2, "it is still watched"
    with watched.at(1):
        assert len(told) == 2


async def test_it_is_watched_until_a_minute_after_the_last_wait(watched: WatchedTopics, clock: ManualClock) -> None:
    with watched.at(1):
        with watched.at(1):
            pass
        await clock.advance(2 * WATCHED_MS, nothing)
        watched.forget_old()
        assert watched.topics() == {1}
    await clock.advance(WATCHED_MS - 1, nothing)
    with watched.at(2):
        watched.forget_old()
        assert watched.topics() == {1, 2}
        await clock.advance(1, nothing)
        watched.forget_old()
        assert watched.topics() == {2}
        assert (1 in watched, 2 in watched) == (False, True)


def test_a_server_that_is_alone_hears_of_all_topics(watched: WatchedTopics) -> None:
    assert watched.hears_of(1)
    watched.is_shared = True
    assert not watched.hears_of(1)
    with watched.at(1):
        assert (watched.hears_of(1), watched.hears_of(2)) == (True, False)
    assert watched.hears_of(1)


def test_a_wait_that_fails_ends_too(watched: WatchedTopics) -> None:
    with pytest.raises(ZeroDivisionError), watched.at(1):
        raise ZeroDivisionError
    assert (watched._waits, watched.topics()) == ({}, {1})
