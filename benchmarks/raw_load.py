"""Load by plain gRPC calls, without a client library.

The load has one core, like the server. To measure the server and not the load, the bytes of a send request are prepared
once and only the message ids change, and the answer is compared with the bytes of an OK.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import time
from typing import Any

import grpc

from benchmarks.groups import BATCH_SIZE, Groups
from benchmarks.meter import Meter, quantiles_ms
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire

INVISIBLE_S = 600
EVERYTHING = ("TAG", "*")
SERVICE = "/apache.rocketmq.v2.MessagingService/"
HEADERS = (
    ("x-mq-client-id", "bench"),
    ("x-mq-language", "PYTHON"),
    ("x-mq-client-version", "5.0.6"),
    ("x-mq-protocol", "v2"),
)
_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))
_OK = wire.SendMessageResponse(status=pb.Status(code=pb.OK, message="OK")).SerializeToString()


class Refused(RuntimeError):
    """An answer that is not OK; `code` is the name of its status."""

    def __init__(self, what: str, status: pb.Status) -> None:
        super().__init__(f"{what} failed: {status}")
        self.code = pb.Code.Name(status.code)


class Wire:
    """One connection; requests and answers of sends are bytes. With `ca` (PEM) it uses TLS."""

    def __init__(self, endpoint: str, ca: bytes | None = None, headers: tuple[tuple[str, str], ...] = HEADERS) -> None:
        self._headers = headers
        if ca is None:
            self.channel = grpc.aio.insecure_channel(endpoint, options=_OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(endpoint, grpc.ssl_channel_credentials(ca), options=_OPTIONS)
        self._send: Any = self.channel.unary_unary(SERVICE + "SendMessage")
        self._ack = self.channel.unary_unary(
            SERVICE + "AckMessage",
            request_serializer=wire.AckMessageRequest.SerializeToString,
            response_deserializer=wire.AckMessageResponse.FromString,
        )
        self._receive: Any = self.channel.unary_stream(
            SERVICE + "ReceiveMessage",
            request_serializer=wire.ReceiveMessageRequest.SerializeToString,
            response_deserializer=wire.ReceiveMessageResponse.FromString,
        )

    async def send(self, request: bytes, timeout_s: float = 30) -> None:
        answer = await self._send(request, metadata=self._headers, timeout=timeout_s)
        if not answer.startswith(_OK):
            raise Refused("a send", wire.SendMessageResponse.FromString(answer).status)

    async def receive(
        self,
        group: str,
        topic: str,
        batch_size: int = BATCH_SIZE,
        poll_s: float = 20.0,
        client_id: str = "bench",
        wanted: tuple[str, str] = EVERYTHING,
        invisible_s: int = INVISIBLE_S,
    ) -> list[pb.Message]:
        """`wanted`: the filter's type and its expression."""
        kind, expression = wanted
        request = wire.ReceiveMessageRequest(
            group=pb.Resource(name=group),
            message_queue=pb.MessageQueue(topic=pb.Resource(name=topic)),
            filter_expression=pb.FilterExpression(type=pb.FilterType.Value(kind), expression=expression),
            batch_size=batch_size,
        )
        request.invisible_duration.seconds = invisible_s
        request.long_polling_timeout.seconds = int(poll_s)
        headers = (("x-mq-client-id", client_id), *self._headers[1:])
        received: list[pb.Message] = []
        call = self._receive(request, metadata=headers, timeout=poll_s + 30)
        # Reading frame by frame costs half of what `async for` does.
        while (frame := await call.read()) is not grpc.aio.EOF:
            if frame.HasField("message"):
                received.append(frame.message)
            elif frame.HasField("status") and frame.status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND):
                raise Refused("a receive", frame.status)
        return received

    async def ack(self, group: str, topic: str, received: list[pb.Message]) -> None:
        entries = [
            wire.AckMessageEntry(
                message_id=each.system_properties.message_id, receipt_handle=each.system_properties.receipt_handle
            )
            for each in received
        ]
        request = wire.AckMessageRequest(group=pb.Resource(name=group), topic=pb.Resource(name=topic), entries=entries)
        answer = await self._ack(request, metadata=self._headers, timeout=30)
        if answer.status.code != pb.OK:
            raise Refused("an ack", answer.status)


class SendTemplate:
    """A send request as bytes, whose message ids are new each time and grow with time."""

    def __init__(self, topic: str, per_request: int, body_bytes: int) -> None:
        ids = [f"01{index:032X}" for index in range(per_request)]
        # Postgres would compress large bodies of zeros.
        body = os.urandom(body_bytes)
        request = wire.SendMessageRequest(messages=[new_message(topic, each, body) for each in ids])
        self._bytes = bytearray(request.SerializeToString())
        self._places = [self._bytes.index(each.encode()) for each in ids]
        self._next = time.time_ns()

    def next(self) -> bytes:
        for number, place in enumerate(self._places, start=self._next):
            self._bytes[place : place + 34] = b"01%032X" % number
        self._next += len(self._places)
        return bytes(self._bytes)


