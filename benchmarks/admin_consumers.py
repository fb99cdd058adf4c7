"""Consumers that are connected while the administration is measured: they say what they subscribe to, and answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import TracebackType
from typing import Any, NamedTuple

import grpc

from benchmarks.raw_load import HEADERS
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub

READY_TIMEOUT_S = 300.0
HEARTBEAT_S = 8.0  # less than half of the time after which a silent client is gone
PER_CONNECTION = 10
PROBE_S = 0.001  # between two of the small calls that show how long the server's event loop stops


class Consumer(NamedTuple):
    """A consumer: what it says when it connects. `lite_topics`: of its one topic, for a lite consumer."""

    client_id: str
    group: pb.Resource
    kind: pb.ClientType.ValueType
    topics: Sequence[pb.Resource]
    filter: pb.FilterExpression
    lite_topics: Sequence[str] = ()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("x-mq-client-id", self.client_id), *HEADERS[1:])

    @property
    def settings(self) -> wire.TelemetryCommand:
        entries = [pb.SubscriptionEntry(topic=each, expression=self.filter) for each in self.topics]
        agent = pb.UA(language=pb.JAVA, version="5.2.0", hostname=f"host-{self.client_id}")
        subscription = pb.Subscription(group=self.group, subscriptions=entries)
        return wire.TelemetryCommand(
            settings=pb.Settings(client_type=self.kind, subscription=subscription, user_agent=agent)
        )


class Consumers:
    """The consumers, on an event loop in a thread, connected from the begin of the block to its end."""

    def __init__(self, endpoint: str, consumers: Sequence[Consumer]) -> None:
        self._endpoint = endpoint
        self._consumers = consumers
        self._probing = threading.Event()
        self._waits: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._channels: list[grpc.aio.Channel] = []

    @contextmanager
    def probing(self) -> Iterator[list[float]]:
        """The waits of small calls that are made meanwhile, in ms; complete when the block has ended."""
        waits: list[float] = []
        self._waits = waits
        self._probing.set()
        try:
            yield waits
        finally:
            self._probing.clear()

    def __enter__(self) -> Consumers:
        asyncio.run_coroutine_threadsafe(self._connect(), _loop()).result(READY_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), _loop()).result(READY_TIMEOUT_S)

    async def _connect(self) -> None:
        own = (("grpc.use_local_subchannel_pool", 1),)
        count = -(-len(self._consumers) // PER_CONNECTION) + 1
        self._channels = [grpc.aio.insecure_channel(self._endpoint, options=own) for _ in range(count)]
        for number, each in enumerate(self._consumers):
            stub = MessagingServiceStub(self._channels[number // PER_CONNECTION])
            stream: Any = stub.Telemetry(metadata=each.metadata)
            await stream.write(each.settings)
            told = await stream.read()
            assert told.status.code == pb.OK, told.status
            self._tasks.append(asyncio.create_task(_answer(stream)))
            await _subscribe(stub, each)
            self._tasks.append(asyncio.create_task(_stay(stub, each)))
        self._tasks.append(asyncio.create_task(self._probe(MessagingServiceStub(self._channels[-1]))))

    async def _close(self) -> None:
        ended = [task for task in self._tasks if task.done()]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(channel.close() for channel in self._channels))
        assert not ended, f"{len(ended)} of the consumers lost their connection"

    async def _probe(self, stub: MessagingServiceStub) -> None:
        """A heartbeat of a producer: the server answers it on its event loop without the store."""
        request = wire.HeartbeatRequest(client_type=pb.PRODUCER)
        while True:
            await asyncio.sleep(PROBE_S)
            if self._probing.is_set():
                waits, begun = self._waits, time.perf_counter()
                await stub.Heartbeat(request, metadata=HEADERS)  # type: ignore[misc]
                waits.append((time.perf_counter() - begun) * 1_000)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """One for all, never closed: gRPC's streams finish after their channel is closed."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop


async def _subscribe(stub: MessagingServiceStub, consumer: Consumer) -> None:
    if consumer.lite_topics:
        request = wire.SyncLiteSubscriptionRequest(
            action=pb.COMPLETE_ADD,
            topic=consumer.topics[0],
            group=consumer.group,
            lite_topic_set=consumer.lite_topics,
        )
        answer: Any = await stub.SyncLiteSubscription(request, metadata=consumer.metadata)  # type: ignore[misc]
        assert answer.status.code == pb.OK, answer.status


async def _stay(stub: MessagingServiceStub, consumer: Consumer) -> None:
    request = wire.HeartbeatRequest(group=consumer.group, client_type=consumer.kind)
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        await stub.Heartbeat(request, metadata=consumer.metadata)  # type: ignore[misc]


async def _answer(stream: Any) -> None:
    """Answer what operators ask: for the stacks of threads, and to try a message."""
    while isinstance(asked := await stream.read(), wire.TelemetryCommand):
        done = pb.Status(code=pb.OK)
        if asked.HasField("print_thread_stack_trace_command"):
            trace = wire.ThreadStackTrace(nonce=asked.print_thread_stack_trace_command.nonce, thread_stack_trace="at")
            await stream.write(wire.TelemetryCommand(status=done, thread_stack_trace=trace))
        elif asked.HasField("verify_message_command"):
            tried = wire.VerifyMessageResult(nonce=asked.verify_message_command.nonce)
            await stream.write(wire.TelemetryCommand(status=done, verify_message_result=tried))
