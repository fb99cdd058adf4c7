"""Official clients while the server is killed under them and comes back on the same port and database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.interop.official import Program, Start
from tests.interop.seen import Lag, lag_in, until
from tests.interop.traffic import Traffic, send_until_sent
from tests.support.server_process import ServerProcess, served

pytestmark = pytest.mark.row("O8")

BEFORE_AND_AFTER = 30


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "served.db"


@pytest.fixture
async def server(database: Path) -> AsyncIterator[ServerProcess]:
    async with served(f"sqlite:///{database}", "--min-invisible", "1s") as server:
        yield server


@pytest.fixture
def program(start_at: Start, language: str, server: ServerProcess) -> Program:
    """A program of official clients of the served broker."""
    return start_at(language, server.endpoint)


async def test_producers_and_simple_consumers_go_on(program: Program, server: ServerProcess, database: Path) -> None:
    traffic = Traffic(program.producer("flights"), program.simple("counters", "flights", await_s=5))
    with traffic:
        await _eventually(lambda: traffic.passed > BEFORE_AND_AFTER)
        await server.kill()
        before = traffic.passed
        await server.start()
        await _eventually(lambda: traffic.passed > before + BEFORE_AND_AFTER)
        traffic.send_no_more()
        await _eventually(lambda: traffic.sent <= traffic.acked | traffic.in_doubt)
        await _eventually(lambda: lag_in(database, "counters", "flights").is_done)
    assert traffic.came_back == []
    # What a lost answer left in doubt may be stored on top, never less than what was confirmed.
    assert lag_in(database, "counters", "flights").stored >= len(traffic.sent)


async def test_a_push_consumer_goes_on(program: Program, server: ServerProcess, database: Path) -> None:
    producer, consumer = program.producer("flights"), program.push("counters", "flights")
    producer.send("flights", "before")
    assert (await asyncio.to_thread(consumer.hear))[0].body == "before"
    await server.kill()
    await server.start()
    await asyncio.to_thread(send_until_sent, producer, "after")
    assert (await asyncio.to_thread(consumer.hear))[0].body == "after"
    await _eventually(lambda: lag_in(database, "counters", "flights") == Lag(stored=2))
    assert consumer.heard.empty()


@pytest.mark.row("L15")
async def test_what_a_push_consumer_holds_stays_its_own(
    program: Program, server: ServerProcess, database: Path
) -> None:
    consumer = program.push("counters", "flights", waits=True)
    program.producer("flights").send("flights", "UA1545")
    await asyncio.to_thread(consumer.hear)
    await server.kill()
    await server.start()
    await asyncio.to_thread(consumer.release)
    await _eventually(lambda: lag_in(database, "counters", "flights") == Lag(stored=1))
    assert consumer.heard.empty()


async def _eventually(fact: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, fact)
