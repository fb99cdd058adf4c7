"""Bytes that no client should send to an HTTP/2 connection, and what must hold whatever they are.

Inputs begin as a legal conversation of random frames, and are then damaged; so they reach deep into the parsers. Each
input has a seed, by which a failure is found again: `fuzz(seed)`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

from hpack import Decoder, Encoder
from hpack.exceptions import HPACKError

from popserver.http2.connection import Connection
from popserver.http2.frames import ConnectionFailure, ErrorCode
from popserver.http2.headers import HeaderDecoder, RequestHead
from popserver.http2.stream import Stream

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAMS_MAX = 20
FRAMES_MAX = 30
# What a connection may keep of one input, beside what the input itself is: blocks and rests are at most a frame.
REST_BYTES_MAX = 128 * 1024
_OPENING = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a.b/C"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
]
_VALUES = (0, 1, 2, 5, 255, 16_383, 16_384, 65_535, 65_536, (1 << 24) - 1, 1 << 24, (1 << 31) - 1, 1 << 31, 0xFFFFFFFF)


class Answering:
    """A listener that answers each request at a random moment, in a random way."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.connection = Connection(self, STREAMS_MAX)
        self.received = self.opened_count = self.closed_count = 0

    def opened(self, stream: Stream, head: RequestHead) -> None:
        assert head.path or head.is_too_long
        assert len(self.connection.streams) <= STREAMS_MAX
        self.opened_count += 1
        stream.listener = _Call(self, stream)
        if self.dice.random() < 0.3:
            stream.listener.answer()

    def was_reset(self) -> None: ...

    def acknowledged(self, ping: bytes) -> None:
        assert len(ping) == 8


class _Call:
    def __init__(self, owner: Answering, stream: Stream) -> None:
        self._owner = owner
        self._stream = stream
        self._has_ended = self._is_closed = self._is_answered = False

    def received(self, data: bytes) -> None:
        assert not self._has_ended
        assert not self._is_closed
        self._owner.received += len(data)
        if self._owner.dice.random() < 0.1:
            self._owner.connection.grant(self._stream, len(data))

    def ended(self) -> None:
        assert not self._has_ended
        self._has_ended = True
        if not self._is_closed:
            self.answer()

    def drained(self) -> None: ...

    def closed(self, *, by_client: bool) -> None:
        assert not self._is_closed
        self._is_closed = True
        self._owner.closed_count += 1

    def answer(self) -> None:
        connection, dice = self._owner.connection, self._owner.dice
        if self._is_answered:
            return
        self._is_answered = True
        connection.outgoing.begin(self._stream, b"\x88")
        if dice.random() < 0.5:
            connection.outgoing.send(self._stream, bytes(dice.choice((0, 1, 100, 70_000))))
        connection.outgoing.finish(self._stream, b"\x88")


def fuzz(seed: int) -> None:
    """One input. Raises AssertionError, or what the connection raises."""
    dice = random.Random(seed)
    data = conversation(dice)
    if dice.random() < 0.8:
        data = damaged(dice, data)
    feed(dice, data)


def feed(dice: random.Random, data: bytes) -> None:
    """Give the bytes to a new connection in random pieces, and check what must hold after each."""
    listener = Answering(dice)
    connection = listener.connection
    position, now_s, sent = 0, 0.0, 0
    while position < len(data):
        size = dice.choice((1, 9, 100, 5_000, 1 << 30))
        connection.receive(data[position : position + size], now_s, dice.choice((1, 1 << 30)))
        position += size
        now_s += dice.random() * 0.01
        for _ in range(100):
            if not connection.frames.has_more or connection.failure is not None:
                break
            connection.receive(b"", now_s)
        if dice.random() < 0.1:
            _act(dice, connection)
        rounds = 0
        while not connection.outgoing.is_empty and rounds < 100:
            sent += sum(len(part) for part in connection.outgoing.flush())
            rounds += 1
        assert rounds < 100, "the connection always has something to send"
        assert len(connection.frames._data) <= REST_BYTES_MAX + size
        assert len(connection.streams) <= STREAMS_MAX
        assert listener.received <= position
        if connection.failure is not None:
            break
    connection.close()
    assert listener.opened_count == listener.closed_count
    assert not connection.streams


def _act(dice: random.Random, connection: Connection) -> None:
    """Something that the server does without being asked."""
    streams = list(connection.streams.values())
    match dice.randrange(4):
        case 0 if streams:
            connection.reset(dice.choice(streams), ErrorCode.CANCEL)
        case 1:
            connection.leave(finally_=dice.random() < 0.5)
        case 2:
            connection.ping(bytes(8))
        case 3 if streams:
            connection.grant(dice.choice(streams), dice.randrange(100_000))
        case _:
            return


