"""One round: clients work on a new database while accidents happen, then all is consumed, and the history is judged."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from popserver.transport.listen import Engine
from proof.history.events import HalfSend, Pull, QueueBatch, Quiet, SunkBatch, TakenOver
from proof.history.lines import write_history
from proof.history.scenes import Scene, judge
from proof.surroundings import ALONE, Surroundings
from proof.torture.accidents import Accidents, kill_client
from proof.torture.client_processes import GROUP, KINDS, LITE, PUSH, SIMPLE, TOGETHER, ClientProcess, with_ids
from proof.torture.loads import QUEUES, TOPIC, SceneLoad
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
# How often each scene is chosen, against once.
SHARES = {Scene.PLAIN: 3}
ENGINES: tuple[Engine, ...] = ("builtin", "builtin", "builtin", "grpcio")
CLIENT_SHARES = (0.5, 0.5, 0.8)
# How many accidents meet a Spark at work; the others may come while it starts.
SPARK_WORKS = 0.5
SPARK_ACCIDENTS_MAX = 10  # a start of Spark takes as long as ten other accidents
DRAIN_TIMEOUT_S = 120.0
TAKEN_OVER_AFTER = 1.5  # of that time, because a member that vanished with its server keeps its queues for 120 s
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
    programs: tuple[str, ...] = ()  # kinds of programs beside the load, one after the other
    client_share: float = 0.5  # of the accidents, in which a program is killed, if there are programs
    engine: Engine = "builtin"  # of the servers
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
        kinds: Collection[str] | None = None,
        can_have: frozenset[str] = frozenset(),
    ) -> Plan:
        """`scenes`: those to choose from, if none is named. `kinds`: of programs, those that there are; None: all.
        `can_have`: parts of surroundings."""
        chance = random.Random(f"plan {seed}")
        any_layout = chance.choice(list(LAYOUTS.values()))
        (any_scene,) = chance.choices(scenes, [SHARES.get(each, 1) for each in scenes])
        layout = LAYOUTS[database] if database else any_layout
        of = Scene(scene) if scene else any_scene
        with_proxies = chance.random() < 0.5
        programs = _programs(chance, [each for each in KINDS.get(of, ()) if kinds is None or each in kinds])
        mode, engine, client_share = chance.choice(SPARK_MODES), chance.choice(ENGINES), chance.choice(CLIENT_SHARES)
        if of is Scene.SPARK:
            accidents = min(accidents, SPARK_ACCIDENTS_MAX)
        around = Surroundings.drawn(
            random.Random(f"around {seed}"), on_postgres=layout.on_postgres, servers=layout.servers, can_have=can_have
        )
        return cls(
            seed, layout, of, with_proxies, accidents, programs=programs, client_share=client_share, engine=engine,
            spark_mode=mode, around=around,
        )  # fmt: skip

    @property
    def at_once(self) -> int:
        """How many programs work at the same time."""
        return 0 if not self.programs else 2 if TOGETHER.issuperset(self.programs) else 1

    def __str__(self) -> str:
        scene = f"spark, mode {self.spark_mode}," if self.scene is Scene.SPARK else self.scene
        return (
            f"seed {self.seed}: {scene} on {self.layout.name}{' by proxies' if self.with_proxies else ''}"
            f"{' by grpcio' if self.engine == 'grpcio' else ''}"
            f"{', with programs ' + ' and '.join(self.programs) if self.programs else ''}"
            f"{f'; {self.around}' if self.around != ALONE else ''}"
        )


def _programs(chance: random.Random, kinds: Sequence[str]) -> tuple[str, ...]:
    """None in one of three rounds. Kinds of one family, which may share a group, take turns."""
    if not kinds or chance.random() < 1 / 3:
        return ()
    kind = chance.choice(kinds)
    family = next((each for each in (SIMPLE, PUSH, LITE) if kind in each), ())
    others = [each for each in family if each in kinds and each != kind]
    return (kind, *chance.sample(others, min(1, len(others))))


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
    more = ("--grpc-engine", "grpcio") if plan.engine == "grpcio" else ()
    async with open_place(
        plan.layout, folder, postgres, with_proxies=plan.with_proxies, under=under, more=more, around=plan.around
    ) as place:
        load = SceneLoad(plan.scene, plan.seed)
        await load.prepare(place.servers[0].endpoint)
        place.programs = [
            ClientProcess(
                load.history, plan.scene, place.endpoints[number % len(place.endpoints)], TOPIC, plan.programs,
                folder / "programs", number=number, under=under,
            )
            for number in range(plan.at_once)
        ]  # fmt: skip
        if plan.scene is Scene.SPARK:
            place.spark = SparkProcess(load.history, plan.spark_mode, place.endpoints, TOPIC, folder / "spark", under)
        accidents = Accidents(place, chance, load.history)
        end: Final | None = None
        try:
            await _work(load, place, accidents, plan, chance, drain_within_s)
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
    counts = accidents.counts + counted(load.history) + Counter(plan.around.counts())
    if plan.engine == "grpcio":
        counts["rounds_on_grpcio"] = 1
    return RoundResult(counts, violations)


async def _work(
    load: SceneLoad, place: Place, accidents: Accidents, plan: Plan, chance: random.Random, drain_within_s: float
) -> None:
    working = asyncio.create_task(load.run(*place.endpoints))
    kills = (
        chance.sample(range(plan.accidents), math.ceil(plan.accidents * plan.client_share)) if place.programs else ()
    )
    if place.spark:
        await place.spark.start()
    try:
        for program in place.programs:
            await program.start()
        for number in range(plan.accidents):
            await _calls_succeed(load, working, chance.randint(*plan.calls))
            if place.spark and chance.random() < SPARK_WORKS:
                await place.spark.reach(Moment.SUNK)
            await accidents.happen(kill_client if number in kills else None)
        if "member" in plan.programs:
            load.history.add(await taken_over(load.history, drain_within_s * TAKEN_OVER_AFTER))
    finally:
        load.stop()
        for program in place.programs:
            await program.kill()
        await working


async def taken_over(history: History, within_s: float) -> TakenOver:
    """Wait until listeners of members have worked on each queue once more."""
    began_ms = now_ms()

    def missing() -> set[int]:
        later = (call for call in history.calls if isinstance(call, QueueBatch) and call.invoked_ms > began_ms)
        return set(range(QUEUES)) - {call.queue for call in later if call.outcome is Outcome.OK}

    is_done = await _within(within_s, lambda: not missing())
    return TakenOver(Outcome.OK if is_done else Outcome.REFUSED, began_ms, now_ms(), GROUP, tuple(sorted(missing())))


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
        + sum(len(call.messages) for call in history.calls if isinstance(call, Pull | QueueBatch)),
    )
    if batches := sum(isinstance(call, SunkBatch) for call in history.calls):
        counts["spark_batches"] = batches
    return counts
