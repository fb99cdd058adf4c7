"""One round: clients work on a new database while accidents happen, then all is consumed, and the history is judged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from proof.history.events import HalfSend, Pull
from proof.history.lines import write_history
from proof.history.scenes import Scene, judge
from proof.torture.accidents import Accidents
from proof.torture.client_processes import ClientProcess, with_ids
from proof.torture.loads import TOPIC, SceneLoad
from proof.torture.place import LAYOUTS, Layout, Place, open_place
from tests.support.aftermath import final, looking, unfinished
from tests.support.checker import Final, History, Outcome, Receive, Send, Violation
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually

# How many calls succeed between two accidents, so that each accident meets a load, also on a busy machine.
CALLS_BETWEEN = (4, 60)
GOES_ON_WITHIN_S = 60.0
# How often each scene is chosen; programs of other clients join the first one.
SHARES = [3] + [1] * (len(Scene) - 1)
DRAIN_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a round is. All of it follows from the seed, but for what the caller names."""

    seed: int
    layout: Layout
    scene: Scene
    with_proxies: bool
    accidents: int
    calls: tuple[int, int] = CALLS_BETWEEN
    with_program: bool = False

    @classmethod
    def of(cls, seed: int, database: str | None = None, scene: str | None = None, accidents: int = 20) -> Plan:
        chance = random.Random(f"plan {seed}")
        any_layout = chance.choice(list(LAYOUTS.values()))
        (any_scene,) = chance.choices(list(Scene), SHARES)
        layout = LAYOUTS[database] if database else any_layout
        of = Scene(scene) if scene else any_scene
        with_proxies, with_program = chance.random() < 0.5, chance.random() < 0.5 and of is Scene.PLAIN
        return cls(seed, layout, of, with_proxies, accidents, with_program=with_program)

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.scene} on {self.layout.name}{' by proxies' if self.with_proxies else ''}" + (
            ", with programs" if self.with_program else ""
        )


@dataclass
class RoundResult:
    """What a round counted and found."""

    counts: Counter[str]
    violations: list[Violation]


async def run_round(
    plan: Plan,
    folder: Path,
    postgres: PostgresServer | None = None,
    *,
    under: Sequence[str] = (),
    drain_within_s: float = DRAIN_TIMEOUT_S,
) -> RoundResult:
    """Run it; the history stays in the folder. `under`: a command that runs the servers, see `ServerProcess`.

    Raises AssertionError where servers or clients do not go on.
    """
    chance = random.Random(plan.seed)
    known_deadlocks = len(postgres.deadlocks()) if postgres else 0
    async with open_place(plan.layout, folder, postgres, with_proxies=plan.with_proxies, under=under) as place:
        load = SceneLoad(plan.scene, plan.seed)
        await load.prepare(place.servers[0].endpoint)
        if plan.with_program:
            kinds = ("popclient", "official") if chance.random() < 0.5 else ("official", "popclient")
            place.program = ClientProcess(load.history, place.endpoints[0], TOPIC, kinds)
        accidents = Accidents(place, chance, load.history)
        end: Final | None = None
        try:
            await _work(load, place, accidents, plan, chance)
            drained = await _drain(load, place, drain_within_s)
            with looking(place.database_url) as conn:
                end = final(conn, TOPIC)
                end.drained = drained
            load.history = with_ids(load.history, end)
        finally:
            write_history(folder / "history.jsonl", plan.scene, load.history, end)
            for number, server in enumerate(place.servers):
                (folder / f"server-{number}.log").write_text(server.stderr)
    violations = judge(plan.scene, load.history, end)
    if postgres:
        violations += [Violation("deadlock", line) for line in postgres.deadlocks()[known_deadlocks:]]
    return RoundResult(accidents.counts + counted(load.history), violations)


async def _work(load: SceneLoad, place: Place, accidents: Accidents, plan: Plan, chance: random.Random) -> None:
    working = asyncio.create_task(load.run(*place.endpoints))
    if place.program:
        await place.program.start()
    try:
        for _ in range(plan.accidents):
            await _calls_succeed(load, working, chance.randint(*plan.calls))
            await accidents.happen()
    finally:
        load.stop()
        if place.program:
            await place.program.kill()
        await working


async def _calls_succeed(load: SceneLoad, working: asyncio.Task[None], count: int) -> None:
    """Wait for so many more calls that are OK (I14)."""
    seen, succeeded = len(load.history.calls), 0

    async def enough() -> bool:
        nonlocal seen, succeeded
        new, seen = load.history.calls[seen:], len(load.history.calls)
        succeeded += sum(call.outcome is Outcome.OK for call in new)
        return succeeded >= count or working.done()

    await eventually(enough, f"{count} more calls are OK", within_s=GOES_ON_WITHIN_S)


async def _drain(load: SceneLoad, place: Place, within_s: float) -> bool:
    """Consume everything, then stop the servers as they should be stopped; whether nothing was left (I14)."""
    working = asyncio.create_task(load.run_consumers(*place.endpoints))
    drained = True
    try:
        await eventually(lambda: asyncio.to_thread(_all_done, place.database_url), "all consumed", within_s=within_s)
    except AssertionError:
        drained = False
    finally:
        load.stop()
        codes = await asyncio.gather(*(server.stop() for server in place.servers))
        await working
    assert codes == [0] * len(codes), f"servers that were stopped ended with {codes}"
    return drained


def _all_done(database_url: str) -> bool:
    with looking(database_url) as conn:
        delayed = conn.execute(text("SELECT COUNT(*) FROM pending WHERE kind = 'DELAY'")).scalar_one()
        return unfinished(conn, TOPIC) == 0 and delayed == 0


def counted(history: History) -> Counter[str]:
    """Sends that were OK, and deliveries that were read."""
    return Counter(
        sends=sum(isinstance(call, Send | HalfSend) and call.outcome is Outcome.OK for call in history.calls),
        deliveries=sum(len(call.deliveries) for call in history.calls if isinstance(call, Receive))
        + sum(len(call.messages) for call in history.calls if isinstance(call, Pull)),
    )
