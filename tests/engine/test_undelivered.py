"""The memory for bodies of answers: reads wait while it is used up, each until its own deadline."""

from __future__ import annotations

import asyncio

import pytest

from popserver.engine.clock import ManualClock
from popserver.engine.undelivered import Undelivered
from popserver.model.budget import Budget
from popserver.model.errors import TooManyRequests

ANSWER_BYTES_MAX = 32 * 1024 * 1024


@pytest.fixture
def budget() -> Budget:
    return Budget("undelivered", 100, "bytes", "undelivered_bytes")


@pytest.fixture
def undelivered(budget: Budget, clock: ManualClock) -> Undelivered:
    return Undelivered(budget, clock)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_transaction_may_read_what_is_left(undelivered: Undelivered) -> None:
    assert undelivered.capacity() == 100
    undelivered.carry(30)
    undelivered.carry(20)
    assert undelivered.capacity() == 50
    undelivered.carried(30)
    assert undelivered.capacity() == 80


def test_a_transaction_reads_no_more_than_its_own_limit(clock: ManualClock) -> None:
    budget = Budget("undelivered", ANSWER_BYTES_MAX + 10, "bytes", "undelivered_bytes")
    undelivered = Undelivered(budget, clock)
    assert undelivered.capacity() == ANSWER_BYTES_MAX
    undelivered.carry(11)
    assert undelivered.capacity() == ANSWER_BYTES_MAX - 1


def test_answers_may_exceed_the_budget_and_then_it_has_no_capacity(undelivered: Undelivered, budget: Budget) -> None:
    seen = [undelivered.has_capacity]
    for size in (99, 1, 40):
        undelivered.carry(size)
        seen.append(undelivered.has_capacity)
    for size in (40, 1, 99):
        undelivered.carried(size)
        seen.append(undelivered.has_capacity)
    assert seen == [True, True, False, False, False, True, True]
    assert (budget.used, budget.peak, budget.refused) == (0, 140, 0)


@pytest.mark.parametrize(("used", "has_capacity"), [(99, True), (100, False), (101, False)])
def test_what_is_used_already_counts_from_the_start(
    budget: Budget, clock: ManualClock, used: int, has_capacity: bool
) -> None:
    budget.add(used)
    assert Undelivered(budget, clock).has_capacity is has_capacity


async def test_with_capacity_nobody_waits(undelivered: Undelivered, budget: Budget) -> None:
    await undelivered.wait(0)
    assert budget.refused == 0


async def test_all_that_wait_go_on_when_there_is_capacity(
    undelivered: Undelivered, budget: Budget, clock: ManualClock
) -> None:
    undelivered.carry(101)
    waits = [asyncio.create_task(undelivered.wait(clock.now_ms() + 5_000)) for _ in range(2)]
    await turns()
    undelivered.carried(1)
    await turns()
    assert [each.done() for each in waits] == [False, False]
    undelivered.carried(1)
    await asyncio.gather(*waits)
    assert budget.refused == 0
    undelivered.carry(1)
    again = asyncio.create_task(undelivered.wait(clock.now_ms() + 5_000))
    await turns()
    assert not again.done(), "it waits although it waited before"
    undelivered.carried(100)
    await again
    assert not undelivered._waiting


async def test_whoever_waits_too_long_is_refused_alone(
    undelivered: Undelivered, budget: Budget, clock: ManualClock
) -> None:
    undelivered.carry(100)
    short, long = (asyncio.create_task(undelivered.wait(clock.now_ms() + ms)) for ms in (3_000, 9_000))
    await clock.advance(2_999, turns)
    assert not short.done()
    await clock.advance(1, turns)
    with pytest.raises(TooManyRequests, match=r"the messages of an answer: 100 of 100 bytes .*\(undelivered\)"):
        await short
    assert (long.done(), budget.refused, len(undelivered._waiting)) == (False, 1, 1)
    undelivered.carried(50)
    await long
    assert (budget.refused, budget.used) == (1, 50)
    undelivered.carry(50)
    with pytest.raises(TooManyRequests):
        await undelivered.wait(clock.now_ms())
    assert budget.refused == 2


async def test_one_that_leaves_is_waited_for_no_more(undelivered: Undelivered, clock: ManualClock) -> None:
    undelivered.carry(100)
    wait = asyncio.create_task(undelivered.wait(clock.now_ms() + 3_000))
    await turns()
    wait.cancel()
    await turns()
    assert wait.cancelled()
    assert not undelivered._waiting
    await clock.advance(3_000, turns)
    undelivered.carried(100)
    assert undelivered.has_capacity


async def test_capacity_that_others_used_again_is_waited_for_once_more(
    undelivered: Undelivered, budget: Budget, clock: ManualClock
) -> None:
    undelivered.carry(100)
    wait = asyncio.create_task(undelivered.wait(clock.now_ms() + 3_000))
    await turns()
    undelivered.carried(100)
    undelivered.carry(100)
    await turns()
    assert not wait.done()
    await clock.advance(3_000, turns)
    with pytest.raises(TooManyRequests):
        await wait
    assert budget.refused == 1
