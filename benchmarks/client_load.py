"""Load through popclient.aio, as a program that uses the library."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.groups import BATCH_SIZE, Groups
from benchmarks.meter import Meter, quantiles_ms
from benchmarks.raw_load import INVISIBLE_S
from popclient import Message
from popclient.aio import Producer, SimpleConsumer


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

    async def wake(self, topic: str, count: int, pause_s: float) -> dict[str, float]:
        """How long from a send until a waiting receive has the message; each send finds the receive parked."""
        taken_s: list[float] = []
        delivered = asyncio.Event()
        consumer = SimpleConsumer(self._endpoint, topic, topic, invisible_duration=INVISIBLE_S)
        async with Producer(self._endpoint, [topic]) as producer, consumer:

            async def receive() -> None:
                while True:
                    for each in await consumer.receive(BATCH_SIZE):
                        taken_s.append(time.perf_counter() - float(each.body))
                        delivered.set()
                        await consumer.ack(each)

            receiving = asyncio.create_task(receive())
            for _ in range(count):
                # Long enough for the receive to wait at the server, and for TCP's delayed acknowledgements.
                await asyncio.sleep(pause_s)
                delivered.clear()
                await producer.send(topic, repr(time.perf_counter()).encode())
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
