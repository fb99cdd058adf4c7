"""Clients that end, lapse, break off and come back, on a clock that stands still unless moved."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from popserver.model.states import State
from tests.support.running_broker import RunningBroker, running_broker, until, watched

SECOND = 1_000
STREAM = object()


async def state(broker: RunningBroker) -> State:
    (only,) = (await broker.states()).values()
    return only


async def hold(broker: RunningBroker) -> object:
    """One message, held by the push consumer c1."""
    broker.broker.sessions.clients.seen("c1")
    broker.broker.sessions.clients.pushes("c1")
    await broker.send()
    (held,) = await broker.receive(push=True)
    return held


@pytest.mark.row("L11")
async def test_a_goodbye_frees_the_holds_after_a_second(either_broker: RunningBroker) -> None:
    await hold(either_broker)
    either_broker.broker.sessions.clients.ended("c1")
    await either_broker.advance(SECOND - 1)
    assert await state(either_broker) is State.INFLIGHT
    await either_broker.advance(1)
    assert await state(either_broker) is State.READY


@pytest.mark.row("L15")
async def test_a_client_unheard_of_for_35_seconds_has_lapsed(broker: RunningBroker) -> None:
    await hold(broker)
    await broker.advance(35 * SECOND - 1)
    assert len(broker.broker.sessions.clients) == 1, "some clients beat every 30 s, and a beat may be late"
    await broker.advance(1)
    assert len(broker.broker.sessions.clients) == 0
    assert await state(broker) is State.INFLIGHT
    await broker.advance(SECOND)
    assert await state(broker) is State.READY


async def test_every_sign_of_life_counts(broker: RunningBroker) -> None:
    await hold(broker)
    for _ in range(10):
        await broker.advance(30 * SECOND)
        broker.broker.sessions.clients.seen("c1")
    assert await state(broker) is State.INFLIGHT
    await broker.advance(36 * SECOND)
    assert await state(broker) is State.READY


@pytest.mark.row("L11")
async def test_a_broken_stream_frees_the_holds_within_two_seconds(broker: RunningBroker) -> None:
    await hold(broker)
    broker.broker.sessions.clients.connected("c1", STREAM)
    broker.broker.sessions.clients.disconnected("c1", STREAM)
    await broker.advance(2 * SECOND - 1)
    assert await state(broker) is State.INFLIGHT
    await broker.advance(1)
    assert await state(broker) is State.READY


async def test_a_stream_that_was_replaced_ends_unnoticed(broker: RunningBroker) -> None:
    await hold(broker)
    clients, newer = broker.broker.sessions.clients, object()
    clients.connected("c1", STREAM)
    clients.connected("c1", newer)
    clients.disconnected("c1", STREAM)
    await broker.advance(10 * SECOND)
    assert await state(broker) is State.INFLIGHT


async def test_anything_heard_of_it_after_the_break_keeps_it(broker: RunningBroker) -> None:
    await hold(broker)
    clients = broker.broker.sessions.clients
    clients.connected("c1", STREAM)
    clients.disconnected("c1", STREAM)
    await broker.advance(SECOND // 2)
    clients.seen("c1")
    await broker.advance(20 * SECOND)
    assert await state(broker) is State.INFLIGHT


async def test_an_open_call_keeps_it_through_a_break_and_a_silence(broker: RunningBroker) -> None:
    await hold(broker)
    clients = broker.broker.sessions.clients
    clients.connected("c1", STREAM)
    call = clients.call_opened("c1")
    clients.disconnected("c1", STREAM)
    await broker.advance(100 * SECOND)
    assert await state(broker) is State.INFLIGHT
    clients.call_closed(call)
    await broker.advance(SECOND)
    assert await state(broker) is State.READY


async def test_the_end_of_a_call_is_a_sign_of_life(broker: RunningBroker) -> None:
    await hold(broker)
    clients = broker.broker.sessions.clients
    call = clients.call_opened("c1")
    await broker.advance(40 * SECOND)
    clients.call_closed(call)
    await broker.advance(34 * SECOND)
    assert await state(broker) is State.INFLIGHT
    await broker.advance(2 * SECOND)
    assert await state(broker) is State.READY


@pytest.mark.row("L15")
async def test_a_client_that_comes_back_in_time_keeps_its_holds(broker: RunningBroker) -> None:
    held = await hold(broker)
    await broker.advance(35 * SECOND)
    assert len(broker.broker.sessions.clients) == 0
    await broker.advance(SECOND - 1)
    broker.broker.sessions.clients.seen("c1")
    await broker.advance(20 * SECOND)
    assert await state(broker) is State.INFLIGHT
    assert await broker.ack(held) == [None]  # type: ignore[arg-type]


@pytest.mark.row("L15")
async def test_back_before_its_end_was_written_it_keeps_its_holds(broker: RunningBroker) -> None:
    """Its orphaning and its adoption wait for one transaction: they are done in the order they came."""
    await hold(broker)
    reached, gate = threading.Event(), threading.Event()

    def hold_the_commit() -> None:
        reached.set()
        gate.wait(60)

    with watched(broker.broker.engine.database, "COMMIT", hold_the_commit):
        sending = asyncio.create_task(broker.send())
        await until(reached.is_set)
        await broker.clock.advance(35 * SECOND, nothing)
        assert len(broker.broker.sessions.clients) == 0
        broker.broker.sessions.clients.seen("c1")
        await asyncio.sleep(0)
        gate.set()
        await sending
        await broker.broker.settle()
    await broker.advance(10 * SECOND)
    assert list((await broker.states()).values()) == [State.INFLIGHT, State.READY]


async def test_an_end_that_the_store_refuses_is_written_later(broker: RunningBroker) -> None:
    await hold(broker)

    def fail() -> None:
        raise OperationalError("BEGIN", {}, Exception("database is locked"))

    with watched(broker.broker.engine.database, "BEGIN", fail):
        broker.broker.sessions.clients.ended("c1")
        await broker.advance(5 * SECOND)
    assert await state(broker) is State.INFLIGHT
    await broker.advance(2 * SECOND)
    assert await state(broker) is State.READY


async def test_a_goodbye_that_is_stored_late_ends_nothing_that_was_given_after_it(broker: RunningBroker) -> None:
    def fail() -> None:
        raise OperationalError("BEGIN", {}, Exception("database is locked"))

    clients = broker.broker.sessions.clients
    clients.seen("c1")
    clients.pushes("c1")
    with watched(broker.broker.engine.database, "BEGIN", fail):
        clients.ended("c1")
        await broker.broker.settle()
    await hold(broker)
    for _ in range(3):
        await broker.advance(20 * SECOND)
        clients.seen("c1")
    assert await state(broker) is State.INFLIGHT


async def test_one_that_comes_back_later_starts_anew(broker: RunningBroker) -> None:
    await hold(broker)
    await broker.advance(37 * SECOND)
    broker.broker.sessions.clients.seen("c1")
    (again,) = await broker.receive(push=True)
    assert again.attempt == 2
    await broker.advance(29 * SECOND)
    assert await state(broker) is State.INFLIGHT


async def test_a_gone_client_is_forgotten_in_the_end(broker: RunningBroker) -> None:
    await hold(broker)
    await broker.advance(200 * SECOND)
    assert broker.broker.sessions.clients._by_id == {}


async def test_a_lapse_costs_nothing_where_no_push_hold_can_be(broker: RunningBroker) -> None:
    """Producers and simple consumers come and go by the thousand."""
    clients, written = broker.broker.sessions.clients, list[str]()
    clients._abandon = noting(clients._abandon, written)
    clients._extend = noting(clients._extend, written)
    for number in range(3):
        clients.seen(f"c{number}")
    clients.pushes("c0")
    await broker.advance(35 * SECOND)
    assert written == ["c0"]
    clients.seen("c1")
    await broker.advance(200 * SECOND)
    assert written == ["c0"]
    assert clients._by_id == {}


def noting(deed: Callable[..., Awaitable[None]], noted: list[str]) -> Callable[..., Awaitable[None]]:
    async def note_and_do(client_id: str, *more: Any) -> None:
        noted.append(client_id)
        await deed(client_id, *more)

    return note_and_do


async def test_others_are_not_touched(broker: RunningBroker) -> None:
    await hold(broker)
    broker.broker.sessions.clients.seen("c2")
    broker.broker.sessions.clients.ended("c2")
    broker.broker.sessions.clients.ended("never seen")
    await broker.advance(10 * SECOND)
    assert await state(broker) is State.INFLIGHT


async def test_a_simple_consumers_holds_do_not_end_with_it(broker: RunningBroker) -> None:
    await broker.send()
    await broker.receive(invisible_ms=60 * SECOND)
    broker.broker.sessions.clients.seen("c1")
    broker.broker.sessions.clients.ended("c1")
    await broker.advance(60 * SECOND - 1)
    assert await state(broker) is State.INFLIGHT


async def test_a_call_that_outlives_a_goodbye_does_not_make_its_successor_immortal(broker: RunningBroker) -> None:
    clients = broker.broker.sessions.clients
    call = clients.call_opened("c1")
    clients.ended("c1")
    await hold(broker)
    clients.call_closed(call)
    await broker.advance(34 * SECOND)
    assert await state(broker) is State.INFLIGHT
    await broker.advance(2 * SECOND)
    assert await state(broker) is State.READY


@pytest.mark.row("L15")
async def test_after_a_restart_clients_have_35_seconds_to_be_heard_of(sqlite_url: str) -> None:
    async with running_broker(sqlite_url) as first:
        await hold(first)
        clock = first.clock
    async with running_broker(sqlite_url, clock=clock) as second:
        await second.advance(30 * SECOND)
        assert await state(second) is State.INFLIGHT
        second.broker.sessions.clients.seen("c1")
        await second.advance(20 * SECOND)
        assert await state(second) is State.INFLIGHT
        await second.advance(17 * SECOND)
        assert await state(second) is State.READY


async def test_what_fell_due_while_no_server_ran_is_done_at_the_start(sqlite_url: str) -> None:
    async with running_broker(sqlite_url) as first:
        await first.send()
        await first.receive(invisible_ms=10 * SECOND)
        clock = first.clock
    await clock.advance(60 * SECOND, nothing)
    async with running_broker(sqlite_url, clock=clock) as second:
        await second.advance(0)
        assert [each.attempt for each in await second.receive()] == [2]


async def nothing() -> None:
    return
