"""Partly sent frames on streams of requests (Telemetry), and how many bytes they hold in memory.

gRPC reads the next frame of such a stream while the stream is open, and lets the client send as many bytes as the frame
announces. The server sees a frame only when it is complete. But the front counts the bytes that each connection sends.
Bytes that were sent and are still not read after `AGE_S` belong to a partly sent frame, or to a request that arrives
slowly.

A connection also sends bytes outside of requests: headers, HTTP/2's own frames, TLS records. So each request that was
read subtracts more than its size. Answers subtract a part of theirs, because the client confirms them, and time
subtracts a little for pings. The count never falls below zero, so nothing is subtracted in advance. A complete frame on
a connection with one stream sets the count to zero.

Bytes sent before the connection's first stream was opened do not count. gRPC limits them to 64 KiB for each call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from popserver.model.errors import BadRequest, PopError
from popserver.transport.call import Call
from popserver.transport.requests import Read

# What one request subtracts beyond its size: its headers with a signature, and the frames and records around it.
CALL_BYTES = 1_024
SIZE_SHARE = 32  # 1/32 of its size, for the HTTP/2 frames and TLS records that it is divided into
ANSWER_SHARE = 64  # 1/64 of what the server sends: the client's window updates and pings
PINGS_BYTES_PER_S = 64
SLACK_BYTES = 16 * 1024  # of each connection, not counted
AGE_S = 0.05  # newer bytes may still be on their way to the reader


Request = TypeVar("Request", covariant=True)


class Traffic(Protocol):
    """What one connection has carried so far, in bytes."""

    passed: int  # sent by the client
    returned: int  # sent by the server


class Unread:
    """The bytes that a connection has sent and the server has not read, and its open streams of requests."""

    def __init__(self, traffic: Traffic, peer: str, now_s: float) -> None:
        self.peer = peer  # of the client, `HOST:PORT`
        self.count = 0  # bytes
        self.frames: set[GrpcFrames[object]] = set()
        self.late_since_s: float | None = None  # `Incoming` ends the connection's streams some time after this
        self._traffic = traffic
        self._passed = traffic.passed
        self._returned = traffic.returned
        self._checked_s = now_s
        # How many bytes had been sent at the last two looks that were `AGE_S` apart.
        self._marked_s = now_s
        self._mark = self._earlier_mark = traffic.passed

    def read(self, size: int) -> None:
        """A request of `size` bytes was read."""
        self._clear(size + size // SIZE_SHARE + CALL_BYTES)

    def complete(self, size: int) -> None:
        """A frame of `size` bytes was read."""
        if len(self.frames) == 1:
            self._clear(self.count + self._traffic.passed - self._passed)
        else:
            self.read(size)

    def check(self, now_s: float) -> int:
        """How many bytes arrived at least `AGE_S` ago and were not read, beyond `SLACK_BYTES`."""
        returned = self._traffic.returned
        confirmed = (returned - self._returned) // ANSWER_SHARE
        self._returned += confirmed * ANSWER_SHARE
        pings = int((now_s - self._checked_s) * PINGS_BYTES_PER_S)
        self._checked_s += pings / PINGS_BYTES_PER_S
        self._clear(confirmed + pings)
        if now_s - self._marked_s >= AGE_S:
            self._marked_s, self._earlier_mark, self._mark = now_s, self._mark, self._passed
        return max(0, self.count - (self._passed - self._earlier_mark) - SLACK_BYTES)

    def refuse(self, refusal: PopError) -> None:
        """End the streams on which a frame may be partly sent."""
        for each in self.frames:
            each.refuse(refusal)

    @property
    def waits(self) -> bool:
        """Whether a frame may be partly sent."""
        return any(each.waits for each in self.frames)

    def _clear(self, amount: int) -> None:
        passed = self._traffic.passed
        self.count = max(0, self.count + passed - self._passed - amount)
        self._passed = passed


class GrpcFrames(Generic[Request]):
    """The frames of one stream, decoded by `read`. Use it in a `with` block, which raises the refusal that ended it."""

    def __init__(self, call: Call, read: Read[Request], unread: Unread | None, left: Callable[[], None]) -> None:
        """`unread` counts the stream's connection; None if that is unknown. `left` is called when the stream ends."""
        self.refusal: PopError | None = None
        self.waits = False
        self._call = call
        self._read = read
        self._unread = unread
        self._left = left
        self._task = asyncio.current_task()

    def __aiter__(self) -> GrpcFrames[Request]:
        return self

    async def __anext__(self) -> Request | BadRequest:
        self.waits = True
        try:
            data = await self._call.read()
        finally:
            self.waits = False
        if data is None:
            raise StopAsyncIteration
        if self._unread is not None:
            self._unread.complete(len(data))
        return self._read(data)

    def refuse(self, refusal: PopError) -> None:
        """End the stream, if it waits for a frame."""
        if self.waits and self.refusal is None:
            assert self._task is not None
            self.refusal = refusal
            self._task.cancel()

    def __enter__(self) -> GrpcFrames[Request]:
        if self._unread is not None:
            self._unread.frames.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._unread is not None:
            self._unread.frames.remove(self)
        self._left()
        if self.refusal is not None and isinstance(error, asyncio.CancelledError):
            assert self._task is not None
            self._task.uncancel()
            raise self.refusal from None
