"""A server that stops under load: every call is answered, or was refused before a handler saw it and goes elsewhere."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from hpack import Encoder

from popserver.front.source import Source
from popserver.transport.call import Call, Door, Encodable, Route, Service, encode
from popserver.transport.limits import CallLimits
from popserver.transport.listen import PLAINTEXT, Listening
from tests.http2.doors import a_wire_server, served
from tests.http2.fuzz import PREFACE, frame
from tests.http2.service import SimpleRequest, SimpleResponse, next_request
from tests.support.certificates import Authority
from tests.support.grpc_engine import ENGINE

CLIENTS, CALLS_AT_ONCE = 12, 8
RESTARTS = 4
BETWEEN_RESTARTS = 300  # answers
PATIENCE_S = 60
UNARY = "/grpc.testing.TestService/UnaryCall"
HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 1, 3, 4, 6, 7
ACK, END_HEADERS, CANCEL = 1, 4, (8).to_bytes(4, "big")
STREAMED = "/grpc.testing.TestService/FullDuplexCall"
OPENING = [(":method", "POST"), (":scheme", "http"), (":path", STREAMED), ("content-type", "application/grpc")]
# A client tries again soon when the port is closed; it has no other server.
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 100),
]


class Load:
    """Calls without end, each with a number of its own."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.handled: Counter[str] = Counter()
        self.answered: set[str] = set()
        self.refused: Counter[str] = Counter()
        self.stops = False
        self._numbers = itertools.count()
        self._progress = asyncio.Event()

    async def handle(self, call: Call) -> Encodable:
        """The server's side. Some calls take a few turns of the event loop, some a few milliseconds."""
        request = SimpleRequest.FromString(await next_request(call) or b"")
        self.handled[request.payload.body.decode()] += 1
        await asyncio.sleep(0.005 if request.response_size % 2 else 0)
        answer = SimpleResponse()
        answer.payload.body = request.payload.body + bytes(request.response_size)
        return answer

    async def work(self, channel: Any) -> None:
        """One caller."""
        call = channel.unary_unary(UNARY)
        while not self.stops:
            number = next(self._numbers)
            request = SimpleRequest(response_size=number % 4_000)
            request.payload.body = b"%d" % number
            self.sent.add(str(number))
            try:
                answer = await call(request.SerializeToString(), wait_for_ready=True, timeout=PATIENCE_S)
            except grpc.aio.AioRpcError as error:
                self.refused[f"{error.code().name}: {error.details()}"] += 1
                continue
            assert SimpleResponse.FromString(answer).payload.body.startswith(request.payload.body)
            self.answered.add(str(number))
            self._progress.set()

    async def progress(self, answers: int) -> None:
        """Wait for so many more answers."""
        wanted = len(self.answered) + answers
        async with asyncio.timeout(PATIENCE_S):
            while len(self.answered) < wanted:
                self._progress.clear()
                await self._progress.wait()


async def _start(port: int, load: Load, source: Source | None) -> tuple[Door, int]:
    wire_server = a_wire_server(CallLimits())
    port = wire_server.listen("127.0.0.1", port, PLAINTEXT if source is None else Listening("tls", source))
    wire_server.serve([Service("grpc.testing.TestService", {"UnaryCall": Route(load.handle, encode, streams=False)})])
    await wire_server.start()
    return wire_server, port


@pytest.mark.parametrize("transport", ["plaintext", "tls"])
async def test_no_call_is_lost(source: Source, authority: Authority, transport: str) -> None:
    load, own = Load(), source if transport == "tls" else None
    wire_server, port = await _start(0, load, own)
    trusted = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    async with AsyncExitStack() as channels:
        address, work = f"127.0.0.1:{port}", []
        for _ in range(CLIENTS):
            if own is None:
                channel = grpc.aio.insecure_channel(address, OPTIONS)
            else:
                channel = grpc.aio.secure_channel(address, trusted, OPTIONS)
            await channels.enter_async_context(channel)
            work += [asyncio.create_task(load.work(channel)) for _ in range(CALLS_AT_ONCE)]
        for _ in range(RESTARTS):
            await load.progress(BETWEEN_RESTARTS)
            await wire_server.stop(PATIENCE_S)
            wire_server, _ = await _start(port, load, own)
        await load.progress(BETWEEN_RESTARTS)
        load.stops = True
        await asyncio.gather(*work)
    await wire_server.stop(0)
    if ENGINE == "grpcio":
        # The library refuses the calls that clients send before they hear that the server stops.
        assert set(load.refused) <= {"CANCELLED: CANCELLED"}
        assert set(load.handled) == load.answered, "what was refused did not begin"
    else:
        assert not load.refused
        assert load.answered == load.sent
    assert {number: count for number, count in load.handled.items() if count > 1} == {}


@pytest.mark.builtin("frames in this order")
async def test_a_client_that_leaves_its_last_call_is_let_go() -> None:
    """A client that resets its last call after the server has said goodbye, and does not close by itself."""
    async with served() as wire_server:
        reader, writer = await asyncio.open_connection("127.0.0.1", wire_server.port)
        block = Encoder().encode(OPENING)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, block))
        await _frame(reader, SETTINGS)
        await _frame(reader, SETTINGS)  # the answer to the client's
        stopped = asyncio.create_task(wire_server.wire_server.stop(PATIENCE_S))
        await _frame(reader, GOAWAY)
        _, _, ping = await _frame(reader, PING)
        writer.write(frame(PING, ACK, 0, ping))
        _, _, goodbye = await _frame(reader, GOAWAY)
        assert int.from_bytes(goodbye[:4], "big") == 1  # the last call that the server takes
        writer.write(frame(RST_STREAM, 0, 1, CANCEL))
        assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
        writer.close()
        await stopped


async def _frame(reader: asyncio.StreamReader, kind: int) -> tuple[int, int, bytes]:
    """Kind, flags and payload of the next frame of this kind."""
    while True:
        head = await asyncio.wait_for(reader.readexactly(9), PATIENCE_S)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == kind:
            return kind, head[4], payload
