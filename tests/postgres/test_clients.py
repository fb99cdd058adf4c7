"""What users write with popclient goes through a failover of Postgres: every kind of consumer, and its producer.

`make test-failover` runs it with every accident.
"""

from __future__ import annotations

import asyncio
import itertools
from abc import abstractmethod
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest

from popclient import ConsumeResult, Message, MessageView, PopError, aio
from tests.postgres.patroni import PatroniCluster, patroni_cluster
from tests.postgres.patroni_failures import EVERY_ACCIDENT, Accident, killed_postgres, repaired
from tests.support.server_process import served
from tests.support.waiting import eventually

NAMES = ("ada", "bob", "eve")  # of message groups, and of lite topics
HOLD_S = 6.0
AHEAD_S = 1.5  # a message that was received ahead has been held for about so long
BEFORE_AND_AFTER = 5  # messages that are settled between two accidents
RESUMED_S = 60.0


@pytest.mark.timeout(240)
async def test_a_killed_primary() -> None:
    async with patroni_cluster(nodes=2) as cluster:
        await _survive(cluster, [killed_postgres], come_back=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_every_accident() -> None:
    async with patroni_cluster() as cluster:
        await _survive(cluster, EVERY_ACCIDENT, come_back=True)


async def _survive(cluster: PatroniCluster, accidents: Sequence[Accident], *, come_back: bool) -> None:
    async with (
        served(cluster.libpq_url, "--min-invisible", "0s") as one,
        served(cluster.url, "--min-invisible", "0s") as other,
        _working(f"{one.endpoint};{other.endpoint}") as programs,
    ):
        await _more(programs)
        for accident in accidents:
            leader = await asyncio.to_thread(cluster.leader)
            timeline = leader.timeline()
            await accident(cluster, leader)
            await cluster.new_leader(leader, timeline)
            await _more(programs)
            if come_back:
                await repaired(cluster, leader)
        for program in programs:
            program.ends = True
            await _true(program, program.is_finished, "all received")


async def _more(programs: Sequence[Program]) -> None:
    for program, known in [(each, each.settled) for each in programs]:
        wanted = known + BEFORE_AND_AFTER
        await _true(program, lambda program=program, wanted=wanted: program.settled >= wanted, "messages settled")


async def _true(program: Program, is_so: Callable[[], bool], what: str) -> None:
    async def holds() -> bool:
        for task in program.tasks:
            if task.done():
                task.result()
        assert not program.faults, program.faults
        return is_so()

    await eventually(holds, f"{type(program).__name__}: {what}", within_s=RESUMED_S)


@asynccontextmanager
async def _working(endpoints: str) -> AsyncIterator[Sequence[Program]]:
    async with aio.Admin(endpoints) as admin:
        await admin.create_topic("sessions", accept_message_types=["LITE"])
        await admin.create_group("agents", lite="SHARED")
    programs = [OneByOne(endpoints), InGroups(endpoints), OnLiteTopics(endpoints), OfQueues(endpoints)]
    async with AsyncExitStack() as stack:
        for program in programs:
            await stack.enter_async_context(program.working())
        yield programs
    for program in programs:
        assert not program.faults, program.faults


class Program:
    """A producer of one topic, and consumers of one group. `faults` has what must not happen."""

    topic: str

    def __init__(self, endpoints: str) -> None:
        self.endpoints = endpoints
        self.sent: set[str] = set()
        self.received: set[str] = set()
        self.settled = 0
        self.faults: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.ends = False

    def is_finished(self) -> bool:
        return self.tasks[0].done() and self.sent <= self.received

    @abstractmethod
    def message(self, number: int) -> Message:
        """What the producer sends."""

    @abstractmethod
    async def consuming(self, stack: AsyncExitStack) -> None:
        """Start the consumers, which the stack closes."""

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(aio.Producer(self.endpoints))
            self.tasks.append(asyncio.create_task(self._produce(producer)))
            await self.consuming(stack)
            try:
                yield
            finally:
                self.ends = True
                for task in self.tasks:
                    task.cancel()
                await asyncio.gather(*self.tasks, return_exceptions=True)

    async def _produce(self, producer: aio.Producer) -> None:
        """One message after the other; each is repeated with its id until it is stored."""
        for number in itertools.count():
            message = replace(self.message(number), message_id=f"{self.topic}-{number}")
            await tried(lambda message=message: producer.send(message))
            self.sent.add(message.message_id)
            if self.ends:
                return
            await asyncio.sleep(0.05)


async def tried(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat it as long as repeating may help: another refusal is a fault, of the program or of the server."""
    while True:
        try:
            await call()
        except PopError as error:
            if not error.retryable:
                raise
        else:
            return


class OneByOne(Program):
    """Simple consumers: a hold is exclusive, and what is acked does not come again."""

    topic = "flights"

    def __init__(self, endpoints: str) -> None:
        super().__init__(endpoints)
        self._acked: set[str] = set()
        self._held_until: dict[str, float] = {}

    def message(self, number: int) -> Message:
        return Message(self.topic, str(number))

    async def consuming(self, stack: AsyncExitStack) -> None:
        for _ in range(2):
            consumer = await stack.enter_async_context(aio.SimpleConsumer(self.endpoints, "desk", self.topic))
            self.tasks.append(asyncio.create_task(self._consume(consumer)))

    async def _consume(self, consumer: aio.SimpleConsumer) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            asked = clock()
            try:
                messages = await consumer.receive(invisible_duration=HOLD_S, await_duration=1)
            except PopError as error:
                if not error.retryable:
                    raise
                continue
            for message in messages:
                self._judge(message, clock(), asked)
            for message in messages:
                # If the answer is an error, the ack may have taken effect. If it has not, the message comes again.
                with suppress(PopError):
                    await consumer.ack(message)
                    self._acked.add(message.message_id)
                    self.settled += 1

    def _judge(self, message: MessageView, received: float, asked: float) -> None:
        name = message.message_id
        if name in self._acked:
            self.faults.append(f"{name} came again after its ack")
        if received < self._held_until.get(name, 0.0):
            self.faults.append(f"{name} came while it was held")
        self.received.add(name)
        self._held_until[name] = asked - AHEAD_S + HOLD_S


class InGroups(Program):
    """Push consumers: messages of a group come in their order, one at a time, and only the last one may come again."""

    topic = "orders"

    def __init__(self, endpoints: str) -> None:
        super().__init__(endpoints)
        self._last: dict[str, int] = dict.fromkeys(NAMES, -1)
        self._busy: set[str] = set()

    def message(self, number: int) -> Message:
        return Message(self.topic, str(number // len(NAMES)), message_group=NAMES[number % len(NAMES)])

    async def consuming(self, stack: AsyncExitStack) -> None:
        for _ in range(2):
            await stack.enter_async_context(aio.PushConsumer(self.endpoints, "billing", self.topic, self.listener))

    async def listener(self, message: MessageView) -> ConsumeResult:
        name, number = message.message_group or message.lite_topic or "", int(message.text)
        if name in self._busy:
            self.faults.append(f"{name}: {number} came while another one is at work")
        if number not in {self._last[name], self._last[name] + 1}:
            self.faults.append(f"{name}: {number} came after {self._last[name]}")
        self._busy.add(name)
        await asyncio.sleep(0.01)
        self._busy.remove(name)
        self._last[name] = number
        self.received.add(message.message_id)
        self.settled += 1
        return ConsumeResult.SUCCESS


class OnLiteTopics(InGroups):
    """The same for lite topics."""

    topic = "sessions"

    def message(self, number: int) -> Message:
        return Message(self.topic, str(number // len(NAMES)), lite_topic=NAMES[number % len(NAMES)])

    async def consuming(self, stack: AsyncExitStack) -> None:
        for _ in range(2):
            await stack.enter_async_context(
                aio.LitePushConsumer(self.endpoints, "agents", self.topic, self.listener, NAMES)
            )


class OfQueues(Program):
    """Pull consumers that share queues: a queue comes in its order, and nothing before a committed offset."""

    topic = "reports"

    def __init__(self, endpoints: str) -> None:
        super().__init__(endpoints)
        self._committed: defaultdict[int, int] = defaultdict(int)

    def message(self, number: int) -> Message:
        return Message(self.topic, str(number))

    async def consuming(self, stack: AsyncExitStack) -> None:
        consumers = [
            await stack.enter_async_context(
                aio.PullConsumer(self.endpoints, "audit", consume_from="CONSUME_FROM_FIRST_OFFSET")
            )
            for _ in range(2)
        ]
        for consumer in consumers:
            await tried(lambda consumer=consumer: consumer.subscribe(self.topic))

        async def are_apart() -> bool:
            one, other = ({mq.queue_id for mq in consumer.assignment} for consumer in consumers)
            return bool(one and other) and not one & other

        # A queue that moves while a commit is under way may begin before that commit.
        await eventually(are_apart, "two shares of the queues", within_s=RESUMED_S)
        self.tasks += [asyncio.create_task(self._consume(consumer)) for consumer in consumers]

    async def _consume(self, consumer: aio.PullConsumer) -> None:
        while True:
            messages = await consumer.poll(timeout=1)
            for message in messages:
                if message.queue_offset < self._committed[message.queue_id]:
                    self.faults.append(f"{message.message_id} came again after it was committed")
                self.received.add(message.message_id)
            known = {message.queue_id: message.queue_offset + 1 for message in messages}
            with suppress(PopError):
                await consumer.commit()
                for queue_id, offset in known.items():
                    self._committed[queue_id] = max(self._committed[queue_id], offset)
                self.settled += len(messages)
