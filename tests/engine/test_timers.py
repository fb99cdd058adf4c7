"""Work in the background: what waits for it lets the event loop go on."""

from __future__ import annotations

import asyncio

import pytest

from popserver.engine.background import BackgroundTasks
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
