"""Two server processes on one Postgres, one or the other killed at random moments under load.

Nothing acknowledged is lost, no message is in two hands, what the killed one had granted comes back; and the two never
wait for each other in a circle.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.checker import Call, Outcome, Receive, Send, check
from tests.support.final_state import final, looking, unfinished
from tests.support.postgres import fresh_database, postgres_server
from tests.support.server_process import ServerProcess, served
from tests.support.waiting import eventually
from tests.support.workload import Load

TOPIC = "orders"
GROUPS = ("billing", "shipping")
BEFORE_A_KILL_S = (0.1, 0.6)
GOES_ON_WITHIN_S = 10.0
DRAIN_TIMEOUT_S = 60.0


@pytest.mark.timeout(720)
async def test_five_kills(tmp_path: Path) -> None:
    await _survive(tmp_path, rounds=5)


@pytest.mark.slow
@pytest.mark.timeout(5_400)
async def test_a_hundred_kills(tmp_path: Path) -> None:
    await _survive(tmp_path, rounds=100)


async def _survive(folder: Path, *, rounds: int) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    load = Load(TOPIC, GROUPS, producers=4, consumers=4, seed=seed)
    with postgres_server(own=True) as postgres, fresh_database(postgres) as url:
        async with _two(url) as servers:
            for _ in range(rounds):
                await _round(servers, load, chance)
            await _drain(servers, load, url)
        load.history.write(folder / "history.jsonl")
        with looking(url) as conn:
            violations = check(load.history, final(conn, TOPIC))
        assert not violations, f"seed {seed}, history in {folder}:\n" + "\n".join(map(str, violations[:20]))
        assert postgres.deadlocks() == []


@asynccontextmanager
async def _two(url: str) -> AsyncIterator[list[ServerProcess]]:
    options = ("--min-invisible", "0s", "--tls", "plaintext")
    async with served(url, *options) as one, served(url, *options) as other:
        yield [one, other]


async def _round(servers: Sequence[ServerProcess], load: Load, chance: random.Random) -> None:
    """Work at both, kill one; the other one goes on as if nothing had happened."""
    working = asyncio.create_task(load.run(*(each.endpoint for each in servers)))
    await asyncio.sleep(chance.uniform(*BEFORE_A_KILL_S))
    killed = chance.choice(servers)
    await killed.kill()
    for kind in (Send, Receive):
        await _next_call(load, kind)
    load.stop()
    await killed.start()
    await working


async def _next_call(load: Load, kind: type[Call]) -> None:
    known = len(load.history.calls)

    async def made() -> bool:
        return any(isinstance(call, kind) and call.outcome is Outcome.OK for call in load.history.calls[known:])

    await eventually(made, f"a {kind.__name__} that is OK", within_s=GOES_ON_WITHIN_S)


async def _drain(servers: Sequence[ServerProcess], load: Load, url: str) -> None:
    working = asyncio.create_task(load.run_consumers(*(each.endpoint for each in servers)))
    await eventually(lambda: asyncio.to_thread(_all_done, url), "all consumed", within_s=DRAIN_TIMEOUT_S)
    load.stop()
    for each in servers:
        assert await each.stop() == 0
    await working


def _all_done(url: str) -> bool:
    with looking(url) as conn:
        return unfinished(conn, TOPIC) == 0
