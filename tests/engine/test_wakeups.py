"""No lost wake-up, whatever the order in which polls, rings and departures meet."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popserver.engine.clock import ManualClock
from popserver.engine.wakeups import PollKey, Wakeups
from popserver.filters import tags
from popserver.model.states import State
from tests.support.running_broker import running_broker, until

SEAT = PollKey(group_id=1, topic_id=1)
A, B = tags.parse("A"), tags.parse("B")


@pytest.mark.row("A6")
async def test_a_ring_between_the_answer_and_the_parking_is_not_slept_through() -> None:
    wakeups = Wakeups(ManualClock())
    before = wakeups.wake_number(1)
    wakeups.wake(1)
    assert await wakeups.park(SEAT, before, 2**62)
    assert wakeups.parked == 0


async def test_no_ring_has_the_number_of_an_earlier_one() -> None:
    wakeups = Wakeups(ManualClock())
    numbers = [wakeups.wake_number(1)]
    for ring in (lambda: wakeups.wake(1), wakeups.wake_all, wakeups.wake_all, lambda: wakeups.wake(1)):
        ring()
        numbers.append(wakeups.wake_number(1))
    assert numbers == sorted({*numbers})
    assert len(numbers) == 5


async def test_what_was_found_empty_is_known_until_the_next_ring() -> None:
    wakeups = Wakeups(ManualClock())
    wakeups.found_empty(SEAT, A, wakeups.wake_number(1))
    assert wakeups.is_known_empty(SEAT, A)
    assert not wakeups.is_known_empty(SEAT, B)
    assert not wakeups.is_known_empty(PollKey(2, 1), A)
    wakeups.wake(2)
    assert wakeups.is_known_empty(SEAT, A)
    wakeups.wake(1)
    assert not wakeups.is_known_empty(SEAT, A)


async def test_what_many_filters_found_empty_is_remembered_within_few_mib() -> None:
    wakeups = Wakeups(ManualClock())
    for number in range(1_000):
        wakeups.found_empty(SEAT, tags.parse("x" * 16_000 + str(number)), wakeups.wake_number(1))
    assert wakeups._empty.size <= 4 * 1024 * 1024
    assert len(wakeups._empty) < 300
    assert wakeups.is_known_empty(SEAT, tags.parse("x" * 16_000 + "999"))


async def test_a_look_that_a_ring_overtook_says_nothing() -> None:
    wakeups = Wakeups(ManualClock())
    before = wakeups.wake_number(1)
    wakeups.wake(1)
    wakeups.found_empty(SEAT, A, before)
    assert not wakeups.is_known_empty(SEAT, A)


async def test_a_group_has_room_for_so_many_polls_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popserver.engine.wakeups.PARKED_PER_TOPIC_AND_GROUP_MAX", 2)
    wakeups = Wakeups(ManualClock())
    polls: list[asyncio.Task[object]] = []
    for _ in range(2):
        assert wakeups.has_capacity(SEAT)
        polls.append(asyncio.create_task(wakeups.park(SEAT, wakeups.wake_number(1), 2**62)))
        await until(lambda: wakeups.parked == len(polls))
    assert not wakeups.has_capacity(SEAT)
    assert wakeups.has_capacity(PollKey(2, 1))
    for each in polls:
        each.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    assert wakeups.has_capacity(SEAT)


async def test_nothing_is_left_of_polls_that_have_gone() -> None:
    clock = ManualClock()
    wakeups = Wakeups(clock)
    polls = [asyncio.ensure_future(wakeups.park(PollKey(n % 3, n % 2), 0, clock.now_ms() + 9_000)) for n in range(30)]
    await asyncio.sleep(0)
    for poll in polls[:10]:
        poll.cancel()
    wakeups.wake(0)
    await asyncio.gather(*polls[:10], return_exceptions=True)
    wakeups.close()
    await asyncio.gather(*polls, return_exceptions=True)
    assert (wakeups.parked, wakeups._parked) == (0, {})


class Shelf:
    """The smallest store: a number of messages, and answers that take a while to arrive."""

    def __init__(self, draw: random.Random) -> None:
        self.wakeups = Wakeups(ManualClock())
        self.messages = 0
        self.parking: list[asyncio.Task[object]] = []
        self._draw = draw

    async def put(self, count: int) -> None:
        await self._travel()
        self.messages += count
        self.wakeups.wake(SEAT.topic_id)

    async def poll(self) -> None:
        """Take one message, as the broker does: note the ring, look, park."""
        while True:
            ring_number = self.wakeups.wake_number(SEAT.topic_id)
            await self._travel()
            found = self.messages > 0
            self.messages -= found
            left = self.messages > 0
            await self._travel()
            if found:
                if left:
                    self.wakeups.pass_on(SEAT)
                return
            await self._park(ring_number)

    async def _park(self, ring_number: int) -> None:
        me = asyncio.current_task()
        assert me is not None
        self.parking.append(me)
        try:
            await self.wakeups.park(SEAT, ring_number, 2**62)
        finally:
            self.parking.remove(me)

    async def _travel(self) -> None:
        for _ in range(self._draw.randint(0, 5)):
            await asyncio.sleep(0)


@pytest.mark.row("A6")
@settings(max_examples=200)
@given(seed=st.integers(0, 2**32))
def test_nobody_sleeps_beside_a_message(seed: int) -> None:
    """Polls, rings and departures in any order; at rest no poll is parked while a message lies there."""
    asyncio.run(_any_order(random.Random(seed)))


async def _any_order(draw: random.Random) -> None:
    shelf, polls = Shelf(draw), list[asyncio.Task[None]]()
    for _ in range(draw.randint(1, 40)):
        act = draw.choice(["put", "poll", "poll", "leave", "wait"])
        if act == "put":
            polls.append(asyncio.create_task(shelf.put(draw.randint(1, 3))))
        elif act == "poll":
            polls.append(asyncio.create_task(shelf.poll()))
        elif act == "leave" and shelf.parking:
            # Parked, or woken a moment ago and not yet aware of it.
            draw.choice(shelf.parking).cancel()
        else:
            await asyncio.sleep(0)
    for _ in range(200):
        await asyncio.sleep(0)
    assert shelf.wakeups.parked == 0 or shelf.messages == 0, (shelf.wakeups.parked, shelf.messages)
    for each in polls:
        each.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


@pytest.mark.row("A6")
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_no_poll_of_the_broker_sleeps_beside_a_message(seed: int) -> None:
    """The same of the whole broker; the clock stands still, so nothing but a ring can wake a poll."""
    asyncio.run(_any_order_at_the_broker(random.Random(seed)))


async def _any_order_at_the_broker(draw: random.Random) -> None:
    async with running_broker() as broker:
        await broker.topic(queues=draw.randint(1, 3))
        polls: list[asyncio.Task[object]] = []
        for _ in range(draw.randint(1, 25)):
            act = draw.choice(["send", "poll", "poll", "leave", "wait", "settle"])
            if act == "send":
                polls.append(asyncio.create_task(broker.send(draw.randint(1, 3))))
            elif act == "poll":
                polls.append(asyncio.create_task(broker.receive(draw.randint(1, 2), poll_ms=2**40)))
            elif act == "leave" and polls:
                draw.choice(polls).cancel()
            elif act == "settle":
                await broker.broker.settle()
            else:
                await asyncio.sleep(0)
        await until(lambda: sum(not each.done() for each in polls) == broker.parked)
        await broker.broker.settle()
        await broker.advance(1_000)  # what was granted to those who had left
        await until(lambda: sum(not each.done() for each in polls) == broker.parked)
        ready = sum(state is State.READY for state in (await broker.states()).values())
        assert broker.parked == 0 or ready == 0, (broker.parked, ready)
        for each in polls:
            each.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
