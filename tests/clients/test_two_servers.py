"""A push consumer lives as long as one server hears of it."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from popserver.model.retry import SECOND_MS as SECOND
from popserver.model.states import State
from tests.support.running_broker import RunningBroker
from tests.support.several_brokers import SeveralBrokers, silence

STREAMS = {"a": object(), "b": object()}


async def state(broker: RunningBroker) -> State:
    (only,) = (await broker.states()).values()
    return only


def come(broker: RunningBroker, name: str) -> None:
    """The push consumer c1 opens a stream with the server, and polls there."""
    clients = broker.broker.sessions.clients
    clients.connected("c1", STREAMS[name])
    clients.pushes("c1")


@pytest.fixture
async def held(servers: SeveralBrokers) -> SeveralBrokers:
    """One message; c1 is at both servers and holds it, granted by the first."""
    come(servers.a, "a")
    come(servers.b, "b")
    await servers.settle()
    await servers.a.send()
    assert await servers.a.receive(push=True, client_id="c1")
    return servers


async def break_off(broker: RunningBroker, name: str) -> None:
    broker.broker.sessions.clients.disconnected("c1", STREAMS[name])


async def test_a_stream_that_breaks_at_one_server_ends_nothing(held: SeveralBrokers) -> None:
    await break_off(held.a, "a")
    for _ in range(4):
        await held.advance(30 * SECOND)
        held.b.broker.sessions.clients.seen("c1")
    assert await state(held.a) is State.INFLIGHT


async def test_the_last_stream_to_break_frees_the_holds(held: SeveralBrokers) -> None:
    await break_off(held.a, "a")
    await held.advance(5 * SECOND)
    await break_off(held.b, "b")
    await held.advance(2 * SECOND - 1)
    assert await state(held.a) is State.INFLIGHT
    await held.advance(1)
    assert await state(held.a) is State.READY


async def test_streams_that_break_at_the_same_time_free_them_as_well(held: SeveralBrokers) -> None:
    await asyncio.gather(break_off(held.a, "a"), break_off(held.b, "b"))
    await held.advance(2 * SECOND)
    assert await state(held.a) is State.READY


@pytest.mark.parametrize("heard_at", ["a", "b"])
async def test_a_goodbye_at_any_server_counts(held: SeveralBrokers, heard_at: str) -> None:
    getattr(held, heard_at).broker.sessions.clients.ended("c1")
    await held.advance(SECOND)
    assert await state(held.a) is State.READY


async def test_who_moves_to_another_server_in_time_gets_its_holds_back(servers: SeveralBrokers) -> None:
    come(servers.a, "a")
    await servers.a.send()
    assert await servers.a.receive(push=True, client_id="c1")
    await break_off(servers.a, "a")
    await servers.advance(SECOND + 500)
    come(servers.b, "b")
    await servers.advance(30 * SECOND)
    assert await state(servers.b) is State.INFLIGHT


async def test_a_killed_servers_client_has_its_time_to_come(held: SeveralBrokers) -> None:
    held.b.broker.sessions.clients.ended("nobody")
    silence(held.a)
    for _ in range(4):
        await held.advance(20 * SECOND)
        held.b.broker.sessions.clients.seen("c1")
    assert await state(held.b) is State.INFLIGHT, "it is at the other server"
    rows = await held.b.query("SELECT client_id, server_id FROM client")
    assert [tuple(row) for row in rows] == [("c1", held.b.broker.servers.server_id)]


async def test_a_killed_servers_clients_are_gone_when_nobody_else_hears_of_them(servers: SeveralBrokers) -> None:
    come(servers.a, "a")
    await servers.a.send()
    assert await servers.a.receive(push=True, client_id="c1")
    await servers.settle()
    silence(servers.a)
    await servers.advance(34 * SECOND)
    assert await state(servers.b) is State.INFLIGHT
    await servers.advance(6 * SECOND)
    assert await state(servers.b) is State.READY
    await servers.advance(6 * SECOND)
    rows = await servers.b.query("SELECT server_id FROM server")
    assert [row.server_id for row in rows] == [servers.b.broker.servers.server_id]


async def test_a_client_that_its_killed_server_had_not_noted_is_gone_as_well(servers: SeveralBrokers) -> None:
    await servers.a.send()
    assert await servers.a.receive(push=True, client_id="c1")
    silence(servers.a)
    await servers.advance(60 * SECOND)
    assert await state(servers.b) is State.READY


async def test_a_server_that_stops_leaves_its_clients_time_to_move(held: SeveralBrokers) -> None:
    come(held.b, "b")
    await held.a.broker.servers.close()
    held.a.broker.sessions.clients.close()
    for _ in range(3):
        await held.advance(20 * SECOND)
        held.b.broker.sessions.clients.seen("c1")
    assert await state(held.b) is State.INFLIGHT
    assert held.b.broker.servers.reachable()[0].server_id == held.b.broker.servers.server_id


async def test_nothing_is_written_while_a_client_lives(held: SeveralBrokers) -> None:
    before = await held.a.query("SELECT xmin::text, client_id FROM client ORDER BY server_id")
    for _ in range(5):
        await held.advance(20 * SECOND)
        for each in (held.a, held.b):
            each.broker.sessions.clients.seen("c1")
    assert await held.a.query("SELECT xmin::text, client_id FROM client ORDER BY server_id") == before


async def test_after_a_time_without_the_database_nobody_is_taken_for_gone(held: SeveralBrokers) -> None:
    """Nobody could say that it is there: the first to come back must not judge."""
    for each in (held.a, held.b):
        each.broker.servers._last_heartbeat_ms = held.clock.now_ms() - 3_600 * SECOND
    await _backdate(held)
    held.a.broker.servers._begin_heartbeat()
    await held.settle()
    await held.advance(3 * SECOND)
    assert await state(held.a) is State.INFLIGHT


async def test_an_inherited_client_is_gone_when_its_new_server_hears_no_more_of_it(servers: SeveralBrokers) -> None:
    """It only beat there, and never polled."""
    come(servers.a, "a")
    await servers.a.send()
    assert await servers.a.receive(push=True, client_id="c1")
    await servers.settle()
    silence(servers.a)
    for _ in range(3):
        servers.b.broker.sessions.clients.seen("c1")
        await servers.advance(20 * SECOND)
    assert await state(servers.b) is State.INFLIGHT
    await servers.advance(30 * SECOND)
    assert await state(servers.b) is State.READY
    assert await servers.b.query("SELECT client_id FROM client") == []


async def test_a_server_that_was_away_lists_its_clients_again(servers: SeveralBrokers) -> None:
    """The other one has taken them for gone meanwhile."""
    come(servers.a, "a")
    await servers.settle()
    away = servers.a.broker.servers
    away._closed = True
    for _ in range(4):
        await servers.advance(20 * SECOND)
        servers.a.broker.sessions.clients.seen("c1")
    assert await servers.b.query("SELECT client_id FROM client") == []
    away._closed = False
    away._begin_heartbeat()
    await servers.settle()
    rows = await servers.b.query("SELECT client_id, server_id FROM client")
    assert [tuple(row) for row in rows] == [("c1", away.server_id)]


async def _backdate(servers: SeveralBrokers) -> None:
    with psycopg.connect(servers.url, autocommit=True) as conn:
        conn.execute("UPDATE server SET last_seen_ms = last_seen_ms - 3600000")
