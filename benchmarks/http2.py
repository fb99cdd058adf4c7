"""HTTP/2 without a gRPC library, for clients that stop in the middle, never read, or reset at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from grpc import StatusCode

Headers = Sequence[tuple[str, str]]

ANSWER_BYTES_MAX = 4 * 1024  # how much of an answer is kept; its status comes first
_CHUNK = 16 * 1024
_NAMES = {str(code.value[0]): code.name for code in StatusCode}


class Stream:
    """One call; `ended` is set when the server has ended it, and `outcome` says how."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.answer = bytearray()
        self.received = 0
        self.ended = asyncio.Event()
        self.outcome = "OPEN"  # or the name of a gRPC status, RESET, CLOSED
        self.has_window = asyncio.Event()

    def end(self, outcome: str) -> None:
        if not self.ended.is_set():
            self.outcome = outcome
            self.ended.set()
            self.has_window.set()


class Connection(asyncio.Protocol):
    """A plaintext connection. Without `reads` it leaves received data in the flow-control window."""

    def __init__(self, *, reads: bool = True) -> None:
        self._http2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._transport: asyncio.Transport
        self._reads = reads
        self._streams: dict[int, Stream] = {}
        self._can_write = asyncio.Event()
        self._can_write.set()
        self.is_closed = False

    @classmethod
    async def to(cls, endpoint: str, address: str, *, reads: bool = True) -> Connection:
        """A connection from the local `address`. Raises OSError."""
        host, _, port = endpoint.rpartition(":")
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(reads=reads), host, int(port), local_addr=(address, 0))
        return made

    def call(self, path: str, headers: Headers = (), *, timeout_s: int | None = None) -> Stream:
        """Begin a call: send its headers. Raises `h2.exceptions.ProtocolError` if this is not possible."""
        stream = Stream(self._http2.get_next_available_stream_id())
        timeout = () if timeout_s is None else (("grpc-timeout", f"{timeout_s}S"),)
        self._http2.send_headers(stream.stream_id, [*opening(path), *timeout, *headers])
        self._streams[stream.stream_id] = stream
        self._flush()
        return stream

    async def send(self, stream: Stream, pieces: Iterable[bytes | memoryview], *, end: bool = True) -> None:
        """Send the bytes of a body as the server's window allows; stop if the server ends the call."""
        for chunk in _chunks(pieces):
            sent = 0
            while sent < len(chunk):
                size = min(len(chunk) - sent, await self._window(stream))
                if not size:
                    return
                self._http2.send_data(stream.stream_id, bytes(chunk[sent : sent + size]))
                sent += size
                self._flush()
                await self._can_write.wait()
        if end and not stream.ended.is_set() and not self.is_closed:
            self._http2.end_stream(stream.stream_id)
            self._flush()

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._http2.initiate_connection()
        self._flush()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._http2.receive_data(data)
        except h2.exceptions.ProtocolError:
            self._transport.abort()
            return
        for event in events:
            self._heard(event)
        self._flush()

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._can_write.set()
        for stream in self._streams.values():
            stream.end("CLOSED")

    def _heard(self, event: Any) -> None:
        if isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            for each in self._streams.values():
                each.has_window.set()
            return
        stream = self._streams.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, h2.events.DataReceived):
            stream.received += len(event.data)
            stream.answer += event.data[: ANSWER_BYTES_MAX - len(stream.answer)]
            if self._reads and event.flow_controlled_length:
                self._http2.acknowledge_received_data(event.flow_controlled_length, stream.stream_id)
        elif isinstance(event, h2.events.ResponseReceived | h2.events.TrailersReceived):
            status: str | None = dict(cast("Any", event.headers)).get("grpc-status")
            if status is not None:
                stream.end(_NAMES.get(status) or status)
        elif isinstance(event, h2.events.StreamReset):
            stream.end("RESET")
        elif isinstance(event, h2.events.StreamEnded):
            stream.end("ENDED")
        if stream.ended.is_set():
            self._streams.pop(stream.stream_id, None)

    async def _window(self, stream: Stream) -> int:
        """How many bytes may be sent now; 0 if the server has ended the call."""
        while not stream.ended.is_set() and not self.is_closed:
            size = self._http2.local_flow_control_window(stream.stream_id)
            if size > 0:
                return min(size, _CHUNK)
            stream.has_window.clear()
            await stream.has_window.wait()
        return 0

    def _flush(self) -> None:
        if not self.is_closed:
            self._transport.write(self._http2.data_to_send())


def opening(path: str) -> list[tuple[str, str]]:
    """The headers that every call begins with."""
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "popmq"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]


def framed(size: int) -> bytes:
    """The prefix of a message of `size` bytes in a call's body."""
    return b"\0" + size.to_bytes(4, "big")


def _chunks(pieces: Iterable[bytes | memoryview]) -> Iterator[memoryview]:
    for piece in pieces:
        view = memoryview(piece)
        for start in range(0, len(view), _CHUNK):
            yield view[start : start + _CHUNK]
