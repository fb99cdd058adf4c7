"""Queue push consumers on a scripted server, by a clock that tests move."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc

from popclient import (
    ConsumeConcurrentlyStatus,
    Consumption,
    Interceptor,
    MessageQueue,
    MessageView,
    OffsetStore,
    ReadOffsetType,
    aio,
)
from popclient._engine.runner import TaskRunner
from popclient._queue_push.core import QueuePushCore
from popclient._queue_push.pull_loop import PullLoop
from popproto.v2 import service_pb2 as rpc
from popproto.v2 import service_pb2_grpc
from tests.queue_client.manual_clock import ManualClock
from tests.support.group_server import GroupServer
from tests.support.scripted_server import until

Q = MessageQueue("t", 0)


class QueueConsumers:
    """Makes consumers, closes them at the end, and keeps what their listeners were given."""

    def __init__(self, server: GroupServer) -> None:
        self.server = server
        self.clock = ManualClock()
        self.pull_loop = PullLoop(self.clock)
        self.seen: list[MessageView] = []
        self.calls: list[list[str]] = []
        self._cores: list[QueuePushCore] = []
        self._channel = grpc.aio.insecure_channel(server.endpoints)
        self._ping = service_pb2_grpc.MessagingServiceStub(self._channel).Heartbeat

    @property
    def texts(self) -> list[str]:
        return [view.text for view in self.seen]

    async def succeed(self, messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        """A listener that is content with everything."""
        self.note(messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    def note(self, messages: Any) -> None:
        self.seen += messages
        self.calls.append([message.text for message in messages])

    def make(self, listener: Any = None, topics: Any = "t", **options: Any) -> QueuePushCore:
        pull_loop = options.pop("pull_loop", self.pull_loop)
        options.setdefault("consume_from", "CONSUME_FROM_FIRST_OFFSET")
        group = options.pop("group", "g")
        face = aio.QueuePushConsumer(self.server.endpoints, group, topics, listener or self.succeed, **options)
        made = face._core.options
        core = QueuePushCore(face._config, made, TaskRunner, pull_loop)
        self._cores.append(core)
        return core

    async def start(self, listener: Any = None, topics: Any = "t", **options: Any) -> QueuePushCore:
        core = self.make(listener, topics, **options)
        await core.start()
        return core

    async def close(self) -> None:
        for core in self._cores:
            await core.close()
        await self._channel.close()

    async def owns(self, core: QueuePushCore, *queues: int, topic: str = "t") -> None:
        """Waits until these are the queues that it has."""
        wanted = [MessageQueue(topic, queue) for queue in queues]
        await until(lambda: sorted(mq for mq, _ in core.parts.owned() if mq.topic == topic) == wanted)

    async def advance(self, seconds: float, *, step: float) -> None:
        """In steps, each followed by what it leads to at the server."""
        target = self.clock.now() + seconds
        while self.clock.now() < target:
            await self.clock.advance(min(step, target - self.clock.now()))
            await self.breathe()

    async def wait(self, seconds: float) -> None:
        """Long times: the server answers what it holds every 15 s, as ever."""
        while seconds > 0:
            await self.advance(min(seconds, 15), step=5)
            await self.server.release()
            await self.breathe()
            seconds -= 15

    async def comes(self, fact: Callable[[], Any], within: float, *, step: float = 0.25) -> None:
        """The fact holds within so many seconds of the clock; a tenth more, as real answers travel by real time."""
        limit = self.clock.now() + within * 1.1 + step
        while not fact():
            assert self.clock.now() < limit, f"it did not come true within {within:g} s"
            await self.clock.advance(step)
            await self.breathe()

    async def breathe(self) -> None:
        """Real time, for real calls: as long as three of our own take, however busy the machine."""
        for _ in range(3):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self._ping(rpc.HeartbeatRequest())
        await asyncio.sleep(0.002)

    def offset(self, core: QueuePushCore, mq: MessageQueue = Q) -> int | None:
        """Its progress as it remembers it."""
        return core.parts.offset_store.clone_offset_table().get(mq)


class DictOffsetStore(OffsetStore):
    """A store of a user's own: a dictionary that outlives its consumer."""

    def __init__(self, stored: dict[MessageQueue, int]) -> None:
        self.stored = stored
        self.memory: dict[MessageQueue, int] = {}

    async def load(self) -> None:
        self.memory = {}

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        if not increase_only or offset > self.memory.get(mq, -1):
            self.memory[mq] = offset

    async def read_offset(self, mq: MessageQueue, read_type: ReadOffsetType) -> int:
        return self.stored.get(mq, -1)

    async def persist_all(self, mqs: Any) -> None:
        for mq in mqs:
            await self.persist(mq)

    async def persist(self, mq: MessageQueue) -> None:
        if mq in self.memory:
            self.stored[mq] = self.memory[mq]

    def remove_offset(self, mq: MessageQueue) -> None:
        self.memory.pop(mq, None)

    def clone_offset_table(self, topic: str | None = None) -> dict[MessageQueue, int]:
        return dict(self.memory)

    async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int, is_oneway: bool = True) -> None:
        self.stored[mq] = offset


def sent_back(consumers: QueueConsumers) -> list[tuple[int, int]]:
    """Offset and delay level of what was handed back."""
    return [(request.offset, request.delay_level) for request in consumers.server.sent_back]


class Watching(Interceptor):
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.ends: list[Consumption] = []

    def before_receive(self, topic: str, /) -> None:
        self.heard.append(f"before_receive {topic}")

    def after_receive(self, topic: str, messages: Any, error: Any, /) -> None:
        self.heard.append(f"after_receive {topic} {len(messages)}")

    def before_consume(self, messages: Any, /) -> None:
        self.heard.append(f"before_consume {messages[0].text}")

    def after_consume(self, messages: Any, consumption: Consumption, /) -> None:
        self.heard.append(f"after_consume {messages[0].text}")
        self.ends.append(consumption)
