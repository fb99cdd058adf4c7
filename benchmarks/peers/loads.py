"""The workloads: the same for every peer, each bounded in messages and in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from typing import Any

from benchmarks.meter import quantiles_ms
from benchmarks.peers.peer import BATCH_SIZE, Client, Consumer

FILLERS = 16
# The first messages make connections, and find caches cold.
FIRST = 3
FIRST_WITHIN_S = LAST_WITHIN_S = 60
# The consumers' first receives, and the messages that they leave, are twice 256.
STOCK_MIN = 1_024


class Window:
    """Counts from the end of the warm-up until `count` messages are done, or `seconds` have passed."""

    def __init__(self, cpu_s: Callable[[], float], warm_up: float, seconds: float, count: int) -> None:
        self._cpu_s = cpu_s
        self._warm_up = warm_up
        self._seconds = seconds
        self._count = count
        self._open()

    @property
    def running(self) -> bool:
        # On a machine so busy that nothing was done yet, there would be no rate.
        until = self._until + (0 if self._messages else FIRST_WITHIN_S)
        return self._messages < self._count and time.perf_counter() < until

    def done(self, messages: int, begun: float) -> None:
        """A call that began at `begun` (perf_counter) had this many messages."""
        self._ended = time.perf_counter()
        self._messages += messages
        self._taken_s.append(self._ended - begun)

    async def measure(self, workers: Iterable[Coroutine[Any, Any, None]]) -> dict[str, float]:
        """Let the workers work until they end. Raises what a worker raises."""
        self._open()
        self._until = self._opened + self._warm_up + self._seconds
        warming = asyncio.get_running_loop().call_later(self._warm_up, self._open)
        await asyncio.gather(*workers)
        warming.cancel()
        if not self._messages:
            raise RuntimeError("no message was done in the measured time; give it more --seconds")
        return {
            "rate": self._messages / (self._ended - self._opened),
            "us": (self._cpu_s() - self._cpu_before) * 1e6 / self._messages,
            **quantiles_ms(self._taken_s),
        }

    def _open(self) -> None:
        self._messages, self._taken_s = 0, list[float]()
        self._cpu_before, self._opened = self._cpu_s(), time.perf_counter()
        self._ended = self._opened


async def send(client: Client, window: Window, topic: str, body: bytes, callers: int, batch: int) -> dict[str, float]:
    """Closed loop of sends by so many callers, with `batch` messages in each."""

    async def caller() -> None:
        while window.running:
            begun = time.perf_counter()
            if batch == 1:
                await client.send(topic, body)
            else:
                await client.send_batch(topic, [body] * batch)
            window.done(batch, begun)

    return await window.measure(caller() for _ in range(callers))


async def fill(client: Client, topic: str, body: bytes, count: int, seconds: float) -> int:
    """Send up to `count` messages in this time, and some in any case. Returns how many."""
    sent, until = 0, time.perf_counter() + seconds

    async def filler() -> None:
        nonlocal sent
        while sent < count and (sent < STOCK_MIN or time.perf_counter() < until):
            sent += BATCH_SIZE
            await client.send_batch(topic, [body] * BATCH_SIZE)

    await asyncio.gather(*(filler() for _ in range(FILLERS)))
    return sent


async def receive(client: Client, window: Window, topic: str, stock: int, consumers: int) -> dict[str, float]:
    """Closed loop of a receive of up to 32 messages and the ack of all, by each consumer.

    It ends before the last messages, so that no consumer waits for what another one holds.
    """
    left = stock - BATCH_SIZE * consumers

    async def once(consumer: Consumer) -> int:
        nonlocal left
        received = await consumer.receive()
        if received.bodies:
            left -= len(received.bodies)
            await consumer.ack(received)
        return len(received.bodies)

    async def consume(consumer: Consumer) -> None:
        while window.running and left > 0:
            begun = time.perf_counter()
            if count := await once(consumer):
                window.done(count, begun)

    async with AsyncExitStack() as running:
        opened = [await running.enter_async_context(client.consumer(topic)) for _ in range(consumers)]
        # What is stored may be used up within a warm-up in seconds.
        await asyncio.gather(*(once(each) for each in opened))
        return await window.measure(consume(each) for each in opened)


async def latency(client: Client, topic: str, body_bytes: int, rate: int, seconds: float) -> dict[str, float]:
    """From the call of a send until a consumer that waits has the message, at a rate that keeps no one busy."""
    taken_s: list[float] = []
    count, begun = FIRST + round(rate * seconds), time.perf_counter()

    async def consume(consumer: Consumer) -> None:
        while len(taken_s) < count:
            received = await consumer.receive()
            taken_s.extend(time.perf_counter() - float(body) for body in received.bodies)
            if received.bodies:
                await consumer.ack(received)

    async with client.consumer(topic) as consumer:
        consuming = asyncio.create_task(consume(consumer))
        for number in range(count):
            await asyncio.sleep(begun + number / rate - time.perf_counter())
            await client.send(topic, f"{time.perf_counter():<{body_bytes}}".encode())
        await asyncio.wait_for(consuming, LAST_WITHIN_S)
    return quantiles_ms(taken_s[FIRST:])
