"""The readers of time, and the sleeper that waits for the next due moment."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popserver.engine.clock import FASTER, SLOWER, SLOWER_AFTER_A_STEP, ManualClock, SystemClock, elapsed_s
from popserver.engine.timers import DueTimer
from tests.support.machine import START_MS, Machine


class TestTheSystemClock:
    def test_is_the_walls_time_at_the_start(self) -> None:
        assert abs(SystemClock().now_ms() - time.time() * 1_000) < 60_000

    @pytest.mark.parametrize("jump_s", [-3_600, 10 * 86_400])
    def test_does_not_jump_with_the_wall(self, jump_s: int) -> None:
        machine = Machine()
        clock = machine.clock()
        machine.set_clock(jump_s * 1_000)
        machine.run(1)
        assert clock.now_ms() == START_MS + 1_000

    def test_never_starts_behind_what_is_stored(self) -> None:
        clock = Machine().clock()
        ahead_ms = clock.now_ms() + 3_600_000
        clock.start_at_least(ahead_ms)
        assert clock.now_ms() == ahead_ms
        clock.start_at_least(0)
        assert clock.now_ms() == ahead_ms

    def test_starts_where_another_stands(self) -> None:
        machine = Machine()
        clock = machine.clock()
        clock.start_at(lambda: 1_000_000.0)
        assert clock.now_ms() == clock.calendar_ms() == 1_000_000
        machine.set_clock(3_600_000)
        assert clock.calendar_ms() == 1_000_000, "the machine's own clock does not matter any more"

    def test_starts_as_far_ahead_as_the_others_are(self) -> None:
        clock = Machine().clock()
        clock.start_at(lambda: 10_000_000.0, 7_200_000)
        assert (clock.now_ms(), clock.calendar_ms(), clock.ahead_ms()) == (17_200_000, 10_000_000, 7_200_000)

    def test_reads_the_other_over_the_shortest_trip(self) -> None:
        """A trip of 2 s, one of 4 ms, one of 1 s; half of the shortest is what may be wrong."""
        machine = Machine()
        trips_s = iter((2.0, 0.004, 1.0))
        clock = machine.clock()

        def ask() -> float:
            machine.run(next(trips_s))
            return 5_000_000 + machine.now_s * 1_000

        clock.start_at(ask)
        ahead_ms = clock.now_ms() - (5_000_000 + machine.now_s * 1_000)
        assert abs(ahead_ms) <= 2 + 1

    @pytest.mark.parametrize(("off_ms", "within_s", "part"), [(-500, 60, SLOWER), (500, 1_010, FASTER)])
    def test_follows_another_slowly_and_never_goes_back(self, off_ms: int, within_s: int, part: float) -> None:
        machine = Machine()
        clock = machine.clock()
        machine.set_clock(off_ms)
        clock.follow(clock.wall_ms)
        readings = []
        for _ in range(within_s * 10):
            machine.run(0.1)
            readings.append(clock.now_ms())
        steps = [later - earlier for earlier, later in itertools.pairwise(readings)]
        assert min(steps) >= 100 - part * 100 - 1
        assert max(steps) <= 101
        assert abs(clock.ahead_ms()) <= 2

    def test_a_jump_of_the_other_hardly_moves_it(self) -> None:
        machine = Machine()
        clock = machine.clock()
        before_ms = clock.now_ms()
        clock.follow(lambda: before_ms + 10 * 86_400_000.0)
        machine.run(60)
        assert clock.now_ms() - before_ms <= 60_000 * (1 + FASTER) + 1

    def test_two_hours_ahead_are_made_good_in_ten(self) -> None:
        machine = Machine()
        clock = machine.clock()
        machine.set_clock(-7_200_000)
        machine.live(clock, 5 * 3_600)
        assert abs(clock.ahead_ms() - 3_600_000) <= 10_000
        machine.live(clock, 5 * 3_600 + 120)
        assert abs(clock.ahead_ms()) <= 1

    def test_what_sleeps_with_the_machine_is_no_step(self) -> None:
        """The real time counts that the machine slept: nothing is early or late afterwards, and nothing is doubted."""
        machine = Machine()
        clock = machine.clock()
        machine.live(clock, 8 * 3_600, beat_s=8 * 3_600)
        assert (clock.ahead_ms(), clock.take_step()) == (0, 0)
        if hasattr(time, "CLOCK_BOOTTIME"):
            assert abs(elapsed_s() - time.clock_gettime(time.CLOCK_BOOTTIME)) < 10

    def test_a_slow_answer_is_no_step(self) -> None:
        machine = Machine()
        clock = machine.clock()

        def ask() -> float:
            theirs_ms = machine.wall_ms
            machine.run(4)
            return theirs_ms

        clock.start_at(lambda: machine.wall_ms)
        clock.follow(ask)
        assert clock.take_step() == 0
        machine.set_clock(-60_000)
        clock.follow(ask)
        assert abs(clock.take_step() + 60_000) <= 4_000

    def test_a_patient_caller_waits_real_time(self) -> None:
        machine = Machine()
        clock = machine.clock()
        machine.set_clock(-7_200_000)
        clock.follow(clock.wall_ms)
        until_ms = clock.deadline_ms(20_000)
        machine.run(20)
        assert clock.now_ms() == until_ms

    @given(
        st.lists(
            st.one_of(
                st.tuples(st.just("run"), st.floats(0, 100_000)),
                st.tuples(st.just("set"), st.integers(-400_000_000, 400_000_000)),
                st.tuples(st.just("live"), st.integers(1, 300)),
                st.tuples(st.just("doubt"), st.integers(0, 400_000_000)),
            ),
            max_size=30,
        )
    )
    @settings(max_examples=60)
    def test_the_law_of_time(self, life: list[tuple[str, float]]) -> None:
        """Time never goes back and never runs ahead of real time, whatever is done to the wall; and it comes home."""
        machine = Machine()
        clock = machine.clock()
        before_ms, before_s = clock.now_ms(), machine.now_s
        for act, value in life:
            if act == "run":
                machine.run(value)
            elif act == "set":
                machine.set_clock(value)
            elif act == "live":
                machine.live(clock, value)
            else:
                clock.doubted_ms = int(value)
            now_ms, calendar_ms = clock.now_ms(), clock.calendar_ms()
            assert now_ms >= before_ms
            assert now_ms - before_ms <= (machine.now_s - before_s) * 1_000 * (1 + FASTER) + 1, "something is early"
            assert calendar_ms == int(machine.wall_ms) if not clock.doubted_ms else calendar_ms <= now_ms
            assert clock.aged_ms() <= min(now_ms, machine.wall_ms - clock.doubted_ms)
            before_ms, before_s = now_ms, machine.now_s
        clock.follow(clock.wall_ms)
        machine.live(clock, max(0, clock.ahead_ms()) / 1_000 / SLOWER_AFTER_A_STEP + 200, beat_s=100.0)
        assert clock.ahead_ms() <= 1

    async def test_an_alarm_waits_for_a_clock_that_runs_slower(self) -> None:
        clock = SystemClock(wall=lambda: 100_000.0)
        clock.start_at_least(100_000)
        clock.follow(lambda: 0.0)
        called: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        due_ms = clock.now_ms() + 20
        clock.call_at(due_ms, lambda: called.set_result(clock.now_ms()))
        assert await called >= due_ms

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
        with pytest.raises(ValueError, match="cannot go back 1 ms"):
            await clock.advance(-1, settled)
        assert clock.now_ms() == began_ms

    async def test_stops_at_every_alarm_on_the_way_in_order(self) -> None:
        clock = ManualClock(0)
        rung: list[tuple[str, int]] = []
        for name, at_ms in (("b", 20), ("a", 10), ("c", 20), ("never", 31)):
            clock.call_at(at_ms, lambda name=name: rung.append((name, clock.now_ms())))
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
        clock.call_at_deadline(20, lambda: ended.set_result(None))
        await asyncio.wait_for(ended, 60)
        assert clock.now_ms() == 0

    async def test_or_ends_when_the_clock_says_so(self) -> None:
        clock = ManualClock(0)
        ended: list[int] = []
        clock.call_at_deadline(3_600_000, lambda: ended.append(clock.now_ms()))
        await clock.advance(3_600_000, settled)
        assert ended == [3_600_000]


def a_sleeper(clock: ManualClock, *next_due_ms: int | None) -> tuple[DueTimer, list[int]]:
    """One whose work notes its time and answers, in turn, what is due next; and the notes."""
    done: list[int] = []
    answers = iter(next_due_ms)

    async def work() -> int | None:
        await asyncio.sleep(0)
        done.append(clock.now_ms())
        return next(answers, None)

    return DueTimer(clock, work), done


class TestTheSleeper:
    async def test_wakes_at_the_earliest_it_was_told(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock)
        for due_ms in (30, None, 10, 20):
            sleeper.expect(due_ms)
        await clock.advance(100, sleeper.idle)
        assert done == [10], "what else is due, the work says"

    async def test_sleeps_until_what_its_work_says_is_next(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock, 25, 40)
        sleeper.expect(10)
        await clock.advance(100, sleeper.idle)
        assert done == [10, 25, 40]

    async def test_goes_on_while_something_is_due_already(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock, 10, 10, 50)
        sleeper.expect(10)
        await clock.advance(20, sleeper.idle)
        assert done == [10, 10, 10]

    async def test_what_it_is_told_while_it_works_is_not_forgotten(self) -> None:
        clock = ManualClock(0)
        done: list[int] = []

        async def work() -> int | None:
            if not done:
                sleeper.expect(15)
            done.append(clock.now_ms())
            return 30 if len(done) == 1 else None

        sleeper = DueTimer(clock, work)
        sleeper.expect(10)
        await clock.advance(100, sleeper.idle)
        assert done == [10, 15]

    async def test_closed_it_does_nothing_more(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock)
        sleeper.expect(10)
        await sleeper.close()
        sleeper.expect(5)
        await clock.advance(100, sleeper.idle)
        assert done == []

    async def test_closing_waits_for_the_work_in_hand(self) -> None:
        clock = ManualClock(0)
        sleeper, done = a_sleeper(clock, 0, 0, 0)
        sleeper.expect(0)
        advancing = asyncio.create_task(clock.advance(0, settled))
        await settled()
        await sleeper.close()
        await advancing
        assert len(done) <= 1
