"""Which parked polls each event wakes, in which order, and what is remembered of searches that found nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from popserver.engine import wakeups as wakeups_module
from popserver.engine.clock import ManualClock
from popserver.engine.wakeups import PollKey, Wakeups, Woken
from popserver.filters import tags

NEVER_MS = 2**62
BEAT_MS = 5_000
ONE, TWO = PollKey(group_id=1, topic_id=7), PollKey(group_id=2, topic_id=7)
ELSEWHERE = PollKey(group_id=1, topic_id=8)
LITE = PollKey(group_id=1, topic_id=7, client_id="c1")
ALL = tags.parse("*")

Poll = asyncio.Task[Woken]


@pytest.fixture
def wakeups(clock: ManualClock) -> Wakeups:
    return Wakeups(clock)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def parked(wakeups: Wakeups, *keys: PollKey, until_ms: int = NEVER_MS) -> list[Poll]:
    """A poll of each key, parked in this order."""
    polls = []
    for key in keys:
        polls.append(asyncio.create_task(wakeups.park(key, wakeups.wake_number(key.wake_key), until_ms)))
        await asyncio.sleep(0)
    assert not any(each.done() for each in polls)
    return polls


async def outcomes(polls: Sequence[Poll]) -> list[Woken | None]:
    """What each poll was told; None: it is parked."""
    await turns()
    return [each.result() if each.done() else None for each in polls]


@pytest.mark.parametrize("woken", [Woken.READY, Woken.AHEAD])
async def test_a_wake_up_wakes_the_oldest_poll_of_each_group_of_its_key(wakeups: Wakeups, woken: Woken) -> None:
    polls = await parked(wakeups, ONE, ONE, TWO, TWO, ELSEWHERE, LITE)
    wakeups.wake(7, woken)
    assert await outcomes(polls) == [woken, None, woken, None, None, None]
    wakeups.wake((7, "c1"))
    assert await outcomes(polls) == [woken, None, woken, None, None, Woken.READY]
    assert wakeups.parked == 3
    wakeups.close()


async def test_a_poll_that_leaves_messages_behind_wakes_the_next_of_its_group(wakeups: Wakeups) -> None:
    polls = await parked(wakeups, ONE, ONE, TWO, ELSEWHERE)
    wakeups.pass_on(ONE)
    assert await outcomes(polls) == [Woken.READY, None, None, None]
    wakeups.pass_on(ONE, Woken.AHEAD)
    assert await outcomes(polls) == [Woken.READY, Woken.AHEAD, None, None]
    wakeups.pass_on(ONE)
    wakeups.pass_on(PollKey(3, 9))
    assert await outcomes(polls) == [Woken.READY, Woken.AHEAD, None, None]
    wakeups.close()


@pytest.mark.parametrize("woken", [Woken.READY, Woken.AHEAD])
async def test_a_woken_poll_whose_client_leaves_wakes_the_next_in_its_place(wakeups: Wakeups, woken: Woken) -> None:
    polls = await parked(wakeups, ONE, ONE, TWO)
    wakeups.pass_on(ONE, woken)
    polls[0].cancel()
    await turns()
    assert polls[0].cancelled()
    assert await outcomes(polls[1:]) == [woken, None]
    wakeups.close()


async def test_a_poll_that_ended_just_before_its_client_left_wakes_no_other(wakeups: Wakeups) -> None:
    polls = await parked(wakeups, ONE, ONE)
    wakeups_module._time_out(wakeups._parked[7][1][0])
    polls[0].cancel()
    assert await outcomes(polls[1:]) == [None]
    assert wakeups.parked == 1
    wakeups.close()


def test_only_the_end_of_a_poll_is_false() -> None:
    assert [bool(each) for each in Woken] == [False, True, True, True]


async def test_a_poll_that_left_is_passed_over(wakeups: Wakeups) -> None:
    polls = await parked(wakeups, ONE, ONE)
    polls[0].cancel()
    wakeups.wake(7)
    assert await outcomes(polls[1:]) == [Woken.READY]
    assert wakeups.parked == 0


async def test_the_polls_of_one_group_and_key_are_ended(wakeups: Wakeups) -> None:
    polls = await parked(wakeups, ONE, ONE, TWO, ELSEWHERE, LITE)
    wakeups.end(ONE)
    wakeups.end(PollKey(3, 9))
    assert await outcomes(polls) == [Woken.ENDED, Woken.ENDED, None, None, None]
    wakeups.end(LITE)
    assert await outcomes(polls[2:]) == [None, None, Woken.ENDED]
    wakeups.close()


async def test_waking_all_wakes_one_poll_of_each_group_and_key(wakeups: Wakeups) -> None:
    before = wakeups.wake_number(7)
    polls = await parked(wakeups, ONE, ONE, TWO, ELSEWHERE, LITE)
    wakeups.wake_all()
    assert await outcomes(polls) == [Woken.READY, None, Woken.READY, Woken.READY, Woken.READY]
    assert wakeups.wake_number(7) != before
    assert wakeups.wake_number(7) == wakeups.wake_number(12345)
    wakeups.wake(7)
    assert wakeups.wake_number(7) > wakeups.wake_number(8)
    wakeups.close()


async def test_a_forgotten_key_wakes_its_polls_and_is_like_one_that_was_never_woken(wakeups: Wakeups) -> None:
    wakeups.wake_all()
    never_woken = wakeups.wake_number(7)
    wakeups.wake(7)
    assert wakeups.wake_number(7) != never_woken
    polls = await parked(wakeups, ONE, TWO, ELSEWHERE)
    wakeups.found_empty(ONE, ALL, wakeups.wake_number(7))
    wakeups.forget(7)
    assert await outcomes(polls) == [Woken.READY, Woken.READY, None]
    assert wakeups.wake_number(7) == never_woken
    assert not wakeups.is_known_empty(ONE, ALL)
    assert (7 in wakeups._wake_numbers, 7 in wakeups._found_empty) == (False, False)
    wakeups.forget(9)  # a key that is not known
    wakeups.close()


async def test_the_time_of_a_poll_ends_it_alone(wakeups: Wakeups, clock: ManualClock) -> None:
    polls = [*await parked(wakeups, ONE, until_ms=clock.now_ms() + 3_000), *await parked(wakeups, ONE)]
    await clock.advance(2_999, turns)
    assert await outcomes(polls) == [None, None]
    await clock.advance(1, turns)
    assert await outcomes(polls) == [Woken.ENDED, None]
    assert wakeups.parked == 1
    wakeups.close()


async def test_whether_a_poll_waits_for_a_key_is_known(wakeups: Wakeups) -> None:
    polls = await parked(wakeups, ONE, LITE)
    assert [wakeups.has_parked(each) for each in (7, (7, "c1"), 8, (7, "c2"))] == [True, True, False, False]
    wakeups.end(ONE)
    await outcomes(polls)
    assert [wakeups.has_parked(each) for each in (7, (7, "c1"))] == [False, True]
    wakeups.close()


async def test_closing_ends_all_polls_and_parks_no_more(wakeups: Wakeups, clock: ManualClock) -> None:
    polls = await parked(wakeups, ONE, ONE, TWO, ELSEWHERE, LITE)
    wakeups.close()
    assert await outcomes(polls) == [Woken.ENDED] * 5
    assert await wakeups.park(ONE, wakeups.wake_number(7), NEVER_MS) is Woken.ENDED
    assert wakeups._beat is not None
    wakeups._beat = None
    await clock.advance(BEAT_MS, turns)
    assert wakeups._beat is None, "the beat was ended too"


async def test_a_poll_that_missed_a_wake_up_does_not_park(wakeups: Wakeups) -> None:
    before = wakeups.wake_number(7)
    wakeups.wake(7)
    assert await wakeups.park(ONE, before, NEVER_MS) is Woken.READY
    assert (wakeups.parked, wakeups.has_parked(7)) == (0, False)


class TestOnABeat:
    async def test_one_poll_of_each_group_and_key_searches(self, wakeups: Wakeups, clock: ManualClock) -> None:
        polls = await parked(wakeups, ONE, ONE, ONE, TWO, ELSEWHERE, LITE)
        await clock.advance(BEAT_MS - 1, turns)
        assert await outcomes(polls) == [None] * 6
        await clock.advance(1, turns)
        assert await outcomes(polls) == [Woken.BEAT, None, None, Woken.BEAT, Woken.BEAT, Woken.BEAT]
        await clock.advance(BEAT_MS - 1, turns)
        assert await outcomes(polls[1:3]) == [None, None]
        await clock.advance(1, turns)
        assert await outcomes(polls[1:3]) == [Woken.BEAT, None]
        wakeups.close()

    async def test_groups_and_keys_take_turns(
        self, wakeups: Wakeups, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wakeups_module, "BEAT_POLLS_MAX", 2)
        keys = [PollKey(group_id, 7) for group_id in (1, 2, 3)]
        polls = await parked(wakeups, *[key for key in keys for _ in range(3)])
        woken: list[list[int]] = []
        for _ in range(3):
            before = [each.done() for each in polls]
            await clock.advance(BEAT_MS, turns)
            woken.append([at // 3 + 1 for at, each in enumerate(polls) if each.done() and not before[at]])
        assert woken == [[1, 2], [1, 3], [2, 3]]
        wakeups.close()

    async def test_so_many_polls_search_at_once(self, wakeups: Wakeups, clock: ManualClock) -> None:
        polls = await parked(wakeups, *[PollKey(1, topic_id) for topic_id in range(65)])
        await clock.advance(BEAT_MS, turns)
        assert await outcomes(polls) == [Woken.BEAT] * 64 + [None]
        wakeups.close()

    async def test_none_is_planned_while_no_poll_is_parked(self, wakeups: Wakeups, clock: ManualClock) -> None:
        assert wakeups._beat is None
        await parked(wakeups, ONE)
        beat = wakeups._beat
        await parked(wakeups, TWO)
        assert wakeups._beat is beat, "one beat for all"
        wakeups.wake(7)
        await turns()
        await clock.advance(BEAT_MS, turns)
        assert wakeups._beat is None


class TestFoundEmpty:
    async def test_is_believed_for_one_beat(self, wakeups: Wakeups, clock: ManualClock) -> None:
        wakeups.found_empty(ONE, ALL, 0)
        await clock.advance(BEAT_MS - 1, turns)
        assert wakeups.is_known_empty(ONE, ALL)
        await clock.advance(1, turns)
        assert not wakeups.is_known_empty(ONE, ALL)

    async def test_is_not_known_of_what_was_never_searched(self, wakeups: Wakeups) -> None:
        assert not wakeups.is_known_empty(ONE, ALL)
        wakeups.found_empty(TWO, ALL, 0)
        assert not wakeups.is_known_empty(ONE, ALL)
        assert wakeups.is_known_empty(TWO, ALL)

    async def test_of_an_older_search_does_not_hide_that_of_a_newer_one(self, wakeups: Wakeups) -> None:
        old = wakeups.wake_number(7)
        wakeups.wake(7)
        wakeups.found_empty(ONE, ALL, wakeups.wake_number(7))
        wakeups.found_empty(TWO, ALL, old)
        assert wakeups.is_known_empty(ONE, ALL)
        assert not wakeups.is_known_empty(TWO, ALL)

    async def test_is_remembered_of_a_client_only_after_its_first_wake_up(self, wakeups: Wakeups) -> None:
        wakeups.found_empty(LITE, ALL, wakeups.wake_number(LITE.wake_key))
        assert not wakeups.is_known_empty(LITE, ALL)
        assert not wakeups._found_empty
        wakeups.wake(LITE.wake_key)
        wakeups.found_empty(LITE, ALL, wakeups.wake_number(LITE.wake_key))
        assert wakeups.is_known_empty(LITE, ALL)

    async def test_beside_other_servers_is_remembered_of_watched_topics_only(self, wakeups: Wakeups) -> None:
        wakeups.watched.is_shared = True
        wakeups.found_empty(ONE, ALL, 0)
        assert not wakeups.is_known_empty(ONE, ALL)
        polls = await parked(wakeups, ONE)
        wakeups.found_empty(TWO, ALL, 0)
        wakeups.found_empty(ELSEWHERE, ALL, 0)
        assert wakeups.is_known_empty(TWO, ALL)
        assert not wakeups.is_known_empty(ELSEWHERE, ALL)
        wakeups.close()
        assert await outcomes(polls) == [Woken.ENDED]


async def test_there_is_room_for_so_many_polls(wakeups: Wakeups) -> None:
    await parked(wakeups, *[ONE] * 1_023)
    assert wakeups.has_capacity(ONE)
    await parked(wakeups, ONE)
    assert [wakeups.has_capacity(each) for each in (ONE, TWO, ELSEWHERE, LITE)] == [False, True, True, True]
    wakeups.end(ONE)
    await turns()
    assert wakeups.has_capacity(ONE)
    await parked(wakeups, ELSEWHERE)
    wakeups._count += 99_998  # as if so many more polls of other groups were parked
    assert wakeups.has_capacity(TWO)
    wakeups._count += 1
    assert not wakeups.has_capacity(TWO)
    wakeups.close()
