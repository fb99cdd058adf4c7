"""What a client may make the server do: with table fields, windows, resets, and calls without a request."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc
import pytest
from hpack import Encoder

from popserver.http2 import protocol
from popserver.http2.connection import Connection
from popserver.http2.frame_budget import IDLE_FRAMES_AT_ONCE
from popserver.http2.frames import ErrorCode
from popserver.http2.headers import DECODED_BYTES_MAX, RequestHead
from popserver.http2.stream import Stream
from tests.http2.doors import served
from tests.http2.fuzz import PREFACE, frame

HEADERS, RST_STREAM, SETTINGS, WINDOW_UPDATE, CONTINUATION = 1, 3, 4, 8, 9
END_STREAM, END_HEADERS = 1, 4
REQUEST = [(":method", "POST"), (":scheme", "http"), (":path", "/a.b/C"), ("content-type", "application/grpc")]


class Client:
    """A client's words to one connection, and what the server's side hears."""

    def __init__(self) -> None:
        self.connection = Connection(self, 10_000)
        self.encoder = Encoder()
        self.now_s = 0.0
        self.resets = 0
        self.ended_by_client: list[bool] = []
        self.say(PREFACE + frame(SETTINGS, 0, 0, b""))

    def say(self, data: bytes) -> None:
        self.connection.receive(data, self.now_s)
        while self.connection.frames.has_more and self.connection.failure is None:
            self.connection.receive(b"", self.now_s)

    def call(self, number: int) -> bytes:
        return frame(HEADERS, END_HEADERS, number, self.encoder.encode(REQUEST))

    @property
    def failure(self) -> ErrorCode | None:
        failure = self.connection.failure
        return None if failure is None else failure.code

    # What the connection tells.

    def opened(self, stream: Stream, head: RequestHead) -> None:
        stream.listener = self

    def was_reset(self) -> None:
        self.resets += 1

    def acknowledged(self, ping: bytes) -> None: ...

    def received(self, data: bytes) -> None: ...

    def ended(self) -> None: ...

    def drained(self) -> None: ...

    def closed(self, *, by_client: bool) -> None:
        self.ended_by_client.append(by_client)


def test_a_header_block_that_never_ends_is_limited() -> None:
    client = Client()
    client.say(frame(HEADERS, 0, 1, client.encoder.encode(REQUEST)))
    client.say(frame(CONTINUATION, 0, 1, b"") * (IDLE_FRAMES_AT_ONCE + 1))
    assert client.failure is ErrorCode.ENHANCE_YOUR_CALM


def test_a_field_of_the_table_is_not_repeated_without_end() -> None:
    client = Client()
    client.say(frame(HEADERS, END_HEADERS, 1, client.encoder.encode([*REQUEST, ("x-large", "v" * 3_900)])))
    assert client.failure is None
    newest = b"\xbe"
    client.say(frame(HEADERS, END_HEADERS, 3, newest * (DECODED_BYTES_MAX // 3_900 + 1)))
    assert client.failure is ErrorCode.ENHANCE_YOUR_CALM


def test_a_window_for_very_many_streams_costs_more_than_a_frame() -> None:
    client = Client()
    client.say(b"".join(client.call(2 * each + 1) for each in range(9_000)))
    frames = [frame(SETTINGS, 0, 0, struct.pack(">HL", 4, 65_535 - each)) for each in range(1, 100)]
    client.say(b"".join(frames))
    assert client.failure is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("how", ["reset", "window", "trailers", "length"])
def test_a_reset_ends_the_handler_whoever_sends_it(how: str) -> None:
    client = Client()
    client.say(client.call(1))
    match how:
        case "reset":
            client.say(frame(RST_STREAM, 0, 1, struct.pack(">L", 8)))
        case "window":
            client.say(frame(WINDOW_UPDATE, 0, 1, bytes(4)))
        case "trailers":
            client.say(frame(HEADERS, END_HEADERS, 1, client.encoder.encode([("x-late", "1")])))
        case "length":
            client.say(frame(HEADERS, END_HEADERS, 3, client.encoder.encode([*REQUEST, ("content-length", "7")])))
            client.say(frame(0, END_STREAM, 3, b"four"))
    assert client.ended_by_client == [True]
    assert client.resets == 1
    assert client.failure is None


def test_a_client_may_leave_very_many_calls_at_once() -> None:
    client = Client()
    client.say(b"".join(client.call(2 * each + 1) for each in range(10_000)))
    client.say(b"".join(frame(RST_STREAM, 0, 2 * each + 1, struct.pack(">L", 8)) for each in range(10_000)))
    assert client.failure is None
    assert client.resets == 10_000


async def test_of_too_many_calls_without_a_request_the_oldest_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WAITING_MAX", 3)
    method = "/grpc.testing.TestService/StreamingInputCall"
    async with served() as wire_server, grpc.aio.insecure_channel(f"127.0.0.1:{wire_server.port}") as channel:
        calls: list[Any] = []
        for _ in range(4):
            calls.append(channel.stream_unary(method)())
            await calls[-1].wait_for_connection()
        # A call has begun when its headers are sent; one after the other, so that the server sees them in this order.
        code = await asyncio.wait_for(calls[0].code(), 20)
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        for call in calls[1:]:
            assert not call.done()
            await call.done_writing()
            assert await call == b""


async def test_of_too_many_answers_that_nobody_reads_the_oldest_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WAITING_MAX", 3)
    encoder = Encoder()
    async with served() as wire_server:
        reader, writer = await asyncio.open_connection("127.0.0.1", wire_server.port)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HL", 4, 0)))  # no window for any answer
        for number in (1, 3, 5, 7):
            request = [*REQUEST[:2], (":path", "/grpc.testing.TestService/UnaryCall"), REQUEST[3]]
            writer.write(frame(HEADERS, END_HEADERS, number, encoder.encode(request)))
            writer.write(frame(0, END_STREAM, number, b"\0\0\0\0\2\x10\x09"))  # an answer of 9 bytes
        resets: list[tuple[int, int]] = []
        async with asyncio.timeout(20):
            while not resets:
                head = await reader.readexactly(9)
                size, kind, number = int.from_bytes(head[:3], "big"), head[3], int.from_bytes(head[5:], "big")
                payload = await reader.readexactly(size)
                if kind == RST_STREAM:
                    resets.append((number, struct.unpack(">L", payload)[0]))
        assert resets == [(1, ErrorCode.CANCEL)]
        writer.close()


def test_a_closed_stream_and_its_listener_do_not_hold_each_other() -> None:
    client = Client()
    client.say(client.call(1))
    [stream] = client.connection.streams.values()
    assert stream.listener is client
    client.say(frame(RST_STREAM, 0, 1, struct.pack(">L", 8)))
    assert stream.listener is not client
