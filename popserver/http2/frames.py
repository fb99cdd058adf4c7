"""HTTP/2 frames: their numbers, and the bytes of those that a server sends (RFC 9113, sections 4, 6 and 7)."""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Length (its high byte and its low two), type, flags, stream.
HEADER = struct.Struct(">BHBBL")
HEADER_BYTES = HEADER.size
NUMBER = struct.Struct(">L")
SETTING = struct.Struct(">HL")

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

# Flags.
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = range(2, 7)
HEADER_TABLE_SIZE = 1

WINDOW_MAX = (1 << 31) - 1
WINDOW_AT_START = 65_535
FRAME_BYTES_AT_START = 16_384
FRAME_BYTES_LARGEST = (1 << 24) - 1
FRAME_BYTES_MAX = 65_535  # of a frame that the server accepts
STREAM_LAST = (1 << 31) - 1


class ErrorCode(IntEnum):
    """Why a stream or a connection ends. The numbers are those on the wire."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFailure(Exception):
    """The client broke a rule of HTTP/2, and the connection ends."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(f"{code.name}: {sentence}")
        self.code = code
        self.sentence = sentence


class StreamFailure(Exception):
    """The client broke a rule of HTTP/2, and the stream ends."""

    def __init__(self, code: ErrorCode, sentence: str) -> None:
        super().__init__(f"{code.name}: {sentence}")
        self.code = code


# By kind of frame: how many bytes its payload has, and whether it belongs to a stream or to the connection.
_BYTES = (None, None, 5, 4, None, None, 8, None, 4, None)
_IS_OF_STREAM = (True, True, True, True, False, True, False, False, None, True)
_NAMES = "DATA HEADERS PRIORITY RST_STREAM SETTINGS PUSH_PROMISE PING GOAWAY WINDOW_UPDATE CONTINUATION".split()


def check(kind: int, flags: int, number: int, length: int) -> None:
    """Check the size and the stream of a frame of a known kind. Raises `ConnectionFailure`."""
    size, is_of_stream = _BYTES[kind], _IS_OF_STREAM[kind]
    if is_of_stream is not None and is_of_stream != bool(number):
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"{_NAMES[kind]} on stream {number}")
    is_wrong = size is not None and length != size
    if kind == SETTINGS:
        is_wrong = length % SETTING.size != 0 or (bool(flags & ACK) and length > 0)
    elif kind == GOAWAY:
        is_wrong = length < 8
    if is_wrong:
        raise ConnectionFailure(ErrorCode.FRAME_SIZE_ERROR, f"{_NAMES[kind]} with {length} bytes")


class FrameReader:
    """Divides what a client sends into frames. The first frame follows the preface."""

    def __init__(self) -> None:
        self._data = b""
        self._position = 0
        self._has_preface = False

    def feed(self, data: bytes) -> None:
        """Add what has arrived."""
        rest = self._data[self._position :]
        self._data = rest + data if rest else data
        self._position = 0

    @property
    def has_more(self) -> bool:
        """Whether a whole frame is there."""
        left = len(self._data) - self._position - HEADER_BYTES
        return left >= 0 and left >= int.from_bytes(self._data[self._position : self._position + 3], "big")

    def next(self) -> tuple[int, int, int, bytes] | None:
        """Kind, flags, stream and payload of the next frame; None if it is not complete. Raises `ConnectionFailure`."""
        if not self._has_preface and not self._read_preface():
            return None
        data, start = self._data, self._position + HEADER_BYTES
        if len(data) < start:
            if len(data) == self._position:
                # An idle connection must not keep what it received last.
                self._data, self._position = b"", 0
            return None
        high, low, kind, flags, number = HEADER.unpack_from(data, self._position)
        length = high << 16 | low
        if length > FRAME_BYTES_MAX:
            raise ConnectionFailure(
                ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes, at most {FRAME_BYTES_MAX} are allowed"
            )
        end = start + length
        if len(data) < end:
            return None
        self._position = end
        number &= STREAM_LAST
        if kind <= CONTINUATION:
            check(kind, flags, number, length)
        return kind, flags, number, data[start:end]

    def _read_preface(self) -> bool:
        seen = self._data[: len(PREFACE)]
        if not PREFACE.startswith(seen):
            raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface")
        self._has_preface = len(seen) == len(PREFACE)
        if self._has_preface:
            self._position = len(PREFACE)
        return self._has_preface


def without_padding(payload: bytes) -> bytes:
    """The content of a padded frame. Raises `ConnectionFailure`."""
    if not payload or payload[0] >= len(payload):
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, "the padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def check_dependency(number: int, priority: bytes) -> None:
    """A stream must not depend on itself. Raises `ConnectionFailure`."""
    if NUMBER.unpack_from(priority)[0] & STREAM_LAST == number:
        raise ConnectionFailure(ErrorCode.PROTOCOL_ERROR, f"stream {number} depends on itself")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of less than 64 KiB."""
    return HEADER.pack(0, len(payload), kind, flags, stream) + payload


def head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """The header of a frame whose payload has `length` bytes."""
    return HEADER.pack(length >> 16, length & 0xFFFF, kind, flags, stream)


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*each) for each in values.items()))


def window_update(stream: int, amount: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(amount))


def reset(stream: int, code: ErrorCode) -> bytes:
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def goaway(last: int, code: ErrorCode, sentence: str = "") -> bytes:
    """`last`: the highest stream that the server has accepted or will accept."""
    return frame(GOAWAY, 0, 0, NUMBER.pack(last) + NUMBER.pack(code) + sentence.encode())


SETTINGS_ACK = frame(SETTINGS, ACK, 0)
