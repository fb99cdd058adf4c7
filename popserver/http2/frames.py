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
STREAM_LAST = (1 << 31) - 1
PING_BYTES = 8


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
