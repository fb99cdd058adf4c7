"""The readers of time, and the sleeper that waits for the next due moment."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from popserver.broker.clock import ManualClock, SystemClock
from popserver.broker.sleeper import Sleeper


class Stopwatch:
    """Stands for the machine's monotonic clock."""

    now_s = 1_000.0


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    stopwatch = Stopwatch()
    monkeypatch.setattr(time, "monotonic", lambda: stopwatch.now_s)
    return stopwatch


class TestTheSystemClock:
    def test_is_the_walls_time_at_the_start(self) -> None:
        assert abs(SystemClock().now_ms() - time.time() * 1_000) < 60_000

    @pytest.mark.parametrize("jump_s", [-3_600, 10 * 86_400])
    def test_does_not_jump_with_the_wall(self, monkeypatch: pytest.MonkeyPatch, jump_s: int) -> None:
        clock = SystemClock()
        before = clock.now_ms()
        wall = time.time()
        monkeypatch.setattr(time, "time", lambda: wall + jump_s)
        assert before <= clock.now_ms() < before + 60_000

    def test_never_starts_behind_what_is_stored(self) -> None:
        clock = SystemClock()
        ahead_ms = clock.now_ms() + 3_600_000
        clock.start_at_least(ahead_ms)
        assert ahead_ms - 1 <= clock.now_ms() < ahead_ms + 60_000
        clock.start_at_least(0)
        assert clock.now_ms() >= ahead_ms - 1

    def test_starts_where_another_stands(self) -> None:
        clock = SystemClock()
        clock.start_at(lambda: 1_000_000.0)
        assert 999_990 <= clock.now_ms() < 1_060_000

    def test_reads_the_other_over_the_shortest_trip(self, stopwatch: Stopwatch) -> None:
        """A trip of 2 s, one of 4 ms, one of 1 s; half of the shortest is what may be wrong."""
        trips_s = iter((2.0, 0.004, 1.0))
        clock = SystemClock()

        def ask() -> float:
            trip_s = next(trips_s)
            stopwatch.now_s += trip_s
            return 5_000_000 + stopwatch.now_s * 1_000

        clock.start_at(ask)
        ahead_ms = clock.now_ms() - (5_000_000 + stopwatch.now_s * 1_000)
        assert abs(ahead_ms) <= 2 + 1

    @pytest.mark.parametrize("off_ms", [-500, 500])
    def test_follows_another_slowly_and_never_goes_back(self, stopwatch: Stopwatch, off_ms: int) -> None:
        clock = SystemClock()
        other_ms = clock.now_ms() + off_ms - stopwatch.now_s * 1_000
        clock.follow(lambda: other_ms + stopwatch.now_s * 1_000)
        readings = []
        for _ in range(1_000):
            stopwatch.now_s += 0.1
            readings.append(clock.now_ms())
        steps = [later - earlier for earlier, later in itertools.pairwise(readings)]
        assert min(steps) >= 98
        assert max(steps) <= 102
        assert abs(readings[-1] - (other_ms + stopwatch.now_s * 1_000)) <= 2

    def test_a_jump_of_the_other_hardly_moves_it(self, stopwatch: Stopwatch) -> None:
        clock = SystemClock()
        before_ms = clock.now_ms()
        clock.follow(lambda: before_ms + 10 * 86_400_000.0)
        stopwatch.now_s += 60
        assert clock.now_ms() - before_ms <= 60_000 * 1.011

    async def test_never_calls_early(self) -> None:
        clock = SystemClock()
        called: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        due_ms = clock.now_ms() + 20
        clock.call_at(due_ms, lambda: called.set_result(clock.now_ms()))
        assert await called >= due_ms

    async def test_a_cancelled_alarm_is_silent(self) -> None:
        clock = SystemClock()
        rung: list[int] = []
        clock.call_at(clock.now_ms(), lambda: rung.append(1)).cancel()
        later: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        clock.call_at(clock.now_ms() + 5, lambda: later.set_result(None))
        await later
        assert rung == []


async def settled() -> None:
    await asyncio.sleep(0)


