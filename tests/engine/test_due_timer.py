"""A timer works at the earliest due time that it knows of, one step at a time, until nothing is due."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from popserver.engine.clock import ManualClock
from popserver.engine.timers import DueTimer


class Work:
    """Notes when it is called; `answers` are what it returns, in order, then None."""

    def __init__(self, clock: ManualClock, answers: Sequence[int | None] = ()) -> None:
        self.timer = DueTimer(clock, self)
        self.at_ms: list[int] = []
        self.announces: int | None = None  # what is announced while it runs
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = False
        self._clock = clock
        self._start_ms = clock.now_ms()
        self._answers = [*answers]

    async def __call__(self) -> int | None:
        self.at_ms.append(self._clock.now_ms() - self._start_ms)
        await self.gate.wait()
        if self.fails:
            raise ZeroDivisionError
        if self.announces is not None:
            self.timer.expect(self._start_ms + self.announces)
            self.announces = None
        answer = self._answers.pop(0) if self._answers else None
        return None if answer is None else self._start_ms + answer

    def expect(self, *due_ms: int) -> None:
        for each in due_ms:
            self.timer.expect(self._start_ms + each)

    @property
    def due_ms(self) -> int | None:
        return None if self.timer.due_ms is None else self.timer.due_ms - self._start_ms

    async def advance(self, by_ms: int) -> None:
        await self._clock.advance(by_ms, self.timer.idle)


async def test_it_works_at_the_earliest_of_the_times(clock: ManualClock) -> None:
    work = Work(clock)
    work.timer.expect(None)
    assert work.due_ms is None
    work.expect(500, 300, 400)
    assert work.due_ms == 300
    await work.advance(299)
    assert work.at_ms == []
    await work.advance(1_000)
    assert (work.at_ms, work.due_ms) == ([300], None)


@pytest.mark.parametrize(
    ("answer", "announced", "next_ms"),
    [(700, None, 700), (None, 600, 600), (700, 600, 600), (600, 700, 600), (None, None, None)],
)
async def test_after_work_it_waits_for_the_earlier_of_what_was_answered_and_announced(
    clock: ManualClock, answer: int | None, announced: int | None, next_ms: int | None
) -> None:
    work = Work(clock, [answer])
    work.announces = announced
    work.expect(100)
    await work.advance(150)
    assert (work.at_ms, work.due_ms) == ([100], next_ms)
    await work.advance(1_000)
    assert work.at_ms == [100] + ([] if next_ms is None else [next_ms])


async def test_it_works_again_at_once_while_something_is_due(clock: ManualClock) -> None:
    work = Work(clock, [50, 100, 101])
    work.expect(100)
    await work.advance(100)
    assert (work.at_ms, work.due_ms) == ([100, 100, 100], 101)
    await work.advance(1)
    assert work.at_ms == [100, 100, 100, 101]


async def test_a_time_that_is_announced_during_the_work_does_not_start_it_twice(clock: ManualClock) -> None:
    work = Work(clock)
    work.gate.clear()
    work.expect(0)
    await clock.advance(0, _turns)
    assert work.at_ms == [0]
    work.expect(10)
    work.timer.check_due()
    await clock.advance(50, _turns)
    assert work.at_ms == [0]
    work.gate.set()
    await work.timer.idle()
    assert work.at_ms == [0, 50]


async def test_it_looks_at_once_if_it_is_asked_to(clock: ManualClock) -> None:
    work = Work(clock)
    work.expect(300)
    work.timer.check_due()
    assert work.due_ms == 0
    await work.advance(0)
    assert work.at_ms == [0]
    await work.advance(1_000)
    assert work.at_ms == [0], "the earlier alarm took the place of the later one"


async def test_it_is_idle_only_when_its_work_is_done(clock: ManualClock) -> None:
    work = Work(clock)
    await work.timer.idle()
    work.gate.clear()
    work.expect(0)
    await clock.advance(0, _turns)
    idle = asyncio.create_task(work.timer.idle())
    await _turns()
    assert not idle.done()
    work.gate.set()
    await idle


async def test_after_a_failure_it_waits_for_the_next_time(clock: ManualClock) -> None:
    work = Work(clock)
    work.fails = True
    work.expect(0)
    await work.advance(0)
    work.fails = False
    work.expect(10)
    await work.advance(10)
    assert work.at_ms == [0, 10]


class TestClosing:
    async def test_waits_for_the_work_and_then_it_works_no_more(self, clock: ManualClock) -> None:
        work = Work(clock, [0, 0])
        work.gate.clear()
        work.expect(0)
        await clock.advance(0, _turns)
        closing = asyncio.create_task(work.timer.close())
        await _turns()
        assert not closing.done()
        work.gate.set()
        await closing
        assert work.at_ms == [0]
        await work.advance(1_000)
        assert work.at_ms == [0]

    async def test_ends_its_alarm(self, clock: ManualClock) -> None:
        work = Work(clock)
        work.expect(100)
        await work.timer.close()
        await work.advance(100)
        assert work.at_ms == []

    async def test_leaves_no_later_time_to_be_set(self, clock: ManualClock) -> None:
        work = Work(clock)
        await work.timer.close()
        work.expect(100)
        work.timer.check_due()
        assert work.due_ms is None
        await work.advance(100)
        assert work.at_ms == []

    async def test_outlasts_work_that_fails(self, clock: ManualClock) -> None:
        work = Work(clock)
        work.gate.clear()
        work.fails = True
        work.expect(0)
        await clock.advance(0, _turns)
        closing = asyncio.create_task(work.timer.close())
        await _turns()
        work.gate.set()
        await closing
        assert work.at_ms == [0]


async def _turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)
