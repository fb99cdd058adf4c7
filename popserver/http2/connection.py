"""The server's side of one HTTP/2 connection, without input and output (RFC 9113).

`receive` takes what the client sent and notifies the listeners; `outgoing` has what is to be sent. Time is an argument.

A client may send 64 KiB on each stream; `grant` allows more. The window of the whole connection is so large that it
never holds a client up.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from popserver.http2 import frames
from popserver.http2.frame_budget import FrameBudget
from popserver.http2.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    PADDED,
    STREAM_LAST,
    WINDOW_AT_START,
    WINDOW_MAX,
    ConnectionFailure,
    ErrorCode,
    FrameReader,
    StreamFailure,
)
from popserver.http2.headers import FIELDS_BYTES_MAX, TABLE_BYTES, Field, HeaderDecoder, are_trailers, request_head
from popserver.http2.outgoing import FLUSH_BYTES, Outgoing
from popserver.http2.stream import NOBODY, ConnectionListener, Stream

BLOCK_BYTES_MAX = 65_536
CONNECTION_WINDOW = 1 << 30
STREAMS_PER_FRAME = 64  # a new window changes every stream; so many of them count as one frame
FRAMES_AT_ONCE = 500  # of one connection, before others have their turn
# Frames on streams that the server has reset may still be on their way.
RESETS_REMEMBERED = 1_000


class _Block(NamedTuple):
    """A header block that continues in the next frame."""

    stream: int
    flags: int
    data: bytearray


class Connection:
    """One connection. After a `failure` it takes nothing more: send what `outgoing` has, and `close` it."""

    def __init__(self, listener: ConnectionListener, streams_max: int) -> None:
        self.streams: dict[int, Stream] = {}
        self.failure: ConnectionFailure | None = None
        self.is_ready = False  # the client has sent its settings
        self.is_leaving = False  # the client opens no more streams
        self.frames = FrameReader()
        self.outgoing = Outgoing(self._answered)
        self.is_held = False  # the listener wants no more frames for now
        self._listener = listener
        self._streams_max = streams_max
        self._headers = HeaderDecoder()
        self._last = 0  # the highest stream of the client
        self._accepts = STREAM_LAST  # the highest stream that the server accepts
        self._block: _Block | None = None
        self._receive_window = CONNECTION_WINDOW
        self._stream_window = WINDOW_AT_START  # the client's setting, for new streams
        self._resets: dict[int, None] = {}  # streams that the server has reset, the oldest first
        self._budget = FrameBudget()
        self._now_s = 0.0
        self._opened = 0
        self._handlers = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_reset,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        )
        self.outgoing.put(
            frames.settings(
                {
                    frames.MAX_CONCURRENT_STREAMS: streams_max,
                    frames.MAX_FRAME_SIZE: frames.FRAME_BYTES_MAX,
                    frames.MAX_HEADER_LIST_SIZE: FIELDS_BYTES_MAX,
                }
            )
        )
        self.outgoing.put(frames.window_update(0, CONNECTION_WINDOW - WINDOW_AT_START))

    # What the client sends.

    def receive(self, data: bytes, now_s: float, streams_max: int = STREAM_LAST) -> None:
        """Handle some of what has arrived, with up to `streams_max` new streams. The rest waits for the next call."""
        if self.failure is not None:
            return
        self._now_s = now_s
        self._opened = 0
        try:
            self._receive(data, streams_max)
        except ConnectionFailure as failure:
            self.fail(failure)

    def _receive(self, data: bytes, streams_max: int) -> None:
        frame_reader, handlers = self.frames, self._handlers
        frame_reader.feed(data)
        for _ in range(FRAMES_AT_ONCE):
            frame = None if self._opened >= streams_max or self.is_held else frame_reader.next()
            if frame is None:
                return
            kind, flags, number, payload = frame
            if self._block is not None and kind != CONTINUATION:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "another frame stands within a header block")
            if not self.is_ready and kind != frames.SETTINGS:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "the first frame is no SETTINGS frame")
            if kind <= CONTINUATION:
                handlers[kind](flags, number, payload)
            else:
                self._count_idle_frame()

    def fail(self, failure: ConnectionFailure) -> None:
        """Take nothing more, and send the client the reason. Then `close` the streams."""
        self.failure = failure
        self.outgoing.put(frames.goaway(self._last, failure.code, failure.sentence))

    def close(self, count: int = STREAM_LAST) -> None:
        """The connection is lost: close so many of its streams."""
        for stream in list(islice(self.streams.values(), count)):
            self._forget(stream, by_client=True)

    def _count_idle_frame(self, weight: int = 1) -> None:
        self._budget.count(self._now_s, weight)

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        length = len(payload)
        self._receive_window -= length
        if self._receive_window < 0:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window")
        if self._receive_window < CONNECTION_WINDOW // 2:
            self.outgoing.put(frames.window_update(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        stream = self.streams.get(number)
        if stream is None or stream.is_received:
            self._on_data_too_late(number, stream)
            return
        stream.receive_window -= length
        if stream.receive_window < 0:
            self._break(stream, ErrorCode.FLOW_CONTROL_ERROR)
            return
        if flags & PADDED:
            payload = frames.without_padding(payload)
            self.grant(stream, length - len(payload))
        if stream.length_left is not None:
            stream.length_left -= len(payload)
        if payload:
            stream.listener.received(payload)
        elif not flags & END_STREAM:
            self._count_idle_frame()
        if flags & END_STREAM and not stream.is_closed:
            self._end(stream)

    def _on_data_too_late(self, number: int, stream: Stream | None) -> None:
        if stream is not None:
            self._break(stream, ErrorCode.STREAM_CLOSED)
            return
        self._check_used("DATA", number)
        self._count_idle_frame()
        if number not in self._resets:
            self.outgoing.put(frames.reset(number, ErrorCode.STREAM_CLOSED))

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        if not number & 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"a client's stream has an odd number, not {number}")
        if flags & PADDED:
            payload = frames.without_padding(payload)
        if flags & HAS_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, "a HEADERS frame is too short for its priority")
            frames.check_dependency(number, payload)
            payload = payload[5:]
        if flags & END_HEADERS:
            self._on_block(flags, number, payload)
        else:
            self._block = _Block(number, flags, bytearray(payload))

    def _on_continuation(self, flags: int, number: int, payload: bytes) -> None:
        block = self._block
        if block is None or block.stream != number:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a CONTINUATION frame continues no header block")
        self._count_idle_frame()
        block.data.extend(payload)
        if len(block.data) > BLOCK_BYTES_MAX:
            raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, f"a header block has at most {BLOCK_BYTES_MAX} bytes")
        if flags & END_HEADERS:
            self._block = None
            self._on_block(block.flags, number, bytes(block.data))

    def _on_block(self, flags: int, number: int, block: bytes) -> None:
        decoded = self._headers.decode(block)
        has_ended = bool(flags & END_STREAM)
        stream = self.streams.get(number)
        if stream is not None:
            self._on_trailers(stream, decoded, has_ended=has_ended)
        elif number > self._last:
            self._last = number
            self._open(number, decoded, has_ended=has_ended)
        elif number not in self._resets:
            raise ConnectionFailure(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {number}, which is closed")
        else:
            self._count_idle_frame()

    def _open(self, number: int, decoded: list[Field] | None, *, has_ended: bool) -> None:
        if number > self._accepts or len(self.streams) >= self._streams_max:
            self._count_idle_frame()
            self._refuse(number, ErrorCode.REFUSED_STREAM)
            return
        try:
            head = request_head(decoded)
            length = head.content_length
        except StreamFailure as failure:
            self._count_idle_frame()
            self._refuse(number, failure.code)
            return
        self._opened += 1
        stream = self.streams[number] = Stream(number, WINDOW_AT_START, self._stream_window)
        stream.length_left = length
        self._listener.opened(stream, head)
        if has_ended and not stream.is_closed:
            self._end(stream)

    def _on_trailers(self, stream: Stream, decoded: list[Field] | None, *, has_ended: bool) -> None:
        if stream.is_received:
            self._break(stream, ErrorCode.STREAM_CLOSED)
        elif has_ended and are_trailers(decoded):
            self._end(stream)
        else:
            self._break(stream, ErrorCode.PROTOCOL_ERROR)

    def _end(self, stream: Stream) -> None:
        """The client has ended its side."""
        if stream.length_left:
            self._break(stream, ErrorCode.PROTOCOL_ERROR)
            return
        stream.is_received = True
        stream.listener.ended()
        if stream.is_answered:
            self._forget(stream, by_client=False)

    def _on_priority(self, _flags: int, number: int, payload: bytes) -> None:
        self._count_idle_frame()
        frames.check_dependency(number, payload)

    def _on_reset(self, _flags: int, number: int, payload: bytes) -> None:
        self._check_used("RST_STREAM", number)
        stream = self.streams.get(number)
        if stream is None:
            self._count_idle_frame()
        else:
            self._forget(stream, by_client=True)
            self._listener.was_reset()

    def _on_settings(self, flags: int, _number: int, payload: bytes) -> None:
        if flags & ACK:
            self._count_idle_frame()
            return
        window = self._stream_window
        for kind, value in frames.SETTING.iter_unpack(payload):
            self._count_idle_frame()
            self._set(kind, value)
        if self._stream_window != window:
            self._count_idle_frame(len(self.streams) // STREAMS_PER_FRAME)
            for stream in self.streams.values():
                self._widen(stream, self._stream_window - window)
        self._count_idle_frame()
        self.outgoing.put(frames.SETTINGS_ACK)
        self.is_ready = True

    def _set(self, kind: int, value: int) -> None:
        if kind == frames.INITIAL_WINDOW_SIZE:
            if value > WINDOW_MAX:
                raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {value} bytes")
            self._stream_window = value
        elif kind == frames.MAX_FRAME_SIZE:
            if not frames.FRAME_BYTES_AT_START <= value <= frames.FRAME_BYTES_LARGEST:
                raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"frames of at most {value} bytes")
            self.outgoing.frame_bytes = min(value, FLUSH_BYTES)
        elif kind == frames.HEADER_TABLE_SIZE and value < TABLE_BYTES:
            self.outgoing.shrink_table()
        elif kind == frames.ENABLE_PUSH and value > 1:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH is 0 or 1, not {value}")

    def _on_push_promise(self, _flags: int, _number: int, _payload: bytes) -> None:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "a client may not push")

    def _on_ping(self, flags: int, _number: int, payload: bytes) -> None:
        self._budget.count_update(self._now_s, self.outgoing.data_frames)
        if flags & ACK:
            self._listener.acknowledged(payload)
        else:
            self.outgoing.put(frames.frame(frames.PING, ACK, 0, payload))

    def _on_goaway(self, _flags: int, _number: int, _payload: bytes) -> None:
        self._count_idle_frame()
        self.is_leaving = True

    def _on_window_update(self, _flags: int, number: int, payload: bytes) -> None:
        self._budget.count_update(self._now_s, self.outgoing.data_frames)
        amount = int.from_bytes(payload, "big") & WINDOW_MAX
        if not number:
            self.outgoing.window += amount
            if not amount or self.outgoing.window > WINDOW_MAX:
                code = ErrorCode.FLOW_CONTROL_ERROR if amount else ErrorCode.PROTOCOL_ERROR
                raise ConnectionFailure(code, f"a window that grows by {amount} bytes")
            return
        self._check_used("WINDOW_UPDATE", number)
        stream = self.streams.get(number)
        if stream is None:
            return
        if not amount:
            self._break(stream, ErrorCode.PROTOCOL_ERROR)
        elif stream.send_window + amount > WINDOW_MAX:
            self._break(stream, ErrorCode.FLOW_CONTROL_ERROR)
        else:
            self._widen(stream, amount)

    def _widen(self, stream: Stream, amount: int) -> None:
        stream.send_window += amount
        if stream.send_window > WINDOW_MAX:
            raise ConnectionFailure(ErrorCode.FLOW_CONTROL_ERROR, f"a window of {stream.send_window} bytes")
        self.outgoing.widened(stream)

    def _break(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream on which the client broke a rule. That counts as a reset by the client."""
        self.reset(stream, code)
        self._listener.was_reset()

    def _check_used(self, kind: str, number: int) -> None:
        if number > self._last:
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"{kind} on stream {number}, which was never opened")

    # What the server does.

    def grant(self, stream: Stream, amount: int) -> None:
        """Let the client send so many more bytes on a stream."""
        if amount > 0 and not stream.is_received and not stream.is_closed:
            stream.receive_window += amount
            self.outgoing.put(frames.window_update(stream.id, amount))

    def reset(self, stream: Stream, code: ErrorCode) -> None:
        """End a stream at once. Its handler is notified that the client does not wait any more."""
        if not stream.is_closed:
            self._refuse(stream.id, code)
            self._forget(stream, by_client=True)

    def ping(self, payload: bytes) -> None:
        self.outgoing.put(frames.frame(frames.PING, 0, 0, payload))

    def leave(self, *, finally_: bool) -> None:
        """Accept no more streams. Not `finally_`: announce it, and still accept those that are on their way."""
        if finally_:
            self._accepts = self._last
        self.outgoing.put(frames.goaway(self._accepts, ErrorCode.NO_ERROR))

    @property
    def has_left(self) -> bool:
        """Whether the client knows that no more streams are accepted."""
        return self._accepts != STREAM_LAST

    def _answered(self, stream: Stream) -> None:
        stream.is_answered = True
        if not stream.is_received:
            # The client may stop sending: the answer does not depend on it.
            self._refuse(stream.id, ErrorCode.NO_ERROR)
        self._forget(stream, by_client=False)

    def _refuse(self, number: int, code: ErrorCode) -> None:
        self.outgoing.put(frames.reset(number, code))
        self._resets[number] = None
        if len(self._resets) > RESETS_REMEMBERED:
            del self._resets[next(iter(self._resets))]

    def _forget(self, stream: Stream, *, by_client: bool) -> None:
        del self.streams[stream.id]
        stream.is_closed = True
        self.outgoing.forget(stream)
        # A stream and its listener that name each other would stay in memory until the garbage collector runs.
        listener, stream.listener = stream.listener, NOBODY
        listener.closed(by_client=by_client)
