"""What a connection has to send: frames in their order, and data as far as the client's windows allow it."""

from __future__ import annotations

from collections.abc import Callable

from popserver.http2 import frames
from popserver.http2.frames import END_HEADERS, END_STREAM, WINDOW_AT_START
from popserver.http2.stream import Stream

# `flush` returns about this much at a time, so that a slow client needs little memory.
FLUSH_BYTES = 256 * 1024
# A smaller frame, if it is not the last one of what is pending, is as small as the client's window.
FULL_BYTES = 1_024


class Outgoing:
    """The server's side of the streams of one connection."""

    def __init__(self, answered: Callable[[Stream], None]) -> None:
        """`answered` is called when the whole answer of a stream was handed out."""
        self.window = WINDOW_AT_START  # how many bytes of data the client takes, on all streams together
        self.frame_bytes = frames.FRAME_BYTES_AT_START  # of the largest frame that the client takes
        self.data_frames = 0  # handed out since the start, without those that a small window made small
        self._answered = answered
        self._frames: list[bytes | memoryview] = []
        self._ready: dict[Stream, None] = {}  # streams that have something to send
        self._blocked: dict[Stream, None] = {}  # streams that wait for the connection's window
        self._table_size = b""  # before the next header block

    def put(self, frame: bytes) -> None:
        """Send a complete frame."""
        self._frames.append(frame)

    def begin(self, stream: Stream, head: bytes) -> None:
        """Send the header block of an answer."""
        stream.head = head
        self._ready[stream] = None

    def send(self, stream: Stream, data: bytes) -> None:
        """Send a part of an answer, as far as the windows allow it now, and the rest later."""
        stream.append(data)
        self._ready[stream] = None

    def finish(self, stream: Stream, trailers: bytes) -> None:
        """End the answer with a header block, when everything pending was sent."""
        stream.trailers = trailers
        self._ready[stream] = None

    def must_wait(self, stream: Stream) -> bool:
        """Whether the client must read before everything pending can be sent."""
        return stream.pending_bytes > min(stream.send_window, self.window)

    def widened(self, stream: Stream) -> None:
        """The client takes more data of this stream."""
        if stream.pending_bytes:
            self._ready[stream] = None

    def forget(self, stream: Stream) -> None:
        """The stream is closed."""
        self._ready.pop(stream, None)
        self._blocked.pop(stream, None)
        stream.drop()

    def shrink_table(self) -> None:
        """The client has made its table of previous fields smaller. It must learn that the server uses none."""
        self._table_size = b"\x20"

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be sent now."""
        return not self._frames and not self._ready and (not self._blocked or self.window <= 0)

    def flush(self) -> list[bytes | memoryview]:
        """What to send now. Call it again unless `is_empty`."""
        if self._ready or self._blocked:
            self._flush_streams()
        flushed, self._frames = self._frames, []
        return flushed

    def _flush_streams(self) -> None:
        bytes_left = FLUSH_BYTES
        for stream in list(self._ready):
            bytes_left -= self._flush_stream(stream, bytes_left)
            if bytes_left <= 0:
                return
        while self._blocked and self.window > 0 and bytes_left > 0:
            bytes_left -= self._flush_stream(next(iter(self._blocked)), bytes_left)

    def _flush_stream(self, stream: Stream, bytes_left: int) -> int:
        """Send what is possible of one stream; returns how much data."""
        self._ready.pop(stream, None)
        self._blocked.pop(stream, None)
        if stream.head is not None:
            self._put_headers(stream, stream.head, END_HEADERS)
            stream.head = None
        sent = self._flush_data(stream, bytes_left) if stream.pending_bytes else 0
        if stream.pending_bytes:
            # The others have their turn first. A stream whose own window is used up waits for the client.
            if stream.send_window > 0:
                (self._ready if self.window > 0 else self._blocked)[stream] = None
        elif stream.trailers is None:
            stream.listener.drained()
        else:
            self._put_headers(stream, stream.trailers, END_HEADERS | END_STREAM)
            self._answered(stream)
        return sent

    def _put_headers(self, stream: Stream, block: bytes, flags: int) -> None:
        self.put(frames.frame(frames.HEADERS, flags, stream.id, self._table_size + block))
        self._table_size = b""

    def _flush_data(self, stream: Stream, bytes_left: int) -> int:
        """Send data of one stream; returns how much."""
        sent = 0
        while sent < bytes_left:
            size = min(stream.pending_bytes, stream.send_window, self.window, self.frame_bytes)
            if size <= 0:
                break
            self._frames.append(frames.head(size, frames.DATA, 0, stream.id))
            self._frames.append(stream.cut(size))
            stream.send_window -= size
            self.window -= size
            self.data_frames += not stream.pending_bytes or size >= FULL_BYTES
            sent += size
        return sent