class TestTheManualClock:
    async def test_stands_still_until_it_is_moved(self) -> None:
        clock = ManualClock(1_000)
        assert clock.now_ms() == 1_000
        await clock.advance(5, settled)
        assert clock.now_ms() == 1_005

    async def test_never_goes_back(self) -> None:
        clock = ManualClock()
        began_ms = clock.now_ms()
        with pytest.raises(ValueError, match="back by 1 ms"):
            await clock.advance(-1, settled)
        assert clock.now_ms() == began_ms

    async def test_stops_at_every_alarm_on_the_way_in_order(self) -> None:
        clock = ManualClock(0)
        rung: list[tuple[str, int]] = []
        for name, at_ms in (("b", 20), ("a", 10), ("c", 20), ("never", 31)):
            clock.call_at(at_ms, lambda name=name: rung.append((name, clock.now_ms())))  # type: ignore[misc]
        await clock.advance(30, settled)
        assert rung == [("a", 10), ("b", 20), ("c", 20)]

    async def test_an_alarm_set_on_the_way_rings_as_well(self) -> None:
        clock = ManualClock(0)
        rung: list[int] = []

        def set_another() -> None:
            clock.call_at(20, lambda: rung.append(clock.now_ms()))

        clock.call_at(10, set_another)
        await clock.advance(30, settled)
        assert rung == [20]

    async def test_an_alarm_in_the_past_rings_now(self) -> None:
        clock = ManualClock(100)
        rung: list[int] = []
        clock.call_at(10, lambda: rung.append(clock.now_ms()))
        await clock.advance(0, settled)
        assert rung == [100]

    async def test_a_cancelled_alarm_is_silent(self) -> None:
        clock = ManualClock(0)
        rung: list[int] = []
        clock.call_at(10, lambda: rung.append(1)).cancel()
        await clock.advance(30, settled)
        assert rung == []

    async def test_a_clients_patience_is_real(self) -> None:
        clock = ManualClock(0)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        clock.call_when_patience_ends(20, lambda: ended.set_result(None))
        await asyncio.wait_for(ended, 60)
        assert clock.now_ms() == 0

    async def test_or_ends_when_the_clock_says_so(self) -> None:
        clock = ManualClock(0)
        ended: list[int] = []
        clock.call_when_patience_ends(3_600_000, lambda: ended.append(clock.now_ms()))
        await clock.advance(3_600_000, settled)
        assert ended == [3_600_000]


def a_sleeper(clock: ManualClock, *next_due_ms: int | None) -> tuple[Sleeper, list[int]]:
    """One whose work notes its time and answers, in turn, what is due next; and the notes."""
    done: list[int] = []
    answers = iter(next_due_ms)

    async def work() -> int | None:
        await asyncio.sleep(0)
        done.append(clock.now_ms())
        return next(answers, None)

    return Sleeper(clock, work), done


class TestTheSleeper:
    async def test_wakes_at_the_earliest_it_was_told(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock)
        for due_ms in (30, None, 10, 20):
            sleeper.tell(due_ms)
        await clock.advance(100, sleeper.idle)
        assert done == [10], "what else is due, the work says"

    async def test_sleeps_until_what_its_work_says_is_next(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock, 25, 40)
        sleeper.tell(10)
        await clock.advance(100, sleeper.idle)
        assert done == [10, 25, 40]

    async def test_goes_on_while_something_is_due_already(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock, 10, 10, 50)
        sleeper.tell(10)
        await clock.advance(20, sleeper.idle)
        assert done == [10, 10, 10]

    async def test_what_it_is_told_while_it_works_is_not_forgotten(self) -> None:
        clock = ManualClock(0)
        done: list[int] = []

        async def work() -> int | None:
            if not done:
                sleeper.tell(15)
            done.append(clock.now_ms())
            return 30 if len(done) == 1 else None

        sleeper = Sleeper(clock, work)
        sleeper.tell(10)
        await clock.advance(100, sleeper.idle)
        assert done == [10, 15]

    async def test_closed_it_does_nothing_more(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock)
        sleeper.tell(10)
        await sleeper.close()
        sleeper.tell(5)
        await clock.advance(100, sleeper.idle)
        assert done == []

    async def test_closing_waits_for_the_work_in_hand(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock, 0, 0, 0)
        sleeper.tell(0)
        advancing = asyncio.create_task(clock.advance(0, settled))
        await settled()
        await sleeper.close()
        await advancing
        assert len(done) <= 1
