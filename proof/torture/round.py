"""One round: clients work on a new database while accidents happen, then all is consumed, and the history is judged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from proof.torture.accidents import Accidents
from proof.torture.place import LAYOUTS, Layout, Place, open_place
from tests.support.aftermath import final, looking, unfinished
from tests.support.checker import History, Outcome, Receive, Send, Violation, check
from tests.support.load import Load
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

TOPIC = "orders"
GROUPS = ("billing", "shipping")
BETWEEN_ACCIDENTS_S = (0.05, 0.3)
DRAIN_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round is. All of it follows from the seed, but for the layout that the caller may name."""

    seed: int
    layout: Layout
    with_proxies: bool
    accidents: int

    @classmethod
    def of(cls, seed: int, database: str | None = None, accidents: int = 20) -> Plan:
        chance = random.Random(f"plan {seed}")
        layout = LAYOUTS[database] if database else chance.choice(list(LAYOUTS.values()))
        return cls(seed, layout, with_proxies=chance.random() < 0.5, accidents=accidents)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.layout.name}{', proxies' if self.with_proxies else ''}"


@dataclass
class RoundResult:
    """What a round counted and found."""

    counts: Counter[str]
    violations: list[Violation]


async def run_round(plan: Plan, folder: Path, postgres: PostgresServer | None) -> RoundResult:
    """Run it; the history stays in the folder. Raises AssertionError where servers or clients do not go on."""
    chance = random.Random(plan.seed)
    async with open_place(plan.layout, folder, postgres, with_proxies=plan.with_proxies) as place:
        load = Load(TOPIC, GROUPS, producers=2, consumers=2, seed=plan.seed)
        accidents = Accidents(place, chance)
        try:
            await _work(load, place, accidents, chance, plan.accidents)
            await _drain(load, place)
        finally:
            load.history.write(folder / "history.jsonl")
            for number, server in enumerate(place.servers):
                (folder / f"server-{number}.log").write_text(server.stderr)
        with looking(place.database_url) as conn:
            violations = check(load.history, final(conn, TOPIC))
    return RoundResult(accidents.counts + counted(load.history), violations)


async def _work(load: Load, place: Place, accidents: Accidents, chance: random.Random, count: int) -> None:
    working = asyncio.create_task(load.run(*place.endpoints))
    try:
        for _ in range(count):
            await asyncio.sleep(chance.uniform(*BETWEEN_ACCIDENTS_S))
            await accidents.happen()
            if working.done():
                break
    finally:
        load.stop()
        await working


async def _drain(load: Load, place: Place) -> None:
    """Consume everything (I14), then stop the servers as they should be stopped."""
    working = asyncio.create_task(load.run_consumers(*place.endpoints))
    try:
        await eventually(
            lambda: asyncio.to_thread(_all_done, place.database_url), "all consumed", within_s=DRAIN_TIMEOUT_S
        )
    finally:
        load.stop()
        codes = await asyncio.gather(*(server.stop() for server in place.servers))
        await working
    assert codes == [0] * len(codes), f"servers that were stopped ended with {codes}"


def _all_done(database_url: str) -> bool:
    with looking(database_url) as conn:
        return unfinished(conn, TOPIC) == 0


def counted(history: History) -> Counter[str]:
    """Sends that were OK, and deliveries that were read."""
    return Counter(
        sends=sum(isinstance(call, Send) and call.outcome is Outcome.OK for call in history.calls),
        deliveries=sum(len(call.deliveries) for call in history.calls if isinstance(call, Receive)),
    )
