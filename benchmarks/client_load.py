"""Load through popclient.aio, as a program that uses the library."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack, nullcontext
from datetime import UTC, datetime
from typing import Any
from unittest import mock

from benchmarks.groups import BATCH_SIZE, Groups
from benchmarks.machine import cpu_seconds
from benchmarks.meter import Meter, quantiles_ms
from benchmarks.raw_load import INVISIBLE_S
from popclient import ConsumeResult, Message, MessageView
from popclient._engine.receive import RECEIVE_BATCH
from popclient._session import convert
from popclient.aio import Producer, PushConsumer, SimpleConsumer


class ClientLoad:
    """The popclient cases; every method takes the case's options and returns its figures."""

    def __init__(self, endpoint: str, server_pid: int) -> None:
        self._endpoint = endpoint
        self._server_pid = server_pid

    async def send(
        self, topic: str, together: bool, callers: int, body_bytes: int, warm_up: float, seconds: float
    ) -> dict[str, Any]:
        """Closed loop of single `send` calls of one producer.

        Without `together` there is one request per message, as with a server that does not offer batches.
        """
        meter, body = Meter(), bytes(body_bytes)
        async with Producer(self._endpoint, [topic]) as producer:
            if not together:
                producer._core.session.capabilities = frozenset()

            async def caller() -> None:
                while meter.running:
                    begun = time.perf_counter()
                    await producer.send(topic, body, tag="bench", keys="key")
                    meter.done(1, begun)

            workers = [caller() for _ in range(callers)]
            return await meter.measure(workers, warm_up=warm_up, seconds=seconds, server_pid=self._server_pid)

    async def receive(
        self,
        topic: str,
        group: str,
        stock: int,
        groups: int,
        ack_each: bool,
        callers: int,
        warm_up: float,
        seconds: float,
    ) -> dict[str, Any]:
        """Closed loop of `receive(32)` and one `ack` of all, or an `ack` of each, all at once."""
        async with AsyncExitStack() as consumers:

            async def meet(name: str) -> SimpleConsumer:
                consumer = await consumers.enter_async_context(
                    SimpleConsumer(self._endpoint, name, topic, invisible_duration=INVISIBLE_S)
                )
                await consumer.ack(await consumer.receive(1))
                return consumer

            meter, fresh = Meter(), Groups(group, stock, meet)
            await fresh.prepare(groups)

            async def caller() -> None:
                while meter.running:
                    begun, consumer = time.perf_counter(), await fresh.to_receive()
                    received = await consumer.receive(BATCH_SIZE)
                    if ack_each:
                        await asyncio.gather(*(consumer.ack(each) for each in received))
                    else:
                        await consumer.ack(received)
                    meter.done(len(received), begun)

            workers = [caller() for _ in range(callers)]
            return await meter.measure(workers, warm_up=warm_up, seconds=seconds, server_pid=self._server_pid)

    async def consume(
        self, topic: str, group: str, stock: int, consumers: int, pushes: bool, by_frames: bool
    ) -> dict[str, Any]:
        """Consumers of one group, each with its own connection, work a topic off, from the first message to the last.

        Simple consumers: `receive(32)` and one `ack` of all. Push consumers: a listener that does nothing.
        `by_frames`: as with a server that answers a receive with a frame per message.
        """
        count = _Count(stock, self._server_pid)
        capabilities = convert.capabilities
        older = mock.patch.object(convert, "capabilities", lambda settings: capabilities(settings) - {RECEIVE_BATCH})
        with older if by_frames else nullcontext():
            async with AsyncExitStack() as running:
                if pushes:
                    made = [PushConsumer(self._endpoint, group, topic, count.listen) for _ in range(consumers)]
                    for each in made:
                        await running.enter_async_context(each)
                    return await count.figures()
                simple = [
                    await running.enter_async_context(
                        SimpleConsumer(self._endpoint, group, topic, invisible_duration=INVISIBLE_S)
                    )
                    for _ in range(consumers)
                ]
                working = [asyncio.create_task(count.work_off(each)) for each in simple]
                figures = await count.figures()
                await asyncio.gather(*working)
                return figures

    async def wake(self, topic: str, count: int, pause_s: float, delay_s: float = 0.0) -> dict[str, float]:
        """How long from a send until a waiting receive has the message; each send finds the receive parked.

        With `delay_s`, delayed messages are sent, and the time counts from when they are due.
        """
        taken_s: list[float] = []
        delivered = asyncio.Event()
        consumer = SimpleConsumer(self._endpoint, topic, topic, invisible_duration=INVISIBLE_S)
        async with Producer(self._endpoint, [topic]) as producer, consumer:

            async def receive() -> None:
                while True:
                    for each in await consumer.receive(BATCH_SIZE):
                        taken_s.append(time.time() - float(each.body))
                        delivered.set()
                        await consumer.ack(each)

            receiving = asyncio.create_task(receive())
            for _ in range(count):
                # Long enough for the receive to wait at the server, and for TCP's delayed acknowledgements.
                await asyncio.sleep(pause_s)
                delivered.clear()
                # In whole milliseconds, as delivery times are.
                from_s = int((time.time() + delay_s) * 1_000) / 1_000 if delay_s else time.time()
                due = datetime.fromtimestamp(from_s, UTC) if delay_s else None
                await producer.send(topic, repr(from_s).encode(), delivery_timestamp=due)
                await asyncio.wait_for(delivered.wait(), 30)
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
        # The first calls create the topic, the group and the connections.
        return quantiles_ms(taken_s[min(3, count // 2) :])

    async def stock(self, topic: str, count: int, body_bytes: int) -> None:
        """Send `count` messages for other loads."""
        async with Producer(self._endpoint, [topic]) as producer:
            for _ in range(0, count, 128):
                batch = [Message(topic, bytes(body_bytes)) for _ in range(128)]
                (await producer.send_many(batch)).raise_for_failures()


class _Count:
    """Counts messages up to `count`, and the CPU time of both sides meanwhile."""

    def __init__(self, count: int, server_pid: int) -> None:
        self._count = count
        self._server_pid = server_pid
        self._left = count
        self._over = asyncio.Event()
        self._begun: tuple[float, float, float] | None = None

    async def listen(self, _message: MessageView) -> ConsumeResult:
        self._done(1)
        return ConsumeResult.SUCCESS

    async def work_off(self, consumer: SimpleConsumer) -> None:
        while not self._over.is_set():
            received = await consumer.receive(BATCH_SIZE, await_duration=1)
            await consumer.ack(received)
            self._done(len(received))

    async def figures(self) -> dict[str, Any]:
        """Of the time between the first messages and the last ones."""
        await self._over.wait()
        assert self._begun is not None
        server_s, load_s, taken = (now - before for now, before in zip(self._now(), self._begun, strict=True))
        return {
            "rate": self._count / taken,
            "server_busy": server_s / taken,
            "load_busy": load_s / taken,
            "server_us_per_message": server_s * 1e6 / self._count,
        }

    def _done(self, messages: int) -> None:
        if self._begun is None and messages:
            self._begun = self._now()
        self._left -= messages
        if self._left <= 0:
            self._over.set()

    def _now(self) -> tuple[float, float, float]:
        return cpu_seconds(self._server_pid), cpu_seconds(os.getpid()), time.perf_counter()
