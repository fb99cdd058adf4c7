"""Frames that are half sent, on streams of requests (Telemetry).

gRPC reads the next frame of such a stream as long as the stream is open, and lets the client send as much as the frame
announces. The server sees nothing of a frame before its end, but the front counts what a connection sends. What a
connection sent and the server has not read after a while is part of a frame, or of a request that takes long to arrive.

A connection also sends what is no request: headers, HTTP/2's own frames, TLS records. So each request that is read
clears more than its size, and so do answers, which the client confirms, and time, in which it pings. The count never
falls below zero: nothing is cleared in advance. A complete frame of a connection's only stream clears everything.

What a connection sent before the server took up its first stream does not count. gRPC lets a client send at most 64 KiB
of a call before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from popserver.model.errors import BadRequest, PopError
from popserver.transport.call import Call

# What one request clears beyond its size: its headers, with a signature, and the frames and records around it.
CALL_BYTES = 1_024
SIZE_SHARE = 32  # of its size, for the frames and records it is cut into
ANSWER_SHARE = 64  # of what the server sends: the client's window updates and pings
PINGS_BYTES_PER_S = 64
SLACK_BYTES = 16 * 1024  # of a connection, not counted
AGE_S = 0.05  # what came less than this long ago may still be read


Request = TypeVar("Request", covariant=True)
# From bytes to a request, or to the refusal of bytes that are none.
Read = Callable[[bytes], Request | BadRequest]


class Traffic(Protocol):
    """What went through one connection so far, in bytes."""

    passed: int  # sent by the client
    returned: int  # sent by the server


class Unread:
    """What one connection has sent that the server has not read, and the streams of requests that are open on it."""

    def __init__(self, traffic: Traffic, peer: str, now_s: float) -> None:
        self.peer = peer  # of the client, `HOST:PORT`
        self.count = 0  # bytes
        self.frames: set[Frames[object]] = set()
        self.late_since_s: float | None = None  # the limits of `Incoming` begin here
        self._traffic = traffic
        self._passed = traffic.passed
        self._returned = traffic.returned
        self._looked_s = now_s
        # What had been sent at the last two looks that were `AGE_S` apart.
        self._marked_s = now_s
        self._mark = self._earlier_mark = traffic.passed

    def read(self, size: int) -> None:
        """A request of this size was read."""
        self._clear(size + size // SIZE_SHARE + CALL_BYTES)

    def complete(self, size: int) -> None:
        """A frame was read."""
        if len(self.frames) == 1:
            self._clear(self.count + self._traffic.passed - self._passed)
        else:
            self.read(size)

    def look(self, now_s: float) -> int:
        """How many bytes came at least `AGE_S` ago and were not read, beyond the slack."""
        returned = self._traffic.returned
        confirmed = (returned - self._returned) // ANSWER_SHARE
        self._returned += confirmed * ANSWER_SHARE
        pings = int((now_s - self._looked_s) * PINGS_BYTES_PER_S)
        self._looked_s += pings / PINGS_BYTES_PER_S
        self._clear(confirmed + pings)
        if now_s - self._marked_s >= AGE_S:
            self._marked_s, self._earlier_mark, self._mark = now_s, self._mark, self._passed
        return max(0, self.count - (self._passed - self._earlier_mark) - SLACK_BYTES)

    def refuse(self, refusal: PopError) -> None:
        """End the streams on which a frame may be half sent."""
        for each in self.frames:
            each.refuse(refusal)

    @property
    def waits(self) -> bool:
        """Whether a frame may be half sent."""
        return any(each.waits for each in self.frames)

    def _clear(self, amount: int) -> None:
        passed = self._traffic.passed
        self.count = max(0, self.count + passed - self._passed - amount)
        self._passed = passed


class Frames(Generic[Request]):
    """The frames of one stream, as `read` decodes them. Use it with `with`; that raises the refusal which ended it."""

    def __init__(self, call: Call, read: Read[Request], unread: Unread | None, left: Callable[[], None]) -> None:
        """`unread`: of the stream's connection, where that is known. `left` is called in the end."""
        self.refusal: PopError | None = None
        self.waits = False
        self._call = call
        self._read = read
        self._unread = unread
        self._left = left
        self._task = asyncio.current_task()

    def __aiter__(self) -> Frames[Request]:
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

    def __enter__(self) -> Frames[Request]:
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
