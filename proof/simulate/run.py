"""One run: a seed says who does what, when time passes and what fails; in the end all is consumed and judged."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

from popserver.model.errors import StoreUnavailable
from popserver.model.group import NewGroup
from popserver.model.names import Resource
from popserver.model.retry import RetryPolicy
from popserver.model.topic import MessageType, NewTopic
from proof.history.events import Quiet
from proof.history.scenes import Scene, judge
from proof.simulate.batches import RangeReader
from proof.simulate.clients import DELAYS_MS, TOPIC, Consumer, Diary, Producer
from proof.simulate.halves import HalfProducer
from proof.simulate.machine import (
    CLIENT_DIES,
    CLOCK_STEP,
    CUT_OFF,
    FAULTS,
    FULL_DISK,
    RESTART,
    Faults,
    Machine,
    SimulatedClock,
    SimulatedLoop,
    in_one_thread,
)
from proof.simulate.pushers import PushConsumer
from proof.simulate.queues import QueueReader
from proof.simulate.redriver import GivingUpConsumer, Redriver
from proof.simulate.servers import Line, Server
from proof.simulate.stores import Store, in_memory
from proof.surroundings import DATABASE, SLOW_DISK, Surroundings
from proof.totals import FAULT
from tests.support.checker import Final, Outcome, Violation
from tests.support.final_state import final, unfinished
from tests.support.hostile_settings import HOSTILE

SCENES = (Scene.PLAIN, Scene.FIFO, Scene.DELAY, Scene.TRANSACTIONS, Scene.QUEUES, Scene.REDRIVE)
QUEUES = 2  # as many as each group has consumers, because a queue has one reader
GROUPS = ("billing", "shipping")
# With few attempts messages become dead letters. An ack in a message group before its turn is not final (protocol 5.3),
# so there a message that was acked could become one too.
MAX_ATTEMPTS = dict.fromkeys(SCENES, 4) | {Scene.FIFO: 1_000}
INTERVALS_MS = (2_000, 10_000)  # after which a push consumer's failed message comes again
STEPS = 300  # of one run; many short runs meet more than a long one
CHECK_EVERY = 100  # steps between two looks at the whole store
PASSES_MS = (1, 400, 1_000, 5_000, 40_000, 600_000)
BEAT_MS = 10_000  # between two heartbeats of a push consumer
FULL_MS_MAX = 5_000  # that pass at once while the disk is full, because a server tries again each second
BESIDE_MS_MAX = 20_000  # that pass at once with several servers, because each writes a heartbeat each second
CUTS_MS = (500, 3_000, 20_000)  # for how long a server hears nothing of the others
CLOCK_STEPS_MS = (-90_000, -1_000, 20_000, 90_000)
DRAINS_MAX = 200
LAST_POLL_MS = 6_000
LAST_SENDS = 2  # calls of each producer in the end: a half message, and its commit
TURNS = 300  # of the event loop that a step is given; a poll that waits goes on beside the next steps


class Plan(NamedTuple):
    """What a run is. `without`: numbers of steps that are left out, `faultless` of those without their fault."""

    seed: int
    steps: int = STEPS
    without: frozenset[int] = frozenset()
    faultless: frozenset[int] = frozenset()

    @property
    def scene(self) -> Scene:
        return random.Random(f"scene {self.seed}").choice(SCENES)

    @property
    def servers(self) -> int:
        """How many use one Postgres."""
        return random.Random(f"servers {self.seed}").choice((1, 2))

    def servers_on(self, store: Store) -> int:
        return self.servers if store.database.is_shared else 1

    def around_on(self, store: Store) -> Surroundings:
        """Steps of the clock are faults of the run; there is no network with a pooler."""
        servers, is_shared = self.servers_on(store), store.database.is_shared
        drawn = Surroundings.drawn(
            random.Random(f"around {self.seed}"),
            on_postgres=is_shared,
            servers=servers,
            can_have=frozenset({SLOW_DISK}),
        )
        settings = tuple(each for each in drawn.settings if each[0] not in _WITH_OBJECTS)
        apart = drawn.apart if servers > 1 else ()
        return drawn._replace(settings=settings, way=DATABASE, apart=apart, sets_clock=False, clock_ms=0)


@dataclass
class Result:
    """What a run counted and found. Equal seeds have equal marks."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    mark: str = ""
    faulty: tuple[int, ...] = ()  # the steps with a fault


