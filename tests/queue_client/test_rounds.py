"""The rounds of consumers that share an event loop: when they come, and that none waits for another."""

from __future__ import annotations

import asyncio

import pytest

from popclient._consume.process_queue import ProcessQueue
from popclient._queue_push.pull_loop import PullLoop
from popclient._queue_push.pull_requests import PullRequest
from popclient._queue_push.rebalance import RebalanceService
from popclient.message import MessageQueue
from tests.queue_client.manual_clock import ManualClock
from tests.support.scripted_server import until


class Consumer:
    """Counts its rounds; `gate` holds them."""

    def __init__(self, clock: ManualClock) -> None:
        self.rounds = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.rebalancing = RebalanceService(clock, self)

    async def do_rebalance(self) -> bool:
        self.rounds += 1
        await self.gate.wait()
        return True


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pull_loop(clock: ManualClock) -> PullLoop:
    return PullLoop(clock)


@pytest.mark.row("J18")
async def test_who_joins_while_the_last_one_leaves_is_balanced_and_pulled_for(
    pull_loop: PullLoop, clock: ManualClock
) -> None:
    for pause in range(6):  # wherever the leaving is when the other one comes
        leaver, comer = Consumer(clock), Consumer(clock)
        pull_loop.join(leaver.rebalancing)
        await until(lambda leaver=leaver: leaver.rounds == 1)
        leaving = asyncio.create_task(pull_loop.leave(leaver.rebalancing))
        for _ in range(pause):
            await asyncio.sleep(0)
        pull_loop.join(comer.rebalancing)
        await leaving
        pulled: list[PullRequest] = []
        pull_loop.pulls.execute_immediately(
            pulled.append, PullRequest("g", MessageQueue("t", 0), ProcessQueue(clock.now()), 0)
        )
        await until(lambda comer=comer, pulled=pulled: comer.rounds == 1 and len(pulled) == 1)
        await clock.advance(20)
        assert (leaver.rounds, comer.rounds, pull_loop.consumers) == (1, 2, 1)
        await pull_loop.leave(comer.rebalancing)


@pytest.mark.row("J18")
async def test_a_round_that_does_not_end_holds_up_no_other_consumer(pull_loop: PullLoop, clock: ManualClock) -> None:
    slow, other = Consumer(clock), Consumer(clock)
    slow.gate.clear()
    pull_loop.join(slow.rebalancing)
    await until(lambda: slow.rounds == 1)
    pull_loop.join(other.rebalancing)
    await until(lambda: other.rounds == 1)
    for rounds in (2, 3):
        await clock.advance(20)
        assert (slow.rounds, other.rounds) == (1, rounds)
    await pull_loop.leave(slow.rebalancing)
    await pull_loop.leave(other.rebalancing)


@pytest.mark.row("F2")
@pytest.mark.row("J6")
async def test_many_refused_locks_lead_to_one_round_in_half_a_second(clock: ManualClock) -> None:
    consumer = Consumer(clock)

    async def refused() -> bool:
        consumer.rounds += 1
        for number in range(8):  # the answers come one after the other
            clock.call_later(number * 0.01, consumer.rebalancing.retry_refused)
        return False

    consumer.do_rebalance = refused  # type: ignore[method-assign]
    consumer.rebalancing.start()
    await until(lambda: consumer.rounds == 1)
    await clock.advance(10)
    assert consumer.rounds == 21
    await consumer.rebalancing.stop()
    await clock.advance(10)
    assert consumer.rounds == 21
