"""A connection in the event loop, where a real transport does not fail on demand."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import hpack

from popserver.http2 import frames
from popserver.http2.call import StreamGone
from popserver.http2.protocol import ClientConnection, Shared, Timeouts
from popserver.transport.call import Call, Encodable, Route, encode
from tests.support.scripted_server import until


class GoneTransport(asyncio.Transport):
    """The client has disconnected, and the event loop does not know it yet."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def write_eof(self) -> None:
        raise OSError(errno.ENOTCONN, "not connected")

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    close = abort

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nothing is read here."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything fits."""


async def test_a_client_that_has_gone_already_is_let_go() -> None:
    transport = GoneTransport()
    client = ClientConnection(Shared(Timeouts(1.0, 1.0, 1.0), 10), "10.0.0.1:5", lambda: None, lambda: None)
    client.connection_made(transport)
    client.data_received(frames.PREFACE + frames.settings({}))
    client.leave()
    client.data_received(frames.frame(frames.PING, frames.ACK, 0, b"popmq-go"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert transport.is_aborted


class Endless:
    """One answer without end."""

    def __init__(self, *data: bytes) -> None:
        self.data = data

    def SerializeToString(self) -> bytes:  # noqa: N802
        return b"".join(self.data)


class Served:
    """A client's connection whose only method is `/a.b/C`."""

    def __init__(self, handle: Callable[[Call], Awaitable[Encodable | None]] | None = None) -> None:
        self.left = 0
        routes = {} if handle is None else {"/a.b/C": Route(handle, encode, streams=True)}
        shared = Shared(Timeouts(10.0, 1_000.0, 30.0), 100, routes)
        self.transport = GoneTransport()
        self.client = ClientConnection(shared, "10.0.0.1:5", self._leave, lambda: None)
        self.client.connection_made(self.transport)
        self.client.data_received(frames.PREFACE + frames.settings({}))
        self._encoder = hpack.Encoder()

    def _leave(self) -> None:
        self.left += 1

    def ask(self, number: int = 1, kind: str = "application/grpc", path: str = "/a.b/C") -> None:
        head = [(":method", "POST"), (":scheme", "http"), (":path", path), ("content-type", kind)]
        block = self._encoder.encode(head)
        self.client.data_received(frames.frame(frames.HEADERS, frames.END_HEADERS, number, block))

    def look_after(self, seconds: float) -> None:
        self.client.check_timeouts(asyncio.get_running_loop().time() + seconds)


async def test_a_request_that_is_not_grpc_does_not_wait_for_ever() -> None:
    served = Served()
    served.ask(kind="text/html")
    served.look_after(29.0)
    assert served.client.connection.streams
    served.look_after(31.0)
    assert not served.client.connection.streams


async def test_a_handler_does_not_wait_for_ever_for_a_client_that_reads_nothing() -> None:
    ended = asyncio.Event()

    async def handle(call: Call) -> None:
        call.on_end(ended.set)
        while True:
            await call.write(Endless(bytes(1 << 20)))

    served = Served(handle)
    served.ask()
    await until(lambda: any(call.blocked_s for call in served.client._calls()))
    served.look_after(29.0)
    assert not ended.is_set()
    served.look_after(31.0)
    assert ended.is_set()
    assert not served.client.connection.streams


async def test_what_is_written_after_the_connection_failed_reaches_nobody() -> None:
    failures: list[Exception] = []
    goes_on = asyncio.Event()

    async def handle(call: Call) -> None:
        await goes_on.wait()
        try:
            await call.write(Endless(b"x"))
        except StreamGone as failure:
            failures.append(failure)

    served = Served(handle)
    for number in range(1, 100, 2):
        served.ask(number)
    await asyncio.sleep(0)
    served.client.data_received(frames.frame(frames.PUSH_PROMISE, 0, 1))
    assert served.client.is_gone
    assert served.client.connection.streams  # they are closed some at a time
    goes_on.set()
    served.client.connection_lost(None)
    assert served.left == 0
    await until(lambda: not served.client.connection.streams)
    await asyncio.sleep(0)
    assert served.left == 1
    assert failures
