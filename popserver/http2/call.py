"""A gRPC call on an HTTP/2 stream: messages with a length prefix, metadata, deadline, status."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol

import structlog

from popserver.http2 import headers
from popserver.http2.connection import Connection
from popserver.http2.frames import WINDOW_AT_START, ErrorCode
from popserver.http2.headers import RequestHead
from popserver.http2.stream import Stream, Waiting
from popserver.transport.call import Encodable, EndCode, EndStatus, Route, Write

PREFIX_BYTES = 5  # a byte that says whether the message is compressed, and its length
# A streamed answer waits for the client when so much of it is not sent yet.
PENDING_BYTES_MAX = 64 * 1024
# Chunks of a request that are smaller are joined, up to this size.
SMALL_CHUNK_BYTES, JOINED_CHUNK_BYTES = 256, 4 * 1024
# A call that is refused at once ends only when the client has sent something, or after so long. grpc.aio, which the
# official Python client uses, reports an internal error otherwise, because it cannot write on a stream that has ended.
FIRST_BYTES_S = 0.1
_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_UNIT_S = {"H": 3_600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

log = structlog.get_logger("popserver.http2")


class StreamGone(Exception):
    """The client ended the call, or its connection is lost."""


class CallConnection(Protocol):
    """The connection of a call."""

    peer: str
    connection: Connection

    def flush_soon(self) -> None:
        """Send what the connection has to send, together with what else is written in this round of the event loop."""

    def keeps(self, amount: int) -> None:
        """Count bytes that have arrived and that no handler has asked for; a negative amount when one has."""

    @property
    def is_gone(self) -> bool:
        """Whether the connection is lost, or has failed."""

    def was_reset(self) -> None:
        """The client has made the server reset a stream."""

    def waits(self, waiting: Waiting) -> None:
        """The client must do something: send the rest of a request, or read an answer."""

    def stops_waiting(self, waiting: Waiting) -> None:
        """The client has done it, or the call does not wait for it any more."""

    def signed(self) -> None:
        """A caller of this connection has signed."""

    def hang_up(self, why: str) -> None:
        """Close the connection."""


class Http2Call:
    """One call: `transport.call.Call` for its handler, and a listener for its connection."""

    Disconnected: ClassVar[type[Exception]] = StreamGone

    __slots__ = (
        "_arrived",
        "_callbacks",
        "_chunks",
        "_deadline_s",
        "_ending",
        "_has_head",
        "_has_received",
        "_is_granted",
        "_kept",
        "_reader",
        "_route",
        "_size",
        "_status",
        "_stream",
        "_writers",
        "blocked_s",
        "finished_s",
        "headers",
        "holder",
        "is_cancelled",
        "is_ended",
        "task",
    )

    def __init__(self, holder: CallConnection, stream: Stream, head: RequestHead, route: Route, now_s: float) -> None:
        self.holder = holder
        self.headers: Mapping[str, str | bytes] = headers.metadata(head.fields)
        self.is_cancelled = False
        self.is_ended = False  # the client sends no more
        self.task: asyncio.Task[None] | None = None
        self.finished_s: float | None = None  # when the handler returned
        self.blocked_s: float | None = None  # since when the handler waits for the client to read
        self._stream = stream
        self._route = route
        self._deadline_s = _deadline_s(head.fields.get("grpc-timeout"), now_s)
        self._chunks: list[bytes] = []
        self._arrived = 0  # bytes in the chunks
        self._kept = 0  # of them, bytes that count at the holder
        self._size: int | None = None  # of the next message
        self._is_granted = False  # the next message may arrive in full
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[], None]] = []
        self._has_head = False
        self._has_received = False
        self._ending: asyncio.TimerHandle | None = None  # sends the end of a call that was not begun
        self._status: EndStatus | None = None

    # For handlers.

    @property
    def peer(self) -> str:
        return self.holder.peer

    def remaining_ms(self) -> int | None:
        if self._deadline_s is None:
            return None
        return int((self._deadline_s - asyncio.get_running_loop().time()) * 1_000)

    def signed(self) -> None:
        self.holder.signed()

    def hang_up(self, why: str) -> None:
        self.holder.hang_up(why)

    async def send_headers(self) -> None:
        self._begin()

    @property
    def write(self) -> Write:
        return self._write

    async def _write(self, frame: Encodable) -> None:
        if self._stream.is_closed or self.finished_s is not None or self.holder.is_gone:
            raise StreamGone
        self._send(frame)
        if self._stream.pending_bytes > PENDING_BYTES_MAX:
            drained: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers.append(drained)
            if self.blocked_s is None:
                self.blocked_s = asyncio.get_running_loop().time()
            await drained
            if self._stream.is_closed:
                raise StreamGone

    def end(self, status: EndStatus) -> None:
        self._status = status

    def on_end(self, callback: Callable[[], None]) -> None:
        if self._stream.is_closed:
            callback()
        else:
            self._callbacks.append(callback)

    # The next message.

    @property
    def size(self) -> int | None:
        """How many bytes the next message has; None as long as that is unknown."""
        if self._size is None and self._arrived >= PREFIX_BYTES:
            self._read_prefix()
        return self._size

    def take(self) -> bytes | None:
        """The next message; None if it is not complete."""
        size = self.size
        if size is None or self._arrived < size + PREFIX_BYTES:
            return None
        self.holder.stops_waiting(self)
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        rest = data[PREFIX_BYTES + size :]
        self._chunks = [rest] if rest else []
        self._arrived = len(rest)
        self.holder.keeps(self._arrived - self._kept)
        self._kept = self._arrived
        self._size, self._is_granted = None, False
        self._widen(WINDOW_AT_START)
        return data[PREFIX_BYTES : PREFIX_BYTES + size]

    async def next_size(self) -> int | None:
        """Wait for the size of the next message, in bytes; None after the last one."""
        while self.size is None:
            if self.is_ended:
                return None
            await self._wait()
        return self._size

    def grant(self) -> None:
        """Let the next message arrive in full. Its size is known, and there is memory for it."""
        assert self._size is not None
        self._is_granted = True
        self.holder.keeps(-self._kept)
        self._kept = 0
        self._widen(self._size + PREFIX_BYTES - self._arrived)

    async def next(self) -> bytes | None:
        """Wait for the rest of the next message; None if the client ends its side before."""
        while (data := self.take()) is None:
            if self.is_ended:
                return None
            await self._wait()
        return data

    def _widen(self, wanted: int) -> None:
        """Let the client send `wanted` bytes."""
        missing = wanted - self._stream.receive_window
        if missing > 0:
            self.holder.connection.grant(self._stream, missing)
            self.holder.flush_soon()

    def _read_prefix(self) -> None:
        if len(self._chunks[0]) < PREFIX_BYTES:
            self._chunks = [b"".join(self._chunks)]
        prefix = self._chunks[0]
        if prefix[0]:
            self.fail(EndStatus(EndCode.UNIMPLEMENTED, "the request is compressed; send it without compression"))
            self.is_ended = True
            return
        self._size = int.from_bytes(prefix[1:PREFIX_BYTES], "big")

    async def _wait(self) -> None:
        """Until more has arrived."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # For the connection.

    def received(self, data: bytes) -> None:
        self._has_received = True
        chunks = self._chunks
        if len(data) < SMALL_CHUNK_BYTES and chunks and len(chunks[-1]) < JOINED_CHUNK_BYTES:
            chunks[-1] += data  # an object for a few bytes costs more than they do
        else:
            chunks.append(data)
        self._arrived += len(data)
        if self._ending is not None:
            self._ending.cancel()
            self._end()
            return
        if not self._is_granted:
            self._kept += len(data)
            self.holder.keeps(len(data))
        self._wake()

    def ended(self) -> None:
        self.is_ended = True
        self.holder.stops_waiting(self)
        if self._ending is not None:
            self._ending.cancel()
            self._end()
        self._wake()

    def drained(self) -> None:
        self.blocked_s = None
        for writer in self._writers:
            if not writer.done():
                writer.set_result(None)
        self._writers.clear()

    def closed(self, *, by_client: bool) -> None:
        self.holder.stops_waiting(self)
        self.holder.keeps(-self._kept)
        self._kept = 0
        self._chunks.clear()
        self._arrived, self._size, self.is_ended = 0, None, True
        self._wake()
        self.drained()
        if by_client:
            self.is_cancelled = True
            if self.finished_s is None and self.task is not None:
                self.task.cancel()
        for callback in self._callbacks:
            callback()
        self._callbacks.clear()

    # The answer.

    async def run(self) -> None:
        """Run the handler and send what it returns."""
        try:
            answer = await self._route.handler(self)
            if answer is not None and self._status is None and self.finished_s is None and not self._stream.is_closed:
                self._send(answer)
        except asyncio.CancelledError:
            self.fail(EndStatus(EndCode.UNAVAILABLE, "the server is stopping; try another server, or this one later"))
        except Exception as error:  # noqa: BLE001
            if not self._stream.is_closed and not isinstance(error, StreamGone):
                log.error("call failed", peer=self.peer, reason=type(error).__name__)
            self.fail(EndStatus(EndCode.INTERNAL, "the server failed on this call"))
        else:
            self._finish()
        self.task = None

    def fail(self, status: EndStatus) -> None:
        """End the call with a status, whatever its handler does."""
        if self.finished_s is None:
            self._status = status
            self._finish()

    def expire(self, now_s: float) -> None:
        """End the call if its deadline has passed."""
        if self._deadline_s is not None and now_s > self._deadline_s and self.finished_s is None:
            self._abandon(EndStatus(EndCode.DEADLINE_EXCEEDED))

    def give_up(self) -> None:
        self.holder.stops_waiting(self)
        if self.finished_s is not None:
            self.reset()
            self.holder.was_reset()
            return
        self._abandon(EndStatus(EndCode.RESOURCE_EXHAUSTED, "too many calls have sent no request yet; send it at once"))

    def _abandon(self, status: EndStatus) -> None:
        """End the call with a status, and its handler."""
        self.fail(status)
        self.is_cancelled = True
        if self.task is not None:
            self.task.cancel()

    def reset(self) -> None:
        """End the call without a status."""
        self.holder.connection.reset(self._stream, ErrorCode.CANCEL)
        self.holder.flush_soon()

    def _begin(self) -> None:
        if not self._has_head:
            self._has_head = True
            self.holder.connection.outgoing.begin(self._stream, headers.OK)
            self.holder.flush_soon()

    def _send(self, frame: Encodable) -> None:
        data = self._route.encode(frame)
        self._begin()
        self.holder.connection.outgoing.send(self._stream, b"\0" + len(data).to_bytes(4, "big") + data)
        self.holder.flush_soon()

    def _finish(self) -> None:
        if self.finished_s is not None or self._stream.is_closed:
            return
        loop = asyncio.get_running_loop()
        self.finished_s = loop.time()
        if self.is_ended or self._has_received:
            self._end()
        else:
            self._ending = loop.call_later(FIRST_BYTES_S, self._end)

    def _end(self) -> None:
        self._ending = None
        if self._stream.is_closed:
            return
        status = self._status
        block = headers.DONE if status is None else headers.trailers(status.code, status.sentence)
        if not self._has_head:
            block = headers.OK + block
        self.holder.connection.outgoing.finish(self._stream, block)
        self.holder.flush_soon()
        if self.holder.connection.outgoing.must_wait(self._stream):
            self.holder.waits(self)


def _deadline_s(timeout: str | None, now_s: float) -> float | None:
    if timeout is None:
        return None
    found = _TIMEOUT.fullmatch(timeout)
    return None if found is None else now_s + int(found[1]) * _UNIT_S[found[2]]
