"""PopMQ with default options, on SQLite and on Postgres; and popclient, which drives RocketMQ too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from benchmarks.peers.peer import BATCH_SIZE, GROUP, HOLD_S, WAIT_S, Received, Server
from benchmarks.peers.tools import Tools
from benchmarks.postgres import postgres
from benchmarks.servers import Server as Process
from benchmarks.servers import Variant
from popclient import Message, MessageView
from popclient.aio import Producer, SimpleConsumer
from popserver import __version__


class PopConsumer:
    def __init__(self, consumer: SimpleConsumer) -> None:
        self._consumer = consumer

    async def receive(self) -> Received:
        got: list[MessageView] = await self._consumer.receive(BATCH_SIZE, await_duration=WAIT_S)
        return Received([each.body for each in got], got)

    async def ack(self, received: Received) -> None:
        await self._consumer.ack(received.handle)


class PopClient:
    """popclient: a producer, and simple consumers."""

    def __init__(self, endpoint: str, producer: Producer) -> None:
        self._endpoint = endpoint
        self._producer = producer

    async def prepare(self, topic: str) -> None:
        """The first call makes it, see `consumer`."""

    async def send(self, topic: str, body: bytes) -> None:
        await self._producer.send(topic, body)

    async def send_batch(self, topic: str, bodies: Sequence[bytes]) -> None:
        (await self._producer.send_many([Message(topic, body) for body in bodies])).raise_for_failures()

    @asynccontextmanager
    async def consumer(self, topic: str) -> AsyncIterator[PopConsumer]:
        async with SimpleConsumer(self._endpoint, GROUP, topic, invisible_duration=HOLD_S) as consumer:
            yield PopConsumer(consumer)


@asynccontextmanager
async def pop_client(address: str) -> AsyncIterator[PopClient]:
    async with Producer(address) as producer:
        yield PopClient(address, producer)


class PopMQ:
    """The server as pip installs it, on SQLite."""

    name = "PopMQ on SQLite"
    sends = "on the disk"
    acks = "answered, on the disk"
    driven_by = "popclient"
    compiles = False

    def install(self, tools: Tools) -> None:
        self._popmq = tools.python.with_name("popmq")

    @contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        with self.serving(f"sqlite:///{folder / 'popmq.db'}", folder) as server:
            yield Server(server.endpoint, [server.pid], __version__)

    def serving(self, url: str, folder: Path) -> Process:
        return Process(Variant(self.name, url, popmq=self._popmq), None, folder / "popmq.log")

    client = staticmethod(pop_client)


class PopMQOnPostgres(PopMQ):
    """The same, on a new Postgres."""

    name = "PopMQ on Postgres"

    @contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        with postgres(folder, None) as database, self.serving(database.new_database("bench"), folder) as server:
            yield Server(server.endpoint, [server.pid, database.pids()[0]], __version__)
