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

    def widened(self, stream: Stream) -> None:
        """The client takes more data of this stream."""
        if stream.pending_bytes:
            self._ready[stream] = None

    def forget(self, stream: Stream) -> None:
        """The stream is closed."""
        self._ready.pop(stream, None)
        stream.drop()

    @property
    def is_empty(self) -> bool:
        """Whether nothing can be sent now."""
        return not self._frames and (not self._ready or self.window <= 0)

    def flush(self) -> list[bytes | memoryview]:
        """What to send now. Call it again unless `is_empty`."""
        if self._ready:
            self._flush_streams()
        flushed, self._frames = self._frames, []
        return flushed

    def _flush_streams(self) -> None:
        room = FLUSH_BYTES
        for stream in list(self._ready):
            if stream.head is not None:
                self.put(frames.frame(frames.HEADERS, END_HEADERS, stream.id, stream.head))
                stream.head = None
            if stream.pending_bytes:
                room -= self._flush_data(stream, room)
            if stream.pending_bytes:
                # The others have their turn first. A stream whose window is used up waits for the client.
                del self._ready[stream]
                if stream.send_window > 0:
                    self._ready[stream] = None
                if room <= 0:
                    return
                continue
            del self._ready[stream]
            if stream.trailers is None:
                stream.listener.drained()
            else:
                self.put(frames.frame(frames.HEADERS, END_HEADERS | END_STREAM, stream.id, stream.trailers))
                self._answered(stream)

    def _flush_data(self, stream: Stream, room: int) -> int:
        """Send data of one stream; returns how much."""
        sent = 0
        while sent < room:
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
