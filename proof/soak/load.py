"""What a server does all day: every kind of send and of consumer, clients that come and go, polls that wait, refusals.

The clients of the scenes are those of the torture, at a steady rate and without a history: a run of hours keeps nothing
but counts.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import grpc

from popclient import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeResult,
    Message,
    MessageView,
    PopError,
    TransactionResolution,
)
from popclient.aio import Admin, Producer, PushConsumer, QueuePushConsumer, SimpleConsumer
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.transport.convert import set_ms
from proof.history.scenes import Scene
from proof.torture.consumers import GivingUpConsumer, QueueReader
from proof.torture.producers import DelayingProducer, HalfProducer, OrderedProducer
from tests.support import workload as raw
from tests.support.checker import Call, History, Outcome

MESSAGES_PER_S = 30.0  # of each scene
VISITS_PER_S = 2.0
REFUSALS_PER_S = 2.0
IDLE_POLLS = 100
IDLE_CONNECTIONS = 5
IDLE_POLL_MS = 8_000
PUSHED_PER_S = 10.0
FAILS = 0.05  # of the messages that listeners get
PURGE_S = 10.0
NEW_GROUP = 0.1  # of ordered messages: the only one of its message group
PAUSE_AFTER_FAILURE_S = 0.5
TYPES = {Scene.FIFO: "FIFO", Scene.DELAY: "DELAY", Scene.TRANSACTIONS: "TRANSACTION"}
PUSHED, SHARED, IDLE, LOBBY = "pushed", "shared", "idle", "lobby"


class Counts(History):
    """Counts calls by kind and outcome, and forgets them."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def add(self, call: Call) -> None:
        self.counts["calls"] += 1
        if call.outcome is Outcome.UNKNOWN:
            self.counts["unknown"] += 1


class _Steady(raw.Producer):
    """Sends at a steady rate, whatever its batches are."""

    _due_s = 0.0

    async def _send(self, stub: Any, batch: list[pb.Message]) -> None:
        now_s = time.monotonic()
        self._due_s = max(self._due_s, now_s - 1) + len(batch) / MESSAGES_PER_S
        await super()._send(stub, batch)
        await asyncio.sleep(max(0.0, self._due_s - time.monotonic()))


class _SteadyOrdered(_Steady, OrderedProducer):
    """Few message groups that stay, and many of one message."""

    def _message(self) -> pb.Message:
        message = super()._message()
        if self._chance.random() < NEW_GROUP:
            message.system_properties.message_group += f"-{self._count}"
        return message


class _SteadyDelaying(_Steady, DelayingProducer):
    pass


class _SteadyHalf(_Steady, HalfProducer):
    pass


PRODUCERS: dict[Scene, type[raw.Producer]] = {
    Scene.FIFO: _SteadyOrdered,
    Scene.DELAY: _SteadyDelaying,
    Scene.TRANSACTIONS: _SteadyHalf,
}
CONSUMERS: dict[Scene, type[raw.Consumer]] = {Scene.REDRIVE: GivingUpConsumer, Scene.QUEUES: QueueReader}