class RawLoad:
    """The raw cases; every method takes the case's options and returns its figures."""

    def __init__(self, endpoint: str, server_pid: int, ca: bytes | None = None) -> None:
        self._endpoint = endpoint
        self._server_pid = server_pid
        self._wire = Wire(endpoint, ca)

    async def send(
        self, topic: str, per_request: int, callers: int, body_bytes: int, warm_up: float, seconds: float
    ) -> dict[str, Any]:
        """Closed loop: each caller sends its next request when the last one is answered."""
        meter, template = Meter(), SendTemplate(topic, per_request, body_bytes)

        async def caller() -> None:
            while meter.running:
                begun = time.perf_counter()
                await self._wire.send(template.next())
                meter.done(per_request, begun)

        workers = [caller() for _ in range(callers)]
        return await meter.measure(workers, warm_up=warm_up, seconds=seconds, server_pid=self._server_pid)

    async def paced(
        self,
        topic: str,
        per_request: int,
        callers: int,
        rate: float,
        body_bytes: int,
        warm_up: float,
        seconds: float,
    ) -> dict[str, Any]:
        """Open loop of `rate` requests per second: each caller has times for its sends, and waits for each answer."""
        meter, template = Meter(), SendTemplate(topic, per_request, body_bytes)
        first = time.perf_counter()

        async def caller(number: int) -> None:
            for turn in itertools.count():
                await asyncio.sleep(max(0.0, first + (number + turn * callers) / rate - time.perf_counter()))
                if not meter.running:
                    return
                begun = time.perf_counter()
                await self._wire.send(template.next())
                meter.done(per_request, begun)

        workers = [caller(number) for number in range(callers)]
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
        wanted: tuple[str, str] = EVERYTHING,
        batch_size: int = BATCH_SIZE,
    ) -> dict[str, Any]:
        """Closed loop: receive a batch, ack it in one request or each message in its own request, all at once.

        `stock` is how many messages of the topic match `wanted`.
        """
        meter, fresh = Meter(), Groups(group, stock, lambda name: self._meet(name, topic, wanted))
        await fresh.prepare(groups)

        async def caller() -> None:
            while meter.running:
                begun, name = time.perf_counter(), await fresh.to_receive()
                received = await self._wire.receive(name, topic, batch_size, wanted=wanted)
                if ack_each:
                    await asyncio.gather(*(self._wire.ack(name, topic, [each]) for each in received))
                else:
                    await self._wire.ack(name, topic, received)
                meter.done(len(received), begun)

        workers = [caller() for _ in range(callers)]
        return await meter.measure(workers, warm_up=warm_up, seconds=seconds, server_pid=self._server_pid)

    async def latency(
        self, topic: str, group: str, rate: int, callers: int, body_bytes: int, seconds: float
    ) -> dict[str, Any]:
        """Open loop: messages are sent at fixed times; measures the time from send to delivery."""
        delivered: asyncio.Queue[float] = asyncio.Queue()
        pollers = [asyncio.ensure_future(self._deliver(topic, group, delivered)) for _ in range(callers)]
        await asyncio.sleep(0.5)  # until topic and group are made and the polls are parked
        first, begun, sends = time.time_ns(), time.perf_counter(), []
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
            body = struct.pack(">d", time.perf_counter()).ljust(body_bytes, b"\0")
            request = wire.SendMessageRequest(messages=[new_message(topic, f"01{first + number:032X}", body)])
            sends.append(asyncio.ensure_future(self._wire.send(request.SerializeToString())))
        await asyncio.gather(*sends)
        async with asyncio.timeout(30):
            taken_s = [await delivered.get() for _ in sends]
        for poller in pollers:
            poller.cancel()
        await asyncio.gather(*pollers, return_exceptions=True)
        if not delivered.empty():
            raise RuntimeError(f"{delivered.qsize()} messages came twice")
        return {"sent": len(sends), "end_to_end_ms": quantiles_ms(taken_s)}

    async def idle(self, topic: str, polls: int, poll_seconds: float, seconds: float) -> dict[str, Any]:
        """Long polls that find nothing and are repeated, each from its own client; measures the server's CPU time."""
        wires = [Wire(self._endpoint) for _ in range(10)]

        async def poll(number: int) -> None:
            own = wires[number % len(wires)]
            while True:
                await own.receive(f"bench-idle-{number % 10}", topic, 32, poll_seconds, f"bench-idle-{number}")

        tasks = [asyncio.ensure_future(poll(number)) for number in range(polls)]
        await asyncio.sleep(1.0 + polls / 1_000)
        meter = Meter()
        figures = await meter.measure([], warm_up=0.1, seconds=seconds, server_pid=self._server_pid)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        for own in wires:
            await own.channel.close()
        broken = [each for each in ended if not isinstance(each, asyncio.CancelledError)]
        if broken:
            raise RuntimeError(f"{len(broken)} of {polls} polls broke off, the first: {broken[0]!r}")
        return {"cpu": figures["server_busy"]}

    async def close(self) -> None:
        await self._wire.channel.close()

    async def _meet(self, group: str, topic: str, wanted: tuple[str, str]) -> str:
        """Create the group before the measured time."""
        if topic.startswith("bench-stock"):
            await self._wire.ack(group, topic, await self._wire.receive(group, topic, 1, wanted=wanted))
        return group

    async def _deliver(self, topic: str, group: str, delivered: asyncio.Queue[float]) -> None:
        while True:
            received = await self._wire.receive(group, topic)
            now = time.perf_counter()
            for each in received:
                delivered.put_nowait(now - struct.unpack_from(">d", each.body)[0])
            if received:
                await self._wire.ack(group, topic, received)


def new_message(topic: str, message_id: str, body: bytes) -> pb.Message:
    sent = pb.Message(
        topic=pb.Resource(name=topic),
        body=body,
        system_properties=pb.SystemProperties(
            message_id=message_id, tag="bench", keys=["key"], message_type=pb.NORMAL, born_host="bench"
        ),
    )
    sent.system_properties.born_timestamp.seconds = int(time.time())
    return sent