class Unsound(Exception):
    """The store breaks an invariant of its own, which `popmq db check` would tell."""


def simulate(plan: Plan, store: Store | None = None) -> Result:
    """Run it on the store, which is emptied first; without one in memory."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        try:
            return runner.run(_run(plan, store or in_memory()))
        except Exception as error:  # noqa: BLE001
            return Result(violations=[Violation("error", "".join(traceback.format_exception(error)))])


async def _run(plan: Plan, store: Store) -> Result:
    around = plan.around_on(store)
    store.surround(dict(around.settings))
    store.empty()
    clock = SimulatedClock()
    faults = Faults(Line(clock, random.Random(f"late {plan.seed}")), around.flush_ms)
    with _in_zone(around.zone), in_one_thread(faults, random.Random(f"holds {plan.seed}")):
        machine = Machine(store, clock, faults, plan.servers_on(store), around.apart)
        await machine.start()
        try:
            result = await Simulation(plan, machine).run()
        finally:
            machine.stop()
    result.counts.update(around.counts())
    return result


@contextmanager
def _in_zone(name: str) -> Iterator[None]:
    """This process is in the time zone; "" changes nothing."""
    with patch.dict(os.environ, {"TZ": name} if name else {}):
        time.tzset()
        yield
    time.tzset()


class Simulation:
    """The clients and the servers of one run."""

    def __init__(self, plan: Plan, machine: Machine) -> None:
        self._plan = plan
        self._machine = machine
        self._diary = Diary(machine)
        self._result = Result()
        self._producers: list[Producer | HalfProducer] = [self._producer(number) for number in range(QUEUES)]
        self._consumers = [each for group in GROUPS for each in self._consumers_of(group)]
        self._operators = [Redriver(self._diary, group) for group in GROUPS if plan.scene is Scene.REDRIVE]
        self._clients = [*self._producers, *self._consumers, *self._operators]
        homes = random.Random(f"homes {plan.seed}")
        # The server that a client keeps to while that runs; None if it calls one or the other.
        self._homes: dict[object, int | None] = {each: homes.choice((0, 1, None)) for each in self._clients}
        self._calls: list[asyncio.Task[None]] = []

    async def run(self) -> Result:
        asyncio.get_running_loop().set_exception_handler(self._not_handled)
        await self._machine.here.task(self._prepare())
        try:
            for number in range(self._plan.steps):
                if number not in self._plan.without:
                    await self._step(number)
            await self._drain()
            found = judge(self._plan.scene, self._diary.history, await self._look())
            if not found:  # what is new may wake what sleeps
                await self._wait_for_new()
                found = judge(self._plan.scene, self._diary.history, await self._look())
        except Unsound as error:
            found = [Violation("I13", str(error))]
        return self._close([*found, *(Violation("error", each) for each in self._machine.faults.unforeseen)])

    def _not_handled(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._machine.faults.unforeseen.append(f"{context['message']}: {context.get('exception')!r}")

    def _producer(self, number: int) -> Producer | HalfProducer:
        scene = self._plan.scene
        if scene is Scene.TRANSACTIONS:
            return HalfProducer(self._diary, number)
        return Producer(self._diary, scene, number)

    def _consumers_of(self, group: str) -> Sequence[Consumer | QueueReader | RangeReader]:
        """In some scenes the second group has clients of another kind."""
        scene, diary, is_second = self._plan.scene, self._diary, group == GROUPS[1]
        if scene is Scene.QUEUES and is_second:
            return [RangeReader(diary, group, QUEUES)]
        if scene is Scene.QUEUES:
            return [QueueReader(diary, group, number) for number in range(QUEUES)]
        if scene is Scene.REDRIVE:
            return [GivingUpConsumer(diary, group, number) for number in range(QUEUES)]
        if scene is Scene.PLAIN and is_second:
            return [PushConsumer(diary, group, number, self._policy) for number in range(QUEUES)]
        return [Consumer(diary, group, number) for number in range(QUEUES)]

    @property
    def _policy(self) -> RetryPolicy:
        return RetryPolicy(MAX_ATTEMPTS[self._plan.scene], INTERVALS_MS)

    async def _prepare(self) -> None:
        catalog = self._machine.broker.catalog
        await catalog.create_topic(NewTopic(TOPIC, QUEUES, (_TYPES.get(self._plan.scene, MessageType.NORMAL),)))
        for group in GROUPS:
            await catalog.create_group(NewGroup(Resource("", group), self._policy))
            if self._plan.scene is not Scene.QUEUES:
                await catalog.subscription(Resource("", group), TOPIC, None)

    async def _step(self, number: int) -> None:
        """Some clients act at the same moment, or time passes; perhaps something fails."""
        chance, beside = random.Random(self._plan.seed << 32 | number), random.Random(f"{self._plan.seed} {number}")
        machine = self._machine
        self._let_fail(number, chance)
        if machine.count > 1:
            await self._meet_others(number, beside)
        self._result.counts["steps"] += 1
        what = chance.random()
        if what < 0.2:
            await self._pass(chance.choice(PASSES_MS))
        elif what < 0.21:
            await self._kill(beside.choice([machine.servers, machine.servers[:1], machine.servers[-1:]]), beside)
        else:
            for each in chance.sample(self._clients, chance.choice((1, 1, 2, 4))):
                self._begin(each.act(random.Random(chance.getrandbits(64))), self._server_of(each, beside))
            await self._let_die(number)
            await self._turn()
        if machine.dead:
            await self._kill(machine.dead, beside)
        if number % CHECK_EVERY == CHECK_EVERY - 1:
            await self._look()

    def _let_fail(self, number: int, chance: random.Random) -> None:
        machine = self._machine
        fails = chance.random() < 0.04
        fault, step_ms = chance.choice(FAULTS), chance.choice(CLOCK_STEPS_MS)
        if machine.store.is_full and chance.random() < 0.05:
            machine.store.free()
        if not fails or number in self._plan.faultless:
            return
        if fault == FULL_DISK:
            machine.store.fill()
            machine.faults.happened[FULL_DISK] += 1
        elif fault == CLOCK_STEP:
            machine.set_clock(step_ms)
            machine.faults.happened[CLOCK_STEP] += 1
        else:
            machine.faults.next = fault
        self._result.faulty = (*self._result.faulty, number)

    async def _let_die(self, number: int) -> None:
        """A client dies during its call, and its server lives on. It comes back and knows no answer."""
        chance = random.Random(f"dies {self._plan.seed} {number}")
        if chance.random() >= 0.05 or number in self._plan.faultless:
            return
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        if self._calls:
            chance.choice(self._calls).cancel()
            self._machine.faults.happened[CLIENT_DIES] += 1
            self._result.faulty = (*self._result.faulty, number)

    async def _meet_others(self, number: int, chance: random.Random) -> None:
        """A server that was killed comes back, or one hears nothing of the others for a while."""
        machine = self._machine
        if chance.random() < 0.1:
            await machine.start()
        server, for_ms = chance.choice(machine.servers), chance.choice(CUTS_MS)
        if chance.random() < 0.04 and number not in self._plan.faultless:
            machine.faults.line.feeds[server].cut(for_ms)
            machine.faults.happened[CUT_OFF] += 1
            self._result.faulty = (*self._result.faulty, number)

    async def _pass(self, by_ms: int) -> None:
        """Time passes; meanwhile who lives shows it."""
        machine = self._machine
        pushers = [each for each in self._consumers if isinstance(each, PushConsumer)]
        left_ms = min(by_ms, FULL_MS_MAX if machine.store.is_full else by_ms)
        left_ms = min(left_ms, BESIDE_MS_MAX if machine.count > 1 else left_ms)
        while left_ms > 0 and len(machine.dead) < len(machine.servers):
            piece_ms = min(left_ms, BEAT_MS) if pushers else left_ms
            await machine.advance(piece_ms)
            left_ms -= piece_ms
            for each in pushers:
                each.beat()

    def _server_of(self, client: object, chance: random.Random) -> Server:
        """The server that the client calls now."""
        running, home = self._machine.servers, self._homes[client]
        return next((each for each in running if each.number == home), chance.choice(running))

    def _begin(self, call: Coroutine[Any, Any, None], server: Server) -> None:
        task = server.task(call)
        self._calls.append(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._calls.remove(task)
        if not task.cancelled() and (error := task.exception()):
            self._machine.faults.unforeseen.append("".join(traceback.format_exception(error)))

    async def _turn(self) -> None:
        """Until the calls are answered, or wait for messages."""
        before = -1
        for _ in range(TURNS):
            parked = sum(each.broker.parked for each in self._machine.servers)
            if not self._calls or self._machine.dead or len(self._calls) == parked == before:
                break
            before = parked
            await asyncio.sleep(0)

    async def _kill(self, servers: Sequence[Server], chance: random.Random) -> None:
        """They come back at once, or later if another one goes on meanwhile."""
        self._machine.faults.happened[RESTART] += 1
        for each in tuple(servers):
            await self._machine.kill(each, tuple(self._calls))
        if not self._machine.servers or chance.random() < 0.5:
            await self._machine.start()

    async def _drain(self) -> None:
        """Without faults every message is consumed, whatever happened before. In half of the runs no server starts
        again first: that could wake what sleeps."""
        machine = self._machine
        chance = random.Random(f"drain {self._plan.seed}")
        machine.faults.next = ""
        machine.store.free()
        for each in tuple(machine.servers if chance.random() < 0.5 else machine.dead):
            await machine.kill(each, tuple(self._calls))
        await machine.start()
        await machine.advance(2 * max(DELAYS_MS))
        await self._consume()

    async def _consume(self) -> None:
        machine, chance = self._machine, random.Random(f"drain {self._plan.seed}")
        for _ in range(DRAINS_MAX):
            for consumer in self._consumers:
                await self._server_of(consumer, chance).task(_consume_all(consumer))
            read = machine.broker.engine.reader.read(lambda conn: unfinished(conn, TOPIC.name))
            if not await machine.here.task(read):
                return
            await machine.advance(30_000)

    async def _wait_for_new(self) -> None:
        """Everything was consumed. Now consumers poll, and then producers send; nothing fails."""
        machine, chance = self._machine, random.Random(f"new {self._plan.seed}")
        now = self._diary.now()
        self._diary.history.add(Quiet(Outcome.OK, now, now))
        polls = [each for each in self._consumers if not isinstance(each, RangeReader)]
        for each in polls:
            self._begin(self._poll_on(each, machine.clock.now_ms() + LAST_POLL_MS), self._server_of(each, chance))
        await self._turn()
        for producer in self._producers:
            for _ in range(LAST_SENDS):
                self._begin(producer.act(random.Random(chance.getrandbits(64))), self._server_of(producer, chance))
                await self._turn()
        await machine.advance(LAST_POLL_MS)
        await self._turn()
        await self._consume()

    async def _poll_on(self, consumer: Consumer | QueueReader, until_ms: int) -> None:
        while (left_ms := until_ms - self._machine.clock.now_ms()) > 0:
            await consumer.receive(32, 30_000, left_ms)
            await consumer.ack_all()

    async def _look(self) -> Final:
        """What the store holds now. Raises `Unsound`."""
        self._machine.faults.next = ""
        self._machine.store.free()
        attempts = MAX_ATTEMPTS[self._plan.scene]
        try:
            read = self._machine.broker.engine.reader.read(lambda conn: final(conn, TOPIC.name, max_attempts=attempts))
            end = await self._machine.here.task(read)
        except StoreUnavailable as error:
            raise Unsound(error.sentence) from error
        end.drained = not any(row.state not in _ENDS for row in end.states)
        return end

    def _close(self, found: Collection[Violation]) -> Result:
        result, history = self._result, self._diary.history
        result.violations = list(found)
        happened = self._machine.faults.happened
        result.counts["faults"] += happened.total()
        result.counts.update({f"{FAULT}{kind}": count for kind, count in happened.items()})
        result.counts["simulated ms"] += self._machine.clock.now_ms() - self._diary.start_ms
        result.counts["deliveries"] += sum(len(getattr(call, "deliveries", ())) for call in history.calls)
        result.mark = hashlib.sha256(repr(history.calls).encode()).hexdigest()
        return result


async def _consume_all(consumer: Consumer | QueueReader | RangeReader) -> None:
    while await consumer.receive(32, 30_000):
        await consumer.ack_all()
    await consumer.ack_all()


_ENDS = {"COMMIT", "DLQ"}
# Settings of Postgres whose worst values name objects that the simulation's database does not have.
_WITH_OBJECTS = {"role"} | {name for name, value in HOSTILE.items() if value.startswith("hostile_")}
_TYPES = {
    Scene.FIFO: MessageType.FIFO,
    Scene.DELAY: MessageType.DELAY,
    Scene.TRANSACTIONS: MessageType.TRANSACTION,
}
