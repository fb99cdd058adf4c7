"""A server with raw gRPC stubs: real broker, real SQLite file, real gRPC."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from sqlalchemy import select

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from popserver.access.flow import Access, Rules
from popserver.access.users import Users
from popserver.database import migrate, schema
from popserver.database.database import Database
from popserver.engine.clock import ManualClock, SystemClock
from popserver.services.clients import MESSAGING
from popserver.services.server import PopServer, build
from popserver.transport import convert
from popserver.transport.limits import CallLimits
from popserver.transport.listen import PLAINTEXT, Listening
from tests.support.grpc_engine import ENGINE
from tests.support.running_broker import TestedBroker

VERSION = "9.9.9"
CLIENT = "test-client"
TOPIC = pb.Resource(name="flights")
GROUP = pb.Resource(name="counters")
LIMITS = CallLimits(poll_ms_min=0, push_refusal_pause_ms=0, stream_refusal_pause_ms=0)
METHODS = list(MESSAGING.methods)
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class WireServer:
    """One running server and a client's end of it."""

    def __init__(self, broker: TestedBroker, running: PopServer, channel: grpc.aio.Channel, users: Users) -> None:
        self.broker = broker
        self.server = running
        self.channel = channel
        self.users = users
        self.stub = MessagingServiceStub(channel)

    async def call(self, method: str, request: Any, *, client_id: str | None = CLIENT, **options: Any) -> Any:
        """One unary call; `headers` adds to its metadata."""
        metadata = headers(client_id, options.pop("headers", {}))
        return await getattr(self.stub, method)(request, metadata=metadata, **options)

    async def frames(self, method: str, request: Any, *, client_id: str | None = CLIENT, **options: Any) -> list[Any]:
        """All frames of one streamed answer."""
        metadata = headers(client_id, options.pop("headers", {}))
        return [frame async for frame in getattr(self.stub, method)(request, metadata=metadata, **options)]

    async def statuses(self, method: str, request: Any, **options: Any) -> list[pb.Status]:
        """The statuses of an answer, whatever the method's shape; a telemetry stream is left after the first."""
        if method == "Telemetry":
            async with self.telemetry(**options) as stream:
                await stream.write(request)
                return [(await stream.read()).status]
        if METHODS_BY_NAME[method].server_streaming:
            frames = await self.frames(method, request, **options)
            return [frame.status for frame in frames if frame.HasField("status")]
        return [(await self.call(method, request, **options)).status]

    @asynccontextmanager
    async def telemetry(self, client_id: str | None = CLIENT, **options: Any) -> AsyncIterator[Any]:
        stream = self.stub.Telemetry(metadata=headers(client_id, options.pop("headers", {})))
        try:
            yield stream
        finally:
            stream.cancel()

    async def raw(self, method: str, data: bytes, *, client_id: str | None = CLIENT) -> bytes:
        """The first frame answered to any bytes at all."""
        shape = METHODS_BY_NAME[method]
        path, channel = f"/{MESSAGING.full_name}/{method}", cast("Any", self.channel)
        metadata = headers(client_id, {})
        if shape.client_streaming:
            stream = channel.stream_stream(path)(metadata=metadata)
            await stream.write(data)
            answer = await stream.read()
            stream.cancel()
        elif shape.server_streaming:
            answer = await channel.unary_stream(path)(data, metadata=metadata).read()
        else:
            answer = await channel.unary_unary(path)(data, metadata=metadata)
        assert isinstance(answer, bytes)
        return answer

    @asynccontextmanager
    async def small_window(self) -> AsyncIterator[grpc.aio.Channel]:
        """Of a client that takes 4 KiB of an answer before it is read. By default gRPC's library takes up to 4 MiB when
        it finds the connection fast, so that a whole answer can be taken that nobody reads."""
        options = [("grpc.http2.lookahead_bytes", 4_096), ("grpc.http2.bdp_probe", 0), *UNLIMITED]
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}", options=options) as channel:
            yield channel

    async def send(self, *messages: pb.Message) -> wire.SendMessageResponse:
        sent: wire.SendMessageResponse = await self.call("SendMessage", wire.SendMessageRequest(messages=messages))
        return sent

    async def receive(self, **wish: Any) -> list[pb.Message]:
        frames = await self.frames("ReceiveMessage", receive_request(**wish))
        return [frame.message for frame in frames if frame.HasField("message")]

    async def digest(self) -> str:
        """One number for everything stored: equal numbers, nothing changed."""
        await self.broker.settle()
        return await asyncio.to_thread(self._digest)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        with self.broker.engine.database.read() as conn:
            for table in schema.metadata.sorted_tables:
                digest.update(table.name.encode())
                for row in conn.execute(select(table).order_by(*table.primary_key)):
                    digest.update(repr(tuple(row)).encode())
        return digest.hexdigest()


