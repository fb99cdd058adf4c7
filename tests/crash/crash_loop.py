"""The frame of every crash test: load, an accident, again and again; then all is consumed, and the history judged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.support.checker import History, Outcome, check
from tests.support.final_state import final, looking, unfinished
from tests.support.server_process import ServerProcess, served
from tests.support.waiting import eventually
from tests.support.workload import Load

TOPIC = "orders"
GROUPS = ("billing", "shipping")
# Long enough for a few hundred commits, short enough that a round is mostly load and little waiting.
BETWEEN_ACCIDENTS_S = (0.05, 0.4)
DRAIN_TIMEOUT_S = 60.0
MORE = 5  # times the rounds, if they meet too little: by chance no accident came during a receive

Accident = Callable[[ServerProcess, Load], Awaitable[None]]


async def survive(database_url: str, folder: Path, accident: Accident, *, rounds: int) -> None:
    """Fails with the seed and the broken promises; the history stays in the folder. There are more rounds than `rounds`
    if these did not meet all that the test is about."""
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    load = Load(TOPIC, GROUPS, producers=2, consumers=2, seed=seed)
    async with served(database_url, "--min-invisible", "0s") as server:
        for number in range(MORE * rounds):
            if number >= rounds and not _missed(load.history):
                break
            working = asyncio.create_task(load.run(server.endpoint))
            await asyncio.sleep(chance.uniform(*BETWEEN_ACCIDENTS_S))
            await accident(server, load)
            load.stop()
            await working
            if not server.is_running:
                await server.start()
        await _drain(server, load, database_url)
    load.history.write(folder / "history.jsonl")
    with looking(database_url) as conn:
        violations = check(load.history, final(conn, TOPIC))
    assert not violations, f"seed {seed}, history in {folder}:\n" + "\n".join(map(str, violations[:20]))
    assert not _missed(load.history), "the load never met these, so it proves nothing"


async def _drain(server: ServerProcess, load: Load, database_url: str) -> None:
    """Consume everything, then stop the server as it should be stopped: the polls that wait are answered."""
    working = asyncio.create_task(load.run_consumers(server.endpoint))
    await eventually(lambda: asyncio.to_thread(_all_done, database_url), "all consumed", within_s=DRAIN_TIMEOUT_S)
    load.stop()
    assert await server.stop() == 0
    await working


def _all_done(database_url: str) -> bool:
    with looking(database_url) as conn:
        return unfinished(conn, TOPIC) == 0


def _missed(history: History) -> set[tuple[str, Outcome]]:
    """What a load has to meet and has not met yet: lost answers, and a handle that is refused."""
    wanted = {
        ("Send", Outcome.OK),
        ("Send", Outcome.UNKNOWN),
        ("Receive", Outcome.OK),
        ("Receive", Outcome.UNKNOWN),
        ("Ack", Outcome.OK),
        ("Ack", Outcome.REFUSED),
    }
    return wanted - {(type(call).__name__, call.outcome) for call in history.calls}
