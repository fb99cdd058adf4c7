"""Official clients of two servers on one Postgres, one of which is killed for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest
from sqlalchemy import text

from tests.interop.official import OfficialPushConsumer, Program, Start
from tests.interop.seen import LAG, Lag, until
from tests.interop.traffic import Traffic, send_until_sent
from tests.support.final_state import looking
from tests.support.server_process import ServerProcess, served

BEFORE_AND_AFTER = 30


class Two(NamedTuple):
    """`dialled` is the one whose address the clients are given."""

    dialled: ServerProcess
    other: ServerProcess
    database_url: str

    def lag(self) -> Lag:
        with looking(self.database_url) as conn:
            names = {"consumer_group": "counters", "topic": "flights"}
            row = conn.execute(text(LAG), names).first()
            return Lag() if row is None else Lag(*row)


@pytest.fixture
async def servers(postgres_url: str) -> AsyncIterator[Two]:
    options = ("--min-invisible", "1s", "--tls", "plaintext")
    async with served(postgres_url, *options) as dialled, served(postgres_url, *options) as other:
        yield Two(dialled, other, postgres_url)


@pytest.fixture
def program(start_at: Start, language: str, servers: Two) -> Program:
    """A program of official clients that know the first server."""
    return start_at(language, servers.dialled.endpoint)


async def test_producers_and_simple_consumers_go_on(start_at: Start, servers: Two) -> None:
    """Of Python alone: a call that Node had open to a server that never comes back may never end. `matrix` has all
    clients while the server that they dialled is killed, and comes back."""
    program = start_at("python", servers.dialled.endpoint)
    traffic = Traffic(program.producer("flights"), program.simple("counters", "flights", await_s=5))
    with traffic:
        await _eventually(lambda: traffic.passed > BEFORE_AND_AFTER)
        await servers.other.kill()
        before = traffic.passed
        await _eventually(lambda: traffic.passed > before + BEFORE_AND_AFTER)
        traffic.send_no_more()
        await _eventually(lambda: traffic.sent <= traffic.acked | traffic.in_doubt)
        await _eventually(lambda: servers.lag().is_done)
    assert traffic.came_back == []
    assert servers.lag().stored >= len(traffic.sent)


async def test_both_servers_are_used(program: Program, servers: Two) -> None:
    """By their processor time: a server that nobody comes to uses next to none."""
    before = [each.cpu_s() for each in servers[:2]]
    with Traffic(program.producer("flights"), program.simple("counters", "flights", await_s=5)) as traffic:
        await _eventually(
            lambda: (
                traffic.passed > 300
                and all(each.cpu_s() - b > 0.1 for each, b in zip(servers[:2], before, strict=True))
            )
        )


@pytest.mark.parametrize("killed", ["dialled", "other"])
async def test_a_push_consumer_goes_on(start_at: Start, program: Program, servers: Two, killed: str) -> None:
    """What it acked before counts: Python's acks of a killed server's messages are tried there for ever."""
    survivor = servers.other if killed == "dialled" else servers.dialled
    producer = start_at("python", survivor.endpoint).producer("flights")
    consumer = program.push("counters", "flights")
    for when in ("before", "after"):
        bodies = {f"{when} {number}" for number in range(20)}
        for body in sorted(bodies):
            await asyncio.to_thread(send_until_sent, producer, body)
        await asyncio.to_thread(_hear, consumer, bodies)
        if when == "before":
            await _eventually(lambda: servers.lag().is_done)
            await getattr(servers, killed).kill()
    assert survivor.is_running


def _hear(consumer: OfficialPushConsumer, bodies: set[str]) -> None:
    """Until all of these were heard, in any order, some perhaps again."""
    missing = set(bodies)
    while missing:
        missing -= {each.body for each in consumer.hear()}


async def _eventually(fact: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, fact)