class SoakLoad:
    """All clients, on one server, until `stop`."""

    def __init__(self, endpoint: str, seed: int) -> None:
        self._endpoint = endpoint
        self._chance = random.Random(f"soak {seed}")
        self.counts: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._scenes = [self._scene(scene, seed) for scene in Scene]
        self._stopping = asyncio.Event()

    def _scene(self, scene: Scene, seed: int) -> raw.Load:
        load = raw.Load(
            f"soak-{scene}", [f"soak-{scene}-group"], producers=1, consumers=2, seed=seed,
            producer=PRODUCERS.get(scene, _Steady), consumer=CONSUMERS.get(scene),
        )  # fmt: skip
        load.history = Counts()
        load.history.counts = self.counts
        return load

    async def prepare(self) -> None:
        """Make topics, and the groups that are not made by their first use."""
        async with Admin(self._endpoint) as admin:
            for scene, load in zip(Scene, self._scenes, strict=True):
                await admin.create_topic(
                    load.topic, queue_count=2, accept_message_types=TYPES.get(scene, "NORMAL")
                )  # fmt: skip
            for topic in (PUSHED, SHARED, IDLE, LOBBY):
                await admin.create_topic(topic, queue_count=2)
            for group in (PUSHED, SHARED):
                await admin.create_group(group, max_attempts=3, retry_intervals=[1])

    def stop(self) -> None:
        self._stopping.set()
        for each in self._scenes:
            each.stop()

    async def run(self) -> None:
        """Work until `stop`. What fails is counted, and tried again."""
        works: Sequence[Callable[[], Awaitable[None]]] = (
            self._push, self._push_queues, self._send_to_listeners, self._answer_checks, self._visit,
            self._break_off, self._ask_wrongly, self._purge,
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            for load in self._scenes:
                tasks.create_task(load.run(self._endpoint))
            for work in works:
                tasks.create_task(self._repeat(work))
            for number in range(IDLE_CONNECTIONS):
                tasks.create_task(self._wait_idly(number))

    async def _repeat(self, work: Callable[[], Awaitable[None]]) -> None:
        while not self._stopping.is_set():
            try:
                await work()
            except (PopError, grpc.RpcError, OSError) as failure:
                self.counts["failures"] += 1
                self.counts[f"failed {work.__name__}: {type(failure).__name__}"] += 1
                await self._sleep(PAUSE_AFTER_FAILURE_S)

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    # ---- Those who stay ----

    async def _push(self) -> None:
        async def listener(_message: MessageView) -> ConsumeResult:
            self.counts["pushed"] += 1
            return ConsumeResult.FAILURE if self._chance.random() < FAILS else ConsumeResult.SUCCESS

        async with PushConsumer(self._endpoint, PUSHED, PUSHED, listener):
            await self._stopping.wait()

    async def _push_queues(self) -> None:
        async def listener(
            _messages: Sequence[MessageView], _context: ConsumeConcurrentlyContext
        ) -> ConsumeConcurrentlyStatus:
            self.counts["pushed"] += 1
            fails = self._chance.random() < FAILS
            return ConsumeConcurrentlyStatus.RECONSUME_LATER if fails else ConsumeConcurrentlyStatus.CONSUME_SUCCESS

        async with QueuePushConsumer(self._endpoint, SHARED, SHARED, listener):
            await self._stopping.wait()

    async def _send_to_listeners(self) -> None:
        due_s = time.monotonic()
        async with Producer(self._endpoint) as producer:
            while not self._stopping.is_set():
                results = await producer.send_many(
                    [Message(topic, b"x" * 500, idempotency_key=f"key-{next(self._numbers)}")
                     for topic in (PUSHED, SHARED, LOBBY)]
                )  # fmt: skip
                results.raise_for_failures()
                due_s = max(due_s + 1 / PUSHED_PER_S, time.monotonic() - 1)
                await self._sleep(due_s - time.monotonic())

    async def _answer_checks(self) -> None:
        """Half messages that nobody decided about are asked for; without a producer to ask they would stay."""

        async def checker(_message: MessageView) -> TransactionResolution:
            self.counts["checks"] += 1
            return self._chance.choice(list(TransactionResolution))

        topics = [load.topic for scene, load in zip(Scene, self._scenes, strict=True) if scene is Scene.TRANSACTIONS]
        async with Producer(self._endpoint, topics, checker=checker):
            await self._stopping.wait()

    async def _wait_idly(self, number: int) -> None:
        """Polls that never get a message, many on a connection."""
        request = wire.ReceiveMessageRequest(
            group=pb.Resource(name="idlers"),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=IDLE)),
            batch_size=1,
            filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        )
        set_ms(request.invisible_duration, 10_000)
        set_ms(request.long_polling_timeout, IDLE_POLL_MS)

        async def poll(stub: Any, who: int) -> None:
            async for _ in stub.ReceiveMessage(request, metadata=raw.named(f"idler-{number}-{who}"), timeout=30):
                pass
            self.counts["idle_polls"] += 1

        async def polls(stub: Any, who: int) -> None:
            await self._sleep(self._chance.random())  # not all at one time
            await self._repeat(lambda: poll(stub, who))

        async with raw.stub_of(self._endpoint) as stub:
            polling = asyncio.gather(*(polls(stub, who) for who in range(IDLE_POLLS // IDLE_CONNECTIONS)))
            await self._stopping.wait()
            polling.cancel()
            with suppress(asyncio.CancelledError):
                await polling

    async def _purge(self) -> None:
        """Remove dead letters, which stay otherwise."""
        await self._sleep(PURGE_S)
        async with Admin(self._endpoint) as admin:
            for group in await admin.list_groups():
                self.counts["dead_letters"] += await admin.purge_dead_letters(group.name)

    # ---- Those who come and go, or ask for what they do not get ----

    async def _visit(self) -> None:
        """A new client of each kind comes, works and leaves."""

        async def listener(message: MessageView) -> ConsumeResult:
            return ConsumeResult.SUCCESS

        self.counts["visits"] += 1
        await self._sleep(1 / VISITS_PER_S)
        async with AsyncExitStack() as clients:
            producer = await clients.enter_async_context(Producer(self._endpoint))
            await producer.send(LOBBY, b"here I am")
            consumer = await clients.enter_async_context(SimpleConsumer(self._endpoint, "visitors", LOBBY))
            await consumer.ack(await consumer.receive(await_duration=1))
            await clients.enter_async_context(PushConsumer(self._endpoint, "guests", LOBBY, listener))

    async def _break_off(self) -> None:
        """A connection that ends in the middle of a handshake, and a poll whose client is gone."""
        await self._sleep(1 / VISITS_PER_S)
        host, _, port = self._endpoint.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM")
        await writer.drain()
        writer.transport.abort()
        async with raw.stub_of(self._endpoint) as stub:
            request = wire.ReceiveMessageRequest(
                group=pb.Resource(name="idlers"),
                message_queue=pb.MessageQueue(topic=pb.Resource(name=IDLE)),
                batch_size=1,
                filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
            )
            set_ms(request.invisible_duration, 10_000)
            set_ms(request.long_polling_timeout, IDLE_POLL_MS)
            with suppress(grpc.aio.AioRpcError):
                async for _ in stub.ReceiveMessage(request, metadata=raw.named("hasty"), timeout=0.2):
                    pass
        self.counts["broken_connections"] += 1

    async def _ask_wrongly(self) -> None:
        await self._sleep(1 / REFUSALS_PER_S)
        async with raw.stub_of(self._endpoint) as stub:
            for request in _wrong_sends():
                await stub.SendMessage(request, metadata=raw.named("wrong"), timeout=raw.CALL_TIMEOUT_S)
                self.counts["refusals"] += 1
            ack = wire.AckMessageRequest(
                group=pb.Resource(name="soak-plain-group"),
                topic=pb.Resource(name=self._scenes[0].topic),
                entries=[wire.AckMessageEntry(message_id="none", receipt_handle="none")],
            )
            await stub.AckMessage(ack, metadata=raw.named("wrong"), timeout=raw.CALL_TIMEOUT_S)
            self.counts["refusals"] += 1


def _wrong_sends() -> Iterator[wire.SendMessageRequest]:
    """Of an illegal name, without messages, and with a filter's worth of properties too much."""
    yield wire.SendMessageRequest()
    system = pb.SystemProperties(message_id="wrong", body_encoding=pb.IDENTITY)
    yield wire.SendMessageRequest(
        messages=[pb.Message(topic=pb.Resource(name="no topic!"), body=b"x", system_properties=system)]
    )
    yield wire.SendMessageRequest(
        messages=[
            pb.Message(
                topic=pb.Resource(name=LOBBY),
                body=b"x",
                user_properties={str(number): "x" * 100 for number in range(500)},
                system_properties=system,
            )
        ]
    )