METHODS_BY_NAME = {method.name: method for method in METHODS}


@asynccontextmanager
async def opened(
    folder: Path,
    *,
    auto_create: bool = True,
    limits: CallLimits = LIMITS,
    clock: ManualClock | SystemClock | None = None,
    listening: Listening = PLAINTEXT,
    postgres_url: str = "",
    rules: Rules | None = None,
    admin: tuple[str, str] = ("", ""),
    administered: bool = False,
    **more: Any,
) -> AsyncIterator[WireServer]:
    """A server, open as long as the context: over a file in the folder, or over that Postgres database.

    Where the rules ask for signatures, `admin` (access key, secret) is there from the start.
    `administered`: the administration listens as well. `more` goes to `server.build`.
    """
    if more.setdefault("engine", ENGINE) == "grpcio" and listening.mode == "permissive":
        pytest.skip("gRPC's library cannot have plaintext and TLS on one port")
    database = _postgres(postgres_url) if postgres_url else _file(folder / "popmq.db")
    broker = TestedBroker(database, clock or SystemClock(), auto_create=auto_create)
    broker.engine.writer.start()
    await broker.start()
    access = Access(broker.engine.reader, broker.engine.clock, rules)
    users = Users(broker.engine.writer, broker.engine.reader, access)
    if access.is_on:
        await users.ensure_admin(*admin)
    await access.start()
    running = build(
        broker,
        host="127.0.0.1",
        port=0,
        limits=limits,
        version=VERSION,
        is_administered=administered,
        listening=listening,
        access=access,
        **more,
    )
    await running.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}", options=UNLIMITED) as channel:
        try:
            yield WireServer(broker, running, channel, users)
        finally:
            await running.drain(0)
            await broker.stop()
            database.close()


def _postgres(url: str) -> Database:
    database = Database(url, durability="relaxed")
    migrate.upgrade(database)
    return database


def _file(path: Path) -> Database:
    path.write_bytes(empty_store())
    return Database(f"sqlite:///{path}")


@functools.cache
def empty_store() -> bytes:
    """A database file with every table, made once: most of a test's time would go there."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "popmq.db"
        database = Database(f"sqlite:///{file}")
        migrate.upgrade(database)
        database.close()
        return file.read_bytes()


def headers(client_id: str | None, more: dict[str, str]) -> tuple[tuple[str, str], ...]:
    named = {} if client_id is None else {"x-mq-client-id": client_id}
    return tuple((named | more).items())


def a_message(
    message_id: str = "m1", *, topic: pb.Resource = TOPIC, body: bytes = b"body", **system: Any
) -> pb.Message:
    """A legal message, but for what the arguments say."""
    properties = system.pop("user_properties", {})
    fields: dict[str, Any] = {"message_id": message_id, "body_encoding": pb.IDENTITY} | system
    return pb.Message(
        topic=topic, body=body, user_properties=properties, system_properties=pb.SystemProperties(**fields)
    )


def receive_request(
    *,
    group: pb.Resource = GROUP,
    topic: pb.Resource = TOPIC,
    batch_size: int = 32,
    invisible_ms: int = 30_000,
    poll_ms: int | None = 0,
    push: bool = False,
    expression: pb.FilterExpression | None = None,
) -> wire.ReceiveMessageRequest:
    """A legal receive, but for what the arguments say."""
    request = wire.ReceiveMessageRequest(
        group=group,
        message_queue=pb.MessageQueue(topic=topic),
        batch_size=batch_size,
        filter_expression=expression or pb.FilterExpression(type=pb.TAG, expression="*"),
        auto_renew=push,
    )
    if not push:
        convert.set_ms(request.invisible_duration, invisible_ms)
    if poll_ms is not None:
        convert.set_ms(request.long_polling_timeout, poll_ms)
    return request


def handle_of(message: pb.Message) -> str:
    return message.system_properties.receipt_handle


async def parked(wire_server: WireServer, polls: int = 1) -> None:
    """Return when so many polls wait."""
    while wire_server.broker.engine.wakeups.parked != polls:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def advance(wire_server: WireServer, by_ms: int) -> None:
    """Moves the manual clock of a server, and waits for what that leads to."""
    clock = wire_server.broker.engine.clock
    assert isinstance(clock, ManualClock)
    await clock.advance(by_ms, wire_server.broker.settle)
