"""Two producers with many callers each: every flight is one `send`, and concurrent sends share requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from examples.flights.data import TOPIC, Row, as_message
from popclient.aio import Producer

PRODUCERS = 2
CALLERS = 128


class Sending(threading.Thread):
    """Sends all flights in a separate thread. `stored` counts the messages that the server has confirmed."""

    def __init__(self, endpoints: str, rows: Iterator[Row]) -> None:
        super().__init__(name="sending", daemon=True)
        self.stored = 0
        self.failure: BaseException | None = None
        self._endpoints = endpoints
        self._rows = rows

    def run(self) -> None:
        try:
            asyncio.run(self._send_all())
        except BaseException as failure:  # noqa: BLE001 -- the main thread shows it
            self.failure = failure

    async def _send_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(PRODUCERS):
                group.create_task(self._produce(self._rows))

    async def _produce(self, rows: Iterator[Row]) -> None:
        async with Producer(self._endpoints, TOPIC) as producer, asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(self._call(producer, rows))

    async def _call(self, producer: Producer, rows: Iterator[Row]) -> None:
        for row in rows:
            await producer.send(as_message(row))
            self.stored += 1
