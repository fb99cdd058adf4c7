"""Pulls that wait for their queue to grow: which of them each event ends, and how often the ends are read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from popserver.engine.clock import ManualClock
from popserver.engine.wakeups import PollKey, WatchedTopics
from popserver.model.errors import StoreUnavailable
from popserver.pulling.parked import ParkedPulls

pytestmark = pytest.mark.timeout(14)  # a pull that is broken may wait for ever

NEVER_MS = 2**62
READS_MAX = 100  # more than any test causes
BEAT_MS = 5_000
ONE, TWO, ELSEWHERE = PollKey(1, 7), PollKey(2, 7), PollKey(1, 8)

Pull = asyncio.Task[bool]


class Parking:
    """Parked pulls, and the queues that they wait at: `ends` by topic and queue."""

    def __init__(self, clock: ManualClock, beat_ms: int = BEAT_MS) -> None:
        self._clock = clock
        self.ends: dict[int, dict[int, int]] = {7: {70: 0, 71: 0}, 8: {80: 0}}
        self.reads: list[int] = []
        self.numbers: dict[int, int] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False
        self.watched = WatchedTopics(clock)
        self.pulls = ParkedPulls(
            clock, lambda topic_id: self.numbers.get(topic_id, 0), self._ends_of, self.watched, beat_ms
        )

    async def _ends_of(self, topic_id: int) -> dict[int, int]:
        self.check_reads()
        self.reads.append(topic_id)
        ends = dict(self.ends.get(topic_id, {}))
        await self.gate.wait()
        if self.fails:
            raise StoreUnavailable("the database is away")
        return ends

    async def park(self, key: PollKey, queue_id: int, offset: int = 0, until_ms: int = NEVER_MS) -> Pull:
        pull = asyncio.create_task(self.pulls.park(key, queue_id, offset, self.numbers.get(key.topic_id, 0), until_ms))
        await asyncio.sleep(0)
        return pull

    def check_reads(self) -> None:
        assert len(self.reads) < READS_MAX, "it reads without end"

    async def advance(self, by_ms: int) -> None:
        async def settle() -> None:
            await turns()
            self.check_reads()

        await self._clock.advance(by_ms, settle)

    def wake(self, topic_id: int) -> None:
        self.numbers[topic_id] = self.numbers.get(topic_id, 0) + 1
        self.pulls.wake(topic_id)


@pytest.fixture
async def parking(clock: ManualClock) -> Parking:
    return Parking(clock)


async def turns() -> None:
    for _ in range(8):
        await asyncio.sleep(0)


async def outcomes(pulls: Sequence[Pull]) -> list[bool | None]:
    """Whether the queue of each has grown; None: it waits."""
    await turns()
    return [each.result() if each.done() else None for each in pulls]


async def test_only_those_whose_queue_has_grown_go_on(parking: Parking) -> None:
    pulls = [await parking.park(ONE, 70), await parking.park(TWO, 71), await parking.park(ELSEWHERE, 80)]
    parking.ends[7][70] = 1
    parking.wake(7)
    assert await outcomes(pulls) == [True, None, None]
    assert parking.reads == [7]
    parking.ends[8][80] = 1
    parking.wake(8)
    assert await outcomes(pulls) == [True, None, True]
    parking.pulls.close()


async def test_of_those_at_one_queue_only_those_before_its_end_go_on(parking: Parking) -> None:
    pulls = [await parking.park(ONE, 70, offset) for offset in (0, 4, 5, 6)]
    parking.ends[7][70] = 5
    parking.wake(7)
    assert await outcomes(pulls) == [True, True, None, None]
    parking.ends[7][70] = 6
    parking.wake(7)
    assert await outcomes(pulls) == [True, True, True, None]
    parking.pulls.close()


async def test_whoever_comes_before_an_end_that_is_known_reads_again_at_once(parking: Parking) -> None:
    pulls = [await parking.park(ONE, 70, 9)]
    pulls += [await parking.park(TWO, 70, offset) for offset in (8, 9, 10)]
    assert await outcomes(pulls) == [None, True, None, None]
    parking.ends[7][70] = 10
    parking.wake(7)
    late = await parking.park(TWO, 70, 9)
    assert await outcomes([*pulls, late]) == [True, True, True, None, True]
    assert parking.pulls.count == 1
    parking.pulls.close()


async def test_a_queue_that_did_not_grow_wakes_nobody(parking: Parking) -> None:
    pulls = [await parking.park(ONE, 70, 3)]
    for end in (0, 3):
        parking.ends[7][70] = end
        parking.wake(7)
        assert await outcomes(pulls) == [None]
    parking.pulls.close()


async def test_a_wake_up_while_the_ends_are_read_reads_them_once_more(parking: Parking) -> None:
    pulls = [await parking.park(ONE, 70)]
    parking.gate.clear()
    parking.wake(7)
    await turns()
    parking.ends[7][70] = 1
    parking.wake(7)
    parking.wake(7)
    assert parking.reads == [7]
    parking.gate.set()
    assert await outcomes(pulls) == [True]
    assert parking.reads == [7, 7]
    await parking.pulls.idle()
    parking.wake(7)
    await turns()
    assert parking.reads == [7, 7], "nobody waits there"


async def test_a_wake_up_for_those_who_have_left_costs_later_ones_no_read(parking: Parking) -> None:
    leaves = await parking.park(ONE, 70)
    parking.gate.clear()
    parking.wake(7)
    await turns()
    parking.wake(7)
    leaves.cancel()
    parking.gate.set()
    await parking.pulls.idle()
    late = await parking.park(ONE, 70)
    parking.wake(7)
    assert await outcomes([late]) == [None]
    assert parking.reads == [7, 7]
    parking.pulls.close()


async def test_a_wake_up_between_a_read_and_the_wait_reads_the_ends(parking: Parking) -> None:
    parking.ends[7][70] = 1
    parking.numbers[7] = 5
    pull = asyncio.create_task(parking.pulls.park(ONE, 70, 0, 4, NEVER_MS))
    assert await outcomes([pull]) == [True]
    assert parking.reads == [7]


async def test_its_time_ends_it_alone(parking: Parking, clock: ManualClock) -> None:
    pulls = [await parking.park(ONE, 70, until_ms=clock.now_ms() + 3_000), await parking.park(ONE, 70)]
    await parking.advance(2_999)
    assert await outcomes(pulls) == [None, None]
    await parking.advance(1)
    assert await outcomes(pulls) == [False, None]
    assert parking.pulls.count == 1
    parking.pulls.close()


async def test_a_group_s_pulls_of_a_topic_are_ended(parking: Parking) -> None:
    pulls = [await parking.park(*each) for each in ((ONE, 70), (ONE, 71), (TWO, 70), (ELSEWHERE, 80))]
    parking.pulls.end(ONE)
    parking.pulls.end(PollKey(1, 9))
    assert await outcomes(pulls) == [True, True, None, None]
    parking.pulls.close()


async def test_closing_ends_all_and_lets_none_wait(parking: Parking) -> None:
    pulls = [await parking.park(*each) for each in ((ONE, 70), (TWO, 70), (ONE, 71), (ELSEWHERE, 80))]
    parking.pulls.close()
    parking.wake(7)
    assert await outcomes(pulls) == [False] * 4
    late = await parking.park(ONE, 70)
    assert await outcomes([late]) == [False]
    await parking.advance(BEAT_MS)
    assert (parking.reads, parking.pulls.topics, parking.pulls.count) == ([], {}, 0)


async def test_nothing_is_left_of_pulls_that_have_gone(parking: Parking) -> None:
    pulls = [await parking.park(*each) for each in ((ONE, 70), (ONE, 70), (ONE, 71), (TWO, 70))]
    assert (parking.pulls.count, set(parking.pulls.topics[7])) == (4, {70, 71})
    pulls[2].cancel()
    await turns()
    assert (parking.pulls.count, set(parking.pulls.topics[7])) == (3, {70})
    for each in pulls:
        each.cancel()
    await turns()
    assert (parking.pulls.count, parking.pulls.topics, dict(parking.pulls._counts)) == (0, {}, {})


async def test_its_topic_is_watched_while_it_waits(parking: Parking) -> None:
    await parking.park(ONE, 70)
    assert parking.watched._waits == {7: 1}
    parking.pulls.end(ONE)
    await turns()
    assert parking.watched._waits == {}


class TestTheEnds:
    async def test_are_read_on_each_beat(self, parking: Parking) -> None:
        pulls = [await parking.park(ONE, 70), await parking.park(ELSEWHERE, 80)]
        parking.ends[7][70] = 1
        await parking.advance(BEAT_MS - 1)
        assert parking.reads == []
        await parking.advance(1)
        assert (parking.reads, await outcomes(pulls)) == ([7, 8], [True, None])
        await parking.advance(BEAT_MS)
        assert parking.reads == [7, 8, 8]
        parking.pulls.end(ELSEWHERE)
        await parking.advance(BEAT_MS)
        assert parking.reads == [7, 8, 8]
        assert parking.pulls._beat is None

    async def test_are_read_on_a_beat_of_its_own_length(self, clock: ManualClock) -> None:
        parking = Parking(clock, beat_ms=1_000)
        await parking.park(ONE, 70)
        await parking.advance(2_500)
        assert parking.reads == [7, 7]
        parking.pulls.close()

    async def test_of_all_topics_are_read_if_wake_ups_may_be_lost(self, parking: Parking) -> None:
        pulls = [await parking.park(ONE, 70), await parking.park(ELSEWHERE, 80)]
        parking.ends = {7: {70: 1, 71: 0}, 8: {80: 1}}
        parking.pulls.wake_all()
        assert await outcomes(pulls) == [True, True]
        assert parking.reads == [7, 8]

    async def test_that_cannot_be_read_end_the_waits_only_after_a_notification(self, parking: Parking) -> None:
        pulls = [await parking.park(ONE, 70), await parking.park(ELSEWHERE, 80)]
        parking.fails = True
        await parking.advance(BEAT_MS)
        assert (parking.reads, await outcomes(pulls)) == ([7, 8], [None, None])
        parking.wake(7)
        assert await outcomes(pulls) == [True, None]
        parking.pulls.close()

    async def test_that_fail_on_a_beat_are_read_again_if_there_was_a_notification(self, parking: Parking) -> None:
        pulls = [await parking.park(ONE, 70)]
        parking.fails = True
        parking.gate.clear()
        await parking.advance(BEAT_MS)
        parking.pulls.wake(7, is_notified=False)
        assert (parking.reads, parking.pulls._woken_meanwhile) == ([7], set())
        parking.wake(7)
        parking.gate.set()
        assert await outcomes(pulls) == [True]
        assert parking.reads == [7, 7]

    async def test_of_a_queue_that_is_gone_end_its_waits(self, parking: Parking) -> None:
        pulls = [await parking.park(ONE, 70), await parking.park(ONE, 71)]
        del parking.ends[7][70]
        parking.wake(7)
        assert await outcomes(pulls) == [True, None]
        parking.pulls.close()

    async def test_are_waited_for_until_all_are_read(self, parking: Parking) -> None:
        await parking.park(ONE, 70)
        await parking.pulls.idle()
        parking.gate.clear()
        parking.wake(7)
        idle = asyncio.create_task(parking.pulls.idle())
        await turns()
        assert not idle.done()
        parking.gate.set()
        await idle
        parking.pulls.close()


async def test_there_is_room_for_so_many_pulls(parking: Parking) -> None:
    parking.pulls._counts[ONE] = 1_023
    assert parking.pulls.has_capacity(ONE)
    parking.pulls._counts[ONE] += 1
    assert [parking.pulls.has_capacity(each) for each in (ONE, TWO, ELSEWHERE)] == [False, True, True]
    parking.pulls.count = 99_999
    assert parking.pulls.has_capacity(TWO)
    parking.pulls.count += 1
    assert not parking.pulls.has_capacity(TWO)
