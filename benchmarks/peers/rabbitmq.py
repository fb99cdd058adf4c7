"""A RabbitMQ quorum queue, of one node, with publisher confirms."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.peers.peer import BATCH_SIZE, WAIT_S, Received, Server
from benchmarks.peers.processes import free_port, libraries, process
from benchmarks.peers.tools import Tools

NODE = "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"
# The next messages travel while the consumer works on these.
PREFETCH = 4 * BATCH_SIZE


class RabbitConsumer:
    """The server pushes; what came meanwhile is one receive."""

    def __init__(self, came: asyncio.Queue[Any]) -> None:
        self._came = came

    async def receive(self) -> Received:
        try:
            got = [await asyncio.wait_for(self._came.get(), WAIT_S)]
        except TimeoutError:
            return Received([], None)
        while len(got) < BATCH_SIZE and not self._came.empty():
            got.append(self._came.get_nowait())
        return Received([each.body for each in got], got[-1])

    async def ack(self, received: Received) -> None:
        await received.handle.ack(multiple=True)


class RabbitClient:
    """aio-pika: one channel for sends, consumers with a connection each."""

    def __init__(self, address: str, channel: Any) -> None:
        self._address = address
        self._channel = channel

    async def prepare(self, topic: str) -> None:
        await self._channel.declare_queue(topic, durable=True, arguments={"x-queue-type": "quorum"})

    async def send(self, topic: str, body: bytes) -> None:
        from aio_pika import DeliveryMode, Message

        message = Message(body, delivery_mode=DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(message, routing_key=topic)

    async def send_batch(self, topic: str, bodies: Sequence[bytes]) -> None:
        await asyncio.gather(*(self.send(topic, body) for body in bodies))

    @asynccontextmanager
    async def consumer(self, topic: str) -> AsyncIterator[RabbitConsumer]:
        async with _channel(self._address) as channel:
            await channel.set_qos(prefetch_count=PREFETCH)
            came: asyncio.Queue[Any] = asyncio.Queue()
            await (await channel.get_queue(topic)).consume(came.put)
            yield RabbitConsumer(came)


@asynccontextmanager
async def _channel(address: str) -> AsyncIterator[Any]:
    import aio_pika

    async with await aio_pika.connect(f"amqp://guest:guest@{address}/") as connection:
        yield await connection.channel(publisher_confirms=True)


class RabbitMQ:
    name = "RabbitMQ quorum queue"
    sends = "on the disk (log of the quorum queue)"
    acks = "not answered, on the disk soon"
    driven_by = "aio-pika"
    compiles = False

    def install(self, tools: Tools) -> None:
        self._root = tools.debian("rabbitmq-server", NODE)
        erlang = self._root / "usr/lib/erlang"
        start = erlang / "bin/erl"
        if self._root != Path("/") and start.exists():
            # The script has the folder that the package is installed in.
            start.write_text(start.read_text().replace("ROOTDIR=/usr/lib/erlang\n", f"ROOTDIR={erlang.absolute()}\n"))
        self._erlang = (erlang if start.exists() else Path("/usr/lib/erlang")) / "bin"

    @contextmanager
    def running(self, folder: Path) -> Iterator[Server]:
        port, names_port = free_port(), free_port()
        node = next(self._root.glob(NODE))
        environment = libraries(self._root) | _environment(folder, port, names_port, self._erlang.absolute())
        names = [self._erlang / "epmd", "-port", str(names_port), "-address", "127.0.0.1"]
        with process(names, folder, names_port) as names_pid, process([node], folder, port, environment) as pid:
            version = node.parents[1].name.rpartition("-")[2]
            yield Server(f"127.0.0.1:{port}", [pid, names_pid], version)

    @asynccontextmanager
    async def client(self, address: str) -> AsyncIterator[RabbitClient]:
        async with _channel(address) as channel:
            yield RabbitClient(address, channel)


def _environment(folder: Path, port: int, names_port: int, erlang: Path) -> dict[str, str]:
    files = ("MNESIA_BASE", "LOG_BASE", "GENERATED_CONFIG_DIR", "SCHEMA_DIR")
    absent = ("CONFIG_FILE", "ADVANCED_CONFIG_FILE", "CONF_ENV_FILE", "ENABLED_PLUGINS_FILE")
    return {
        "PATH": f"{erlang}:{os.environ['PATH']}",
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(names_port),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        **{f"RABBITMQ_{name}": str(folder / name.lower()) for name in (*files, *absent)},
    }
