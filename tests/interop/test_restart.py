"""Push consumers while the server is killed under them and comes back. For producers and simple ones see `matrix`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.interop.official import Program, Start
from tests.interop.seen import Lag, lag_in, until
from tests.interop.traffic import send_until_sent
from tests.support.server_process import ServerProcess, served

pytestmark = pytest.mark.row("O8")


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
