"""Attacks: what a hostile or broken client can do to a server, with limits of count, time and the attacker's memory.

Each attack has a method that runs it for some seconds and returns the outcomes, counted by name, and if necessary one
that prepares it (`prepare_…`). Attacks come from their own addresses (127.0.0.66 and others), so that a limit per
address does not affect the well-behaved client. Linux lets a client bind to any 127.x.y.z.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import h2.exceptions
import hpack

from benchmarks.floods import ADDRESS, DATA, END_HEADERS, END_STREAM, FLOODS, PREFACE, SETTINGS, WATCH, Flooder, frame
from benchmarks.floods import HEADERS as HEADERS_FRAME
from benchmarks.http2 import Connection, Stream, framed, opening
from benchmarks.raw_load import HEADERS, SERVICE, Refused, Wire, new_message
from popproto.v1 import admin_pb2, legacy_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire

TOPIC = "bench-attacked"
MIB = 1024 * 1024
BODY_BYTES = 4 * MIB
ADMIN, LEGACY = "/popmq.v1.Admin/", "/popmq.v1.Legacy/"
_NICER = 5  # the measured client goes first if both share a core

Outcomes = dict[str, int]


class AttackLoad:
    """The attacks; none is signed."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._counted: Counter[str] = Counter()
        self._client = itertools.count()

    async def prepare(self, attack: str) -> None:
        """Store and make what the attack needs."""
        make = getattr(self, f"prepare_{attack}", None)
        if make is not None:
            await make()

    async def run(self, attack: str, seconds: float) -> Outcomes:
        """Attack for `seconds`. Returns how the calls ended, and `seconds`, the real duration."""
        os.nice(_NICER)
        self._counted.clear()
        until = time.monotonic() + seconds
        if attack in FLOODS:
            await Flooder(self._endpoint, FLOODS[attack], self._counted).run(until)
        else:
            await getattr(self, attack)(until)
        return dict(self._counted)

    # Receives with an expensive filter, over many queues.

    async def prepare_filter(self) -> None:
        await self._make_topic(256)
        message = new_message(TOPIC, "", b"x")
        message.user_properties["a"] = "b" * 200
        own = Wire(self._endpoint)
        for _ in range(500):
            await own.send(_many(message, 128))
        await own.channel.close()

    async def filter(self, until: float) -> None:
        wanted = ("SQL", " OR ".join(f"a CONTAINS 'x{each:03}'" for each in range(500)))
        await self._receive_by_filters(until, workers=4, filters=itertools.repeat(wanted), wait_s=None)

    # Distinct filters of the maximum length, on a topic without messages.

    async def prepare_filters(self) -> None:
        await self._make_topic(1)

    async def filters(self, until: float) -> None:
        def distinct() -> Iterator[tuple[str, str]]:
            for each in itertools.count():
                yield "SQL", " OR ".join(f"a{part:03} = '{each:06}{'x' * 43}'" for part in range(255))

        await self._receive_by_filters(until, workers=32, filters=distinct(), wait_s=0.5)

    # Requests that never end, without a signature, on a server that requires one.

    async def bodies(self, until: float) -> None:
        await self._unfinished("SendMessage", until, wire.SendMessageResponse.FromString)

    async def frames(self, until: float) -> None:
        await self._unfinished("Telemetry", until, wire.TelemetryCommand.FromString)

    async def _unfinished(self, method: str, until: float, read: Callable[[bytes], Any]) -> None:
        size, block = 31 * MIB, bytes(MIB)
        connections = [await self._connect() for _ in range(2)]
        sends = []
        for number in range(24):
            connection = connections[number % 2]
            stream = connection.call(SERVICE + method, (("x-mq-client-id", "bench-attack"),))
            pieces = itertools.chain((framed(size),), itertools.repeat(block, 30))
            sends.append((stream, asyncio.create_task(connection.send(stream, pieces, end=False))))
        await self._until_ended([stream for stream, _ in sends], until, read)
        await self._close(connections, [task for _, task in sends])

    # Complete requests of the maximum size, all at once.

    async def prepare_sends(self) -> None:
        await self._make_topic(8)

    async def sends(self, until: float) -> None:
        messages = [new_message(TOPIC, f"02{each:032X}", bytes(BODY_BYTES)) for each in range(7)]
        request = wire.SendMessageRequest(messages=messages).SerializeToString()
        places = [request.index(f"02{each:032X}".encode()) for each in range(7)]
        connections = [await self._connect() for _ in range(4)]
        ids, sends = itertools.count(time.time_ns()), []
        for number in range(40):
            connection = connections[number % 4]
            stream = connection.call(SERVICE + "SendMessage", HEADERS)
            pieces = (framed(len(request)), *_with_ids(memoryview(request), places, ids))
            sends.append((stream, asyncio.create_task(connection.send(stream, pieces))))
        await self._until_ended([stream for stream, _ in sends], until, wire.SendMessageResponse.FromString)
        await self._close(connections, [task for _, task in sends])

    # Health watches: on one connection, and each on its own connection.

    async def watches(self, until: float) -> None:
        connection = await self._connect()
        streams = []
        with suppress(h2.exceptions.ProtocolError):
            for number in range(10_000):
                stream = connection.call(WATCH)
                await connection.send(stream, (framed(0),))
                streams.append(stream)
                if number % 100 == 99:
                    await asyncio.sleep(0)
        await self._until_ended(streams, until)
        await self._close([connection], [])

    async def connections(self, until: float) -> None:
        await self._connect_and_watch(until, [ADDRESS])

    async def addresses(self, until: float) -> None:
        await self._connect_and_watch(until, [f"127.0.1.{each}" for each in range(1, 101)])

    # Receives of large messages that are never read.

    async def prepare_unread(self) -> None:
        await self._make_topic(8)
        own = Wire(self._endpoint)
        message = new_message(TOPIC, "", bytes(BODY_BYTES))
        for _ in range(8):
            await own.send(_many(message, 4))
        await own.channel.close()

    async def unread(self, until: float) -> None:
        connections = [await self._connect(reads=False) for _ in range(2)]
        streams = []
        for number in range(12):
            request = _receive_request(f"bench-unread-{number}").SerializeToString()
            connection = connections[number % 2]
            stream = connection.call(SERVICE + "ReceiveMessage", HEADERS)
            await connection.send(stream, (framed(len(request)), request))
            streams.append(stream)
        await self._until_ended(streams, until, wire.ReceiveMessageResponse.FromString)
        await self._close(connections, [])

    # Lists as long as a request may be.

    async def settings(self, until: float) -> None:
        while time.monotonic() < until:
            telling = wire.TelemetryCommand(settings=_settings(pb.SIMPLE_CONSUMER, 2_000))
            async with self._channel() as channel:
                call = channel.stream_stream(SERVICE + "Telemetry")(
                    metadata=self._new_client(), timeout=max(1.0, until - time.monotonic())
                )
                await self._answered("", _first(call, telling.SerializeToString()))

    async def members(self, until: float) -> None:
        async with self._channel() as channel:
            streams = []
            for _ in range(3):
                telling = wire.TelemetryCommand(settings=_settings(pb.PULL_CONSUMER, 1_000))
                streams.append(channel.stream_stream(SERVICE + "Telemetry")(metadata=self._new_client(), timeout=120))
                await self._answered("join ", _first(streams[-1], telling.SerializeToString()))

            async def ask() -> None:
                request = legacy_pb2.ListMembersRequest(group=pb.Resource(name="bench-members")).SerializeToString()
                while time.monotonic() < until:
                    call = channel.unary_unary(LEGACY + "ListMembers")(request, metadata=HEADERS, timeout=60)
                    await self._answered("list ", call, legacy_pb2.ListMembersResponse.FromString)

            await asyncio.gather(ask(), ask())
            for stream in streams:
                stream.cancel()

    async def prepare_locks(self) -> None:
        await self._make_topic(1)
        own = Wire(self._endpoint)
        await own.receive("bench-locks", TOPIC, poll_s=5)
        await own.channel.close()

    async def locks(self, until: float) -> None:
        request = legacy_pb2.LockQueuesRequest(group=pb.Resource(name="bench-locks"))
        for number in range(300_000):
            request.queues.add(topic=pb.Resource(name=TOPIC), queue_id=number)
        written = request.SerializeToString()
        async with self._channel() as channel:
            while time.monotonic() < until:
                call = channel.unary_unary(LEGACY + "LockQueues")(written, metadata=HEADERS, timeout=60)
                await self._answered("", call, legacy_pb2.LockQueuesResponse.FromString)

    # One client with very many polls.

    async def prepare_polls(self) -> None:
        await self._make_topic(1)

    async def polls(self, until: float) -> None:
        """10,000 polls of 5 s on one connection, 1,000 in each of 10 groups, with a deadline 3 s behind."""
        connection = await self._connect()
        streams = []
        for number in range(10_000):
            request = _receive_request(f"bench-polls-{number % 10}", poll_s=5).SerializeToString()
            try:
                stream = connection.call(SERVICE + "ReceiveMessage", HEADERS, timeout_s=8)
            except h2.exceptions.ProtocolError:
                self._counted["NO STREAM"] += 1
                continue
            await connection.send(stream, (framed(len(request)), request))
            streams.append(stream)
            if number % 50 == 49:
                await asyncio.sleep(0)
        await self._until_ended(streams, until, wire.ReceiveMessageResponse.FromString)
        await self._close([connection], [])

    # Shared helpers.

    async def _connect(self, *, reads: bool = True) -> Connection:
        return await Connection.to(self._endpoint, ADDRESS, reads=reads)

    async def _plain_connection(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self._endpoint.rpartition(":")
        return await asyncio.open_connection(host, int(port), local_addr=(address, 0))

    async def _connect_and_watch(self, until: float, addresses: list[str]) -> None:
        """6,600 connections with a health check that never ends; refused ones try again once."""
        words = _watch_words()
        writers: list[asyncio.StreamWriter] = []

        async def come(number: int) -> None:
            for _ in range(2):
                try:
                    async with asyncio.timeout(max(0.1, until - time.monotonic())):
                        reader, writer = await self._plain_connection(addresses[number % len(addresses)])
                        writers.append(writer)
                        writer.write(words)
                        if await reader.read(1):
                            await _drain(reader)
                    self._counted["TURNED AWAY"] += 1
                except TimeoutError:
                    self._counted["STAYED"] += 1
                    return
                except OSError:
                    self._counted["TURNED AWAY"] += 1

        comings = []
        for number in range(6_600):
            comings.append(asyncio.create_task(come(number)))
            if number % 50 == 49:
                await asyncio.sleep(0.005)
        await asyncio.gather(*comings)
        for writer in writers:
            writer.transport.abort()

    async def _receive_by_filters(
        self, until: float, workers: int, filters: Iterator[tuple[str, str]], wait_s: float | None
    ) -> None:
        """Receives, each with a new group or a new filter; after `wait_s` a call counts as ended."""
        own, numbers = Wire(self._endpoint), itertools.count()

        async def receive() -> None:
            while (now := time.monotonic()) < until:
                group = f"bench-filter-{next(numbers) if wait_s is None else 0}"
                call = own.receive(group, TOPIC, poll_s=5, wanted=next(filters))
                try:
                    async with asyncio.timeout(until - now if wait_s is None else wait_s):
                        await self._answered("", call)
                except TimeoutError:
                    self._counted["LEFT"] += 1

        await asyncio.gather(*(receive() for _ in range(workers)))
        await own.channel.close()

    async def _make_topic(self, queues: int) -> None:
        request = admin_pb2.CreateTopicRequest(topic=pb.Resource(name=TOPIC), queue_count=queues)
        async with self._channel() as channel:
            answer = await channel.unary_unary(ADMIN + "CreateTopic")(request.SerializeToString(), metadata=HEADERS)
        status = admin_pb2.CreateTopicResponse.FromString(answer).status
        if status.code != pb.OK:
            raise Refused("making a topic", status)

    def _channel(self) -> Any:
        options = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
        return grpc.aio.insecure_channel(self._endpoint, options=options)

    def _new_client(self) -> tuple[tuple[str, str], ...]:
        return (("x-mq-client-id", f"bench-attack-{next(self._client)}"), *HEADERS[1:])

    async def _answered(self, what: str, call: Awaitable[Any], read: Callable[[bytes], Any] | None = None) -> None:
        """Count how the call ends."""
        try:
            answer = await call
            outcome = "OK" if read is None else _code(read(answer))
        except Refused as refusal:
            outcome = refusal.code
        except grpc.aio.AioRpcError as error:
            outcome = error.code().name
        self._counted[what + outcome] += 1

    async def _until_ended(
        self, streams: list[Stream], until: float, read: Callable[[bytes], Any] | None = None
    ) -> None:
        """Wait until the server has ended the calls or the time is over, and count how they ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                await asyncio.gather(*(each.ended.wait() for each in streams))
        for each in streams:
            self._counted[_outcome(each, read)] += 1

    async def _close(self, connections: list[Connection], tasks: list[asyncio.Task[None]]) -> None:
        for each in connections:
            each.close()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _first(call: Any, sent: bytes) -> Any:
    """The first answer to the first frame of a stream."""
    await call.write(sent)
    if (answer := await call.read()) is grpc.aio.EOF:
        raise Refused("the stream", pb.Status(code=pb.CODE_UNSPECIFIED, message="it ended"))
    command = wire.TelemetryCommand.FromString(answer)
    if command.status.code not in (0, pb.OK):
        raise Refused("the settings", command.status)


async def _drain(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(MIB):
            pass


def _settings(kind: pb.ClientType.ValueType, count: int) -> pb.Settings:
    settings = pb.Settings(client_type=kind)
    settings.subscription.group.name = "bench-members"
    for number in range(count):
        expression = f"a = '{number:06}{'x' * 14_000}'"
        entry = settings.subscription.subscriptions.add(topic=pb.Resource(name=f"bench-topic-{number}"))
        entry.expression.CopyFrom(pb.FilterExpression(type=pb.SQL, expression=expression))
    return settings


def _receive_request(group: str, poll_s: int = 20) -> wire.ReceiveMessageRequest:
    request = wire.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=TOPIC)),
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        batch_size=32,
    )
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = poll_s
    return request


_ids = itertools.count(time.time_ns())


def _many(message: pb.Message, count: int) -> bytes:
    """A request with `count` copies of the message, each with its own id."""
    request = wire.SendMessageRequest()
    for _ in range(count):
        request.messages.add().CopyFrom(message)
        request.messages[-1].system_properties.message_id = f"01{next(_ids):032X}"
    return request.SerializeToString()


def _with_ids(request: memoryview, places: list[int], ids: Iterator[int]) -> Iterator[bytes | memoryview]:
    """The request's bytes with new message ids, without a copy of its bodies."""
    end = 0
    for place in places:
        yield request[end:place]
        yield b"01%032X" % next(ids)
        end = place + 34
    yield request[end:]


def _watch_words() -> bytes:
    """All bytes that a client sends on a connection for one health check that never ends."""
    block = hpack.Encoder().encode(opening(WATCH))
    headers = frame(HEADERS_FRAME, END_HEADERS, 1, block)
    return PREFACE + frame(SETTINGS, 0, 0) + headers + frame(DATA, END_STREAM, 1, framed(0))


def _outcome(stream: Stream, read: Callable[[bytes], Any] | None) -> str:
    if stream.outcome != "OK" or read is None:
        return stream.outcome
    # The first message of the answer. Its status is the first field, so it is complete even if the rest was cut off.
    size = int.from_bytes(stream.answer[1:5], "big")
    try:
        return _code(read(bytes(stream.answer[5 : 5 + size])))
    except Exception:  # noqa: BLE001 - what cannot be read is an outcome, too
        return "UNREADABLE"


def _code(answer: Any) -> str:
    return str(pb.Code.Name(answer.status.code))
