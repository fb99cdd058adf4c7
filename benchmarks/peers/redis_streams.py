"""Redis streams, with the append-only file on the disk before each answer."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import BATCH_SIZE, GROUP, WAIT_S, Received, Server
from benchmarks.peers.processes import free_port, libraries, process
from benchmarks.peers.tools import Tools

_names = (f"consumer-{number}" for number in itertools.count())


class RedisConsumer:
    def __init__(self, connection: Any, topic: str) -> None:
        self._redis = connection
        self._topic = topic
        self._name = next(_names)

    async def receive(self) -> Received:
        wanted = {self._topic: ">"}
        found = await self._redis.xreadgroup(GROUP, self._name, wanted, count=BATCH_SIZE, block=WAIT_S * 1_000)
        entries = found[0][1] if found else []
        return Received([fields[b"body"] for _, fields in entries], [entry for entry, _ in entries])

    async def ack(self, received: Received) -> None:
        await self._redis.xack(self._topic, GROUP, *received.handle)


class RedisClient:
    """redis-py; concurrent calls have a connection each."""

    def __init__(self, address: str, connections: Any) -> None:
        self._address = address
        self._redis = connections

    async def prepare(self, topic: str) -> None:
        await self._redis.xgroup_create(topic, GROUP, id="0", mkstream=True)

    async def send(self, topic: str, body: bytes) -> None:
        await self._redis.xadd(topic, {"body": body})

    async def send_batch(self, topic: str, bodies: Sequence[bytes]) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for body in bodies:
                pipeline.xadd(topic, {"body": body})
            await pipeline.execute()

    @asynccontextmanager
    async def consumer(self, topic: str) -> AsyncIterator[RedisConsumer]:
        async with _connected(self._address) as connection:
            yield RedisConsumer(connection, topic)


def _connected(address: str) -> Any:
    from redis.asyncio import Redis

    # Version 2 of its protocol is the one whose answers are lists.
    return Redis.from_url(f"redis://{address}", protocol=2)


class RedisStreams:
    name = "Redis streams"
    sends = "on the disk (appendfsync always)"
    acks = "answered, on the disk"
    driven_by = "redis"
    compiles = False

    def install(self, tools: Tools) -> None:
        self._root = tools.debian("redis-server", "usr/bin/redis-server")
        self._program = self._root / "usr/bin/redis-server"

    @contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        port, found = free_port(), libraries(self._root)
        options = {"bind": "127.0.0.1", "port": port, "dir": folder, "appendonly": "yes", "appendfsync": "always"}
        command = [self._program, *(part for name, value in options.items() for part in (f"--{name}", value))]
        told = subprocess.run(
            [self._program, "--version"], env=os.environ | found, check=True, capture_output=True, text=True
        )
        version = next(word[2:] for word in told.stdout.split() if word.startswith("v="))
        with process(command, folder, port, found) as pid:
            yield Server(f"127.0.0.1:{port}", [pid], version)

    @asynccontextmanager
    async def client(self, address: str) -> AsyncIterator[RedisClient]:
        async with _connected(address) as connections:
            yield RedisClient(address, connections)
