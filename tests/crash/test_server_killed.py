"""`kill -9` of the server at random moments under load: nothing acknowledged is lost, nothing acked comes back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.aftermath import final, looking, unfinished
from tests.support.checker import Outcome, check
from tests.support.load import Load
from tests.support.server_process import ServerProcess, served
from tests.support.waiting import eventually

TOPIC = "orders"
GROUPS = ("billing", "shipping")
# Long enough for a few hundred commits, short enough that a round is mostly load and little waiting.
ALIVE_S = (0.05, 0.4)
DRAIN_TIMEOUT_S = 60.0


@pytest.mark.timeout(180)
@pytest.mark.row("O1")
async def test_ten_kills(database_url: str, tmp_path: Path) -> None:
    await _survives(database_url, tmp_path, kills=10, seed=random.SystemRandom().randrange(1 << 32))


@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_two_hundred_kills(database_url: str, tmp_path: Path) -> None:
    await _survives(database_url, tmp_path, kills=200, seed=random.SystemRandom().randrange(1 << 32))


async def _survives(database_url: str, folder: Path, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    load = Load(TOPIC, GROUPS, producers=2, consumers=2, seed=seed)
    async with served(database_url, "--min-invisible", "0s") as server:
        for _ in range(kills):
            await _work_until_killed(server, load, chance.uniform(*ALIVE_S))
            await server.start()
        await _drain(server, load, database_url)
        assert await server.stop() == 0
    load.history.write(folder / "history.jsonl")
    with looking(database_url) as conn:
        violations = check(load.history, final(conn, TOPIC))
    assert not violations, f"seed {seed}, history in {folder}:\n" + "\n".join(map(str, violations[:20]))
    outcomes = {(type(call).__name__, call.outcome) for call in load.history.calls}
    # A load that met no lost answer, or no refused handle, would prove nothing.
    assert {("Send", Outcome.OK), ("Send", Outcome.UNKNOWN), ("Ack", Outcome.OK), ("Ack", Outcome.REFUSED)} <= outcomes


async def _work_until_killed(server: ServerProcess, load: Load, alive_s: float) -> None:
    working = asyncio.create_task(load.run(server.endpoint))
    await asyncio.sleep(alive_s)
    await server.kill()
    load.stop()
    await working


async def _drain(server: ServerProcess, load: Load, database_url: str) -> None:
    working = asyncio.create_task(load.run_consumers(server.endpoint))
    await eventually(lambda: asyncio.to_thread(_all_done, database_url), "all consumed", within_s=DRAIN_TIMEOUT_S)
    load.stop()
    await working


def _all_done(database_url: str) -> bool:
    with looking(database_url) as conn:
        return unfinished(conn, TOPIC) == 0