def conversation(dice: random.Random) -> bytes:
    """A client's side of a connection, mostly legal."""
    encoder = Encoder()
    return PREFACE + frame(4, 0, 0, b"") + b"".join(_frames(dice, encoder))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _frames(dice: random.Random, encoder: Encoder) -> Iterator[bytes]:
    last = 1
    for _ in range(dice.randrange(FRAMES_MAX)):
        stream = dice.choice((last, last, last, max(1, last - 2), 0, 2))
        match dice.randrange(14):
            case 0 | 1 | 2:
                last += 2
                yield from _request(dice, encoder, last)
            case 3 | 4:
                body = dice.randbytes(dice.choice((0, 1, 5, 300, 16_384)))
                yield frame(0, dice.choice((0, 1)), stream, body)
            case 5:
                padding = dice.randrange(20)
                yield frame(0, 8 | dice.choice((0, 1)), stream, bytes((padding,)) + bytes(dice.randrange(40)))
            case 6:
                settings = b"".join(
                    struct.pack(">HL", dice.randrange(9), dice.choice(_VALUES)) for _ in range(dice.randrange(4))
                )
                yield frame(4, 0, 0, settings)
            case 7:
                yield frame(8, 0, dice.choice((0, stream)), struct.pack(">L", dice.choice(_VALUES)))
            case 8:
                yield frame(3, 0, stream, struct.pack(">L", dice.randrange(15)))
            case 9:
                yield frame(6, dice.choice((0, 1)), 0, dice.randbytes(8))
            case 10:
                yield frame(2, 0, stream, struct.pack(">LB", dice.choice(_VALUES), 1))
            case 11:
                # Trailers, or headers of a stream that is closed.
                block = encoder.encode([dice.choice((("x-end", "1"), ("Upper", "x"), (":path", "/")))])
                yield frame(1, 4 | dice.choice((0, 1)), stream, block)
            case 12:
                # A length that the kind does not have, or no frame has.
                size = dice.choice((0, 1, 3, 4, 5, 6, 7, 8, 12, 16_385, 65_535, 65_536))
                yield frame(dice.randrange(10), dice.randrange(64), dice.choice((0, stream)), bytes(size))
            case _:
                # Kinds that nobody knows, GOAWAY, PUSH_PROMISE, lone CONTINUATION.
                yield frame(dice.choice((5, 7, 9, 10, 200, 255)), dice.randrange(256), stream, dice.randbytes(9))


def _request(dice: random.Random, encoder: Encoder, stream: int) -> Iterator[bytes]:
    """HEADERS, in one frame or several."""
    more = [(f"x-{dice.randrange(50)}", "v" * dice.choice((0, 1, 30, 3_000))) for _ in range(dice.randrange(5))]
    if dice.random() < 0.2:
        more.append(dice.choice((("content-length", "7"), ("Upper", "x"), ("te", "gzip"), (":late", "x"), ("", "x"))))
    if dice.random() < 0.2:
        encoder.header_table_size = dice.choice((0, 100, 4_096, 5_000))
    block = encoder.encode([*_OPENING, *more], huffman=dice.random() < 0.5)
    flags = dice.choice((0, 0, 1))
    if dice.random() < 0.2:
        flags |= 0x20
        block = struct.pack(">LB", dice.choice((0, 1, stream)), 9) + block
    pieces = dice.choice((1, 1, 1, 2, 5))
    size = max(1, -(-len(block) // pieces))
    parts = [block[start : start + size] for start in range(0, len(block), size)]
    for number, part in enumerate(parts):
        ends = 4 if number == len(parts) - 1 else 0
        yield frame(9 if number else 1, (flags if not number else 0) | ends, stream, part)


def damaged(dice: random.Random, data: bytes) -> bytes:
    """The same with some bytes changed, lost, doubled or put elsewhere; mostly behind the preface."""
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 10))):
        if len(changed) < 40:
            break
        place = dice.randrange(0 if dice.random() < 0.02 else 33, len(changed))
        length = dice.choice((1, 1, 2, 9, 50))
        match dice.randrange(6):
            case 0:
                changed[place] = dice.randrange(256)
            case 1:
                changed[place] ^= 1 << dice.randrange(8)
            case 2:
                del changed[place : place + length]
            case 3:
                changed[place:place] = dice.randbytes(length)
            case 4:
                changed[place:place] = changed[max(33, place - length) : place]
            case _:
                del changed[place:]
    return bytes(changed)


# Header blocks alone.


def fuzz_blocks(seed: int) -> None:
    """Some blocks to one decoder. What hpack's decoder says of the same blocks must be said here too."""
    dice = random.Random(seed)
    encoder, theirs, ours = Encoder(), Decoder(max_header_list_size=1 << 30), HeaderDecoder()
    is_legal = True
    for _ in range(dice.randrange(1, 12)):
        if dice.random() < 0.1:
            encoder.header_table_size = dice.choice((0, 60, 100, 4_096))
        block = encoder.encode(list(_fields(dice)), huffman=dice.random() < 0.5)
        if dice.random() < 0.2:
            block, is_legal = _damaged_block(dice, block), False
        try:
            expected = [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)]
        except (HPACKError, UnicodeDecodeError):
            expected = None
        try:
            decoded = ours.decode(block)
        except ConnectionFailure:
            # hpack accepts longer integers.
            assert not is_legal, block.hex()
            return
        assert expected is not None, f"hpack refuses {block.hex()}"
        if decoded is not None:
            found = [(each.name.encode("latin-1"), each.value.encode("latin-1")) for each in decoded]
            assert found == expected


def _fields(dice: random.Random) -> Iterator[tuple[bytes, bytes]]:
    yield from ((name.encode(), value.encode()) for name, value in _OPENING)
    for _ in range(dice.randrange(8)):
        name = dice.choice((b"accept", b"x-mq-request-id", b"x-%d" % dice.randrange(99), dice.randbytes(3)))
        yield name, dice.randbytes(dice.choice((0, 1, 20, 200))) if dice.random() < 0.5 else b"v%d" % dice.randrange(9)


def _damaged_block(dice: random.Random, block: bytes) -> bytes:
    changed = bytearray(block)
    for _ in range(dice.choice((1, 1, 3))):
        place = dice.randrange(len(changed) + 1)
        match dice.randrange(4):
            case 0:
                changed[place:place] = dice.randbytes(dice.choice((1, 2, 6)))
            case 1:
                del changed[place : place + 1]
            case 2:
                del changed[place:]
            case _:
                changed[place : place + 1] = bytes((dice.choice((0x20, 0x3F, 0x7F, 0x80, 0xFF, 0x0F, 0x3E)),))
    return bytes(changed)
