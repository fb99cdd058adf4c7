"""Work in the background: what waits for it lets the event loop go on."""

from __future__ import annotations

import asyncio

import pytest

from popserver.engine.background import BackgroundTasks, Task
from popserver.engine.clock import ManualClock
from popserver.model.errors import StoreUnavailable


@pytest.mark.timeout(20)  # a loop that never yields keeps the event loop from ending the test
async def test_work_that_has_ended_and_is_still_listed_is_waited_for(clock: ManualClock) -> None:
    """A task has ended one turn of the event loop before its callback takes it off the list."""
    background = BackgroundTasks(clock)
    ended = asyncio.Event()

    async def work() -> None:
        ended.set()

    background.submit("name", work)
    await ended.wait()
    assert background._tasks, "the list is empty already, so this shows nothing"
    await background.idle()
    assert not background._tasks


async def test_work_that_the_store_refuses_is_repeated_in_its_order(clock: ManualClock) -> None:
    background = BackgroundTasks(clock)
    done: list[str] = []
    refusals = [StoreUnavailable("the database is away"), None]

    async def first() -> None:
        if refusal := refusals.pop(0):
            raise refusal
        done.append("first")

    async def second() -> None:
        done.append("second")

    background.submit("name", first)
    background.submit("name", second)
    await background.idle()
    assert done == []
    assert background.has("name")
    await clock.advance(1_000, background.idle)
    assert done == ["first", "second"]
    assert not background.has("name")
    assert not background._alarms  # nothing is left of a name


async def test_work_of_one_name_waits_for_its_turn_and_other_work_does_not(clock: ManualClock) -> None:
    background = BackgroundTasks(clock)
    begun: list[str] = []
    gate = asyncio.Event()

    def work(name: str) -> Task:
        async def run() -> None:
            begun.append(name)
            await gate.wait()

        return run

    for name, task in (("one", "a"), ("one", "b"), ("two", "c")):
        background.submit(name, work(task))
    await asyncio.sleep(0)
    assert begun == ["a", "c"]
    assert [background.has(each) for each in ("one", "two", "three")] == [True, True, False]
    gate.set()
    await background.idle()
    assert begun == ["a", "c", "b"]
    assert not background.has("one")


async def test_work_is_repeated_every_second_and_what_comes_meanwhile_follows_it(clock: ManualClock) -> None:
    background = BackgroundTasks(clock)
    done: list[str] = []
    tries_ms: list[int] = []

    async def first() -> None:
        tries_ms.append(clock.now_ms())
        if len(tries_ms) < 3:
            raise StoreUnavailable("the database is away")
        done.append("first")

    async def second() -> None:
        done.append("second")

    background.submit("name", first)
    await background.idle()
    background.submit("name", second)
    await background.idle()
    await clock.advance(1_999, background.idle)
    assert (len(tries_ms), done) == (2, [])
    await clock.advance(1, background.idle)
    assert ([each - tries_ms[0] for each in tries_ms], done) == ([0, 1_000, 2_000], ["first", "second"])


async def test_closing_waits_for_what_runs_and_repeats_nothing(clock: ManualClock) -> None:
    background = BackgroundTasks(clock)
    tries: list[str] = []
    gate = asyncio.Event()

    def work(name: str) -> Task:
        async def run() -> None:
            tries.append(name)
            await gate.wait()
            raise StoreUnavailable("the database is away")

        return run

    background.submit("running", work("running"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(background.close())
    await asyncio.sleep(0)
    assert not closing.done()
    gate.set()
    await closing
    await clock.advance(5_000, background.idle)
    assert tries == ["running"]


async def test_closing_ends_the_wait_for_a_repetition(clock: ManualClock) -> None:
    background = BackgroundTasks(clock)
    tries: list[int] = []

    async def work() -> None:
        tries.append(clock.now_ms())
        raise StoreUnavailable("the database is away")

    background.submit("name", work)
    await background.idle()
    await background.close()
    await clock.advance(5_000, background.idle)
    assert len(tries) == 1


async def test_nothing_is_left_of_work_that_succeeded_the_second_time(clock: ManualClock) -> None:
    background = BackgroundTasks(clock)
    refusals = [StoreUnavailable("the database is away")]

    async def work() -> None:
        if refusals:
            raise refusals.pop()

    background.submit("name", work)
    await background.idle()
    assert background.has("name")
    await clock.advance(1_000, background.idle)
    assert not background.has("name")
    assert not background._alarms
