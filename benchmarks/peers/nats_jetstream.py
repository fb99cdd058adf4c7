"""NATS JetStream: file storage, on the disk before each answer."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import BATCH_SIZE, GROUP, WAIT_S, Received, Server
from benchmarks.peers.processes import free_port, process
from benchmarks.peers.tools import Tools

MODULE = "github.com/nats-io/nats-server/v2@v2.15.2"
CONFIG = """\
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}", sync_interval: always }}
"""


class NatsConsumer:
    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    async def receive(self) -> Received:
        try:
            got = await self._subscription.fetch(BATCH_SIZE, timeout=WAIT_S)
        except TimeoutError:  # nats-py derives its own from it
            got = []
        return Received([each.data for each in got], got)

    async def ack(self, received: Received) -> None:
        for each in received.handle:
            await each.ack()


class NatsClient:
    """nats-py: one connection for sends, pull consumers with one each."""

    def __init__(self, address: str, connection: Any) -> None:
        self._address = address
        self._stream = connection.jetstream()

    async def prepare(self, topic: str) -> None:
        await self._stream.add_stream(name=topic, subjects=[topic])
        await self._stream.add_consumer(topic, durable_name=GROUP, ack_policy="explicit")

    async def send(self, topic: str, body: bytes) -> None:
        await self._stream.publish(topic, body)

    async def send_batch(self, topic: str, bodies: Sequence[bytes]) -> None:
        # It confirms each message, but need not be waited for in between.
        for confirmed in [await self._stream.publish_async(topic, body) for body in bodies]:
            await confirmed

    @asynccontextmanager
    async def consumer(self, topic: str) -> AsyncIterator[NatsConsumer]:
        async with _connected(self._address) as connection:
            yield NatsConsumer(await connection.jetstream().pull_subscribe_bind(GROUP, stream=topic))


@asynccontextmanager
async def _connected(address: str) -> AsyncIterator[Any]:
    import nats

    connection = await nats.connect(f"nats://{address}")
    try:
        yield connection
    finally:
        await connection.close()


class NatsJetStream:
    name = "NATS JetStream"
    sends = "on the disk (sync_interval always)"
    acks = "not answered, on the disk later"
    driven_by = "nats-py"
    compiles = False

    def install(self, tools: Tools) -> None:
        self._program = tools.go(MODULE)

    @contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        port = free_port()
        config = folder / "nats.conf"
        config.write_text(CONFIG.format(port=port, folder=folder))
        told = subprocess.run([self._program, "--version"], check=True, capture_output=True, text=True)
        with process([self._program, "--config", config], folder, port) as pid:
            yield Server(f"127.0.0.1:{port}", [pid], told.stdout.split()[-1].lstrip("v"))

    @asynccontextmanager
    async def client(self, address: str) -> AsyncIterator[NatsClient]:
        async with _connected(address) as connection:
            yield NatsClient(address, connection)
