"""One round: clients work on a new database while accidents happen, then all is consumed, and the history is judged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from proof.history.events import HalfSend, Pull, Quiet, SunkBatch
from proof.history.lines import write_history
from proof.history.scenes import Scene, judge
from proof.surroundings import ALONE, Surroundings
from proof.torture.accidents import Accidents
from proof.torture.client_processes import KINDS, SCENES, ClientProcess, with_ids
from proof.torture.loads import TOPIC, SceneLoad
from proof.torture.place import LAYOUTS, Layout, Place, open_place
from proof.torture.spark_process import Moment, SparkProcess
from proof.torture.spark_program import MODES as SPARK_MODES
from tests.support.checker import Final, History, Outcome, Receive, Send, Violation
from tests.support.final_state import all_have_begun, final, looking, stored, unfinished
from tests.support.postgres import PostgresServer
from tests.support.waiting import eventually
from tests.support.workload import now_ms

# How many calls succeed between two accidents, so that each accident meets a load, also on a busy machine.
CALLS_BETWEEN = (4, 60)
GOES_ON_WITHIN_S = 60.0
# How often each scene is chosen, against once; programs of other clients join this one.
SHARES = {Scene.PLAIN: 3}
# How many accidents meet a Spark at work; the others may come while it starts.
SPARK_WORKS = 0.5
SPARK_ACCIDENTS_MAX = 10  # a start of Spark takes as long as ten other accidents
DRAIN_TIMEOUT_S = 120.0
QUIET_TRIES = 3  # to see how soon a message comes while nothing fails


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
    spark_mode: str = "queue"  # of the source, in the scene of Spark
    around: Surroundings = ALONE

    @classmethod
    def of(
        cls,
        seed: int,
        database: str | None = None,
        scene: str | None = None,
        accidents: int = 20,
        scenes: Sequence[Scene] = tuple(Scene),
        can_have: frozenset[str] = frozenset(),
    ) -> Plan:
        """`scenes`: those to choose from, if none is named. `can_have`: parts of surroundings."""
        chance = random.Random(f"plan {seed}")
        any_layout = chance.choice(list(LAYOUTS.values()))
        (any_scene,) = chance.choices(scenes, [SHARES.get(each, 1) for each in scenes])
        layout = LAYOUTS[database] if database else any_layout
        of = Scene(scene) if scene else any_scene
        with_proxies, with_program = chance.random() < 0.5, chance.random() < 0.5 and of in SCENES
        mode = chance.choice(SPARK_MODES)
        if of is Scene.SPARK:
            accidents = min(accidents, SPARK_ACCIDENTS_MAX)
        around = Surroundings.drawn(
            random.Random(f"around {seed}"), on_postgres=layout.on_postgres, servers=layout.servers, can_have=can_have
        )
        return cls(
            seed, layout, of, with_proxies, accidents, with_program=with_program, spark_mode=mode, around=around
        )  # fmt: skip

    def __str__(self) -> str:
        scene = f"spark, mode {self.spark_mode}," if self.scene is Scene.SPARK else self.scene
        return (
            f"seed {self.seed}: {scene} on {self.layout.name}{' by proxies' if self.with_proxies else ''}"
            f"{', with programs' if self.with_program else ''}{f'; {self.around}' if self.around != ALONE else ''}"
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
    """Run it; the history stays in the folder. `under`: a command that runs servers and Spark, see `ServerProcess`.

    Raises AssertionError where servers or clients do not go on.
    """
    chance = random.Random(plan.seed)
    known_deadlocks = len(postgres.deadlocks()) if postgres else 0
    async with open_place(
        plan.layout, folder, postgres, with_proxies=plan.with_proxies, under=under, around=plan.around
    ) as place:
        load = SceneLoad(plan.scene, plan.seed)
        await load.prepare(place.servers[0].endpoint)
        if plan.with_program:
            kinds = KINDS if chance.random() < 0.5 else KINDS[::-1]
            place.program = ClientProcess(load.history, plan.scene, place.endpoints[0], TOPIC, kinds)
        if plan.scene is Scene.SPARK:
            place.spark = SparkProcess(load.history, plan.spark_mode, place.endpoints, TOPIC, folder / "spark", under)
        accidents = Accidents(place, chance, load.history)
        end: Final | None = None
        try:
            await _work(load, place, accidents, plan, chance)
            drained = await drain(load, place, drain_within_s)
            with looking(place.database_url) as conn:
                end = final(conn, TOPIC)
                end.drained = drained
            load.history = with_ids(load.history, end)
        finally:
            if place.spark:
                await place.spark.kill()
            load.history.calls += place.clock_steps
            write_history(folder / "history.jsonl", plan.scene, load.history, end)
            for number, server in enumerate(place.servers):
                (folder / f"server-{number}.log").write_text(server.stderr)
    violations = judge(plan.scene, load.history, end)
    if postgres:
        violations += [Violation("deadlock", line) for line in postgres.deadlocks()[known_deadlocks:]]
    violations += [Violation("error", line) for server in place.servers for line in server.mistakes]
    return RoundResult(accidents.counts + counted(load.history) + Counter(plan.around.counts()), violations)


async def _work(load: SceneLoad, place: Place, accidents: Accidents, plan: Plan, chance: random.Random) -> None:
    working = asyncio.create_task(load.run(*place.endpoints))
    if place.program:
        await place.program.start()
    if place.spark:
        await place.spark.start()
    try:
        for _ in range(plan.accidents):
            await _calls_succeed(load, working, chance.randint(*plan.calls))
            if place.spark and chance.random() < SPARK_WORKS:
                await place.spark.reach(Moment.SUNK)
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


async def drain(load: SceneLoad, place: Place, within_s: float) -> bool:
    """Consume everything, then stop the servers as they should be stopped; whether nothing was left (I14)."""
    working = asyncio.create_task(load.run_consumers(*place.endpoints))
    try:
        drained = await _within(within_s, lambda: _all_done(place.database_url, load.groups))
        for _ in range(QUIET_TRIES if drained and not place.spark else 0):
            load.history.add(Quiet(Outcome.OK, now_ms(), now_ms()))
            await load.send_a_few(*place.endpoints)
            drained = await _within(within_s, lambda: _all_done(place.database_url, load.groups))
        if place.spark:
            await _sink_everything(place.spark, place.database_url, within_s)
    finally:
        load.stop()
        codes = await asyncio.gather(*(server.stop() for server in place.servers))
        await working
    assert codes == [0] * len(codes), f"servers that were stopped ended with {codes}"
    return drained


async def _sink_everything(spark: SparkProcess, database_url: str, within_s: float) -> None:
    """Its laws say what is missing then."""
    with looking(database_url) as conn:
        messages = stored(conn, TOPIC)
    await _within(within_s, lambda: spark.has_ended or spark.messages_in_sink() >= messages)
    await spark.kill()
    spark.look_at_sink()


async def _within(within_s: float, is_so: Callable[[], bool]) -> bool:
    """Whether it comes true in time; it may block."""
    try:
        await eventually(lambda: asyncio.to_thread(is_so), "the end of the drain", within_s=within_s)
    except AssertionError:
        return False
    return True


def _all_done(database_url: str, groups: Collection[str]) -> bool:
    with looking(database_url) as conn:
        return unfinished(conn, TOPIC) == 0 and all_have_begun(conn, TOPIC, groups)


def counted(history: History) -> Counter[str]:
    """Sends that were OK, deliveries that were read, and batches of Spark that its sink has."""
    counts = Counter(
        sends=sum(isinstance(call, Send | HalfSend) and call.outcome is Outcome.OK for call in history.calls),
        deliveries=sum(len(call.deliveries) for call in history.calls if isinstance(call, Receive))
        + sum(len(call.messages) for call in history.calls if isinstance(call, Pull)),
    )
    if batches := sum(isinstance(call, SunkBatch) for call in history.calls):
        counts["spark_batches"] = batches
    return counts
