"""Header blocks (HPACK, RFC 7541): decoded for requests, written as constants for answers.

Official clients put the same fields into every call, except the time, an id and the signature. So the table of
previous fields keeps them decoded, and decoded strings of moderate length are remembered.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections import deque
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

from hpack.exceptions import HPACKDecodingError
from hpack.huffman_table import decode_huffman
from hpack.table import HeaderTable

from popserver.http2.frames import ConnectionFailure, ErrorCode, StreamFailure

TABLE_BYTES = 4_096  # of previous fields; what HTTP/2 assumes unless a setting says otherwise
# All fields of one call, as HTTP/2 counts them. Official clients send less than 1 KiB.
FIELDS_BYTES_MAX = 16_384
# With more than this the connection ends: a field of the table costs the client one byte, and the server much more.
DECODED_BYTES_MAX = 4 * FIELDS_BYTES_MAX
FIELD_BYTES = 32  # what each field counts beside its name and value
INTEGER_MAX = 1 << 28
REMEMBERED_BYTES_MAX = 128
REMEMBERED_MAX = 4_096


class Field(NamedTuple):
    """A header field. `size` is what it counts."""

    name: str
    value: str
    size: int


class RequestHead(NamedTuple):
    """The header fields of a request."""

    method: str
    path: str
    fields: dict[str, str]  # without the pseudo-headers; the last of several with one name
    is_too_long: bool = False  # the fields exceed `FIELDS_BYTES_MAX` and were dropped

    @property
    def is_grpc(self) -> bool:
        """Whether this is a call; what cannot be known counts as one."""
        has_grpc_type = self.fields.get("content-type", "").startswith("application/grpc")
        return self.is_too_long or (self.method == "POST" and has_grpc_type)

    @property
    def content_length(self) -> int | None:
        """How many bytes the body has; None if the client did not say. Raises `StreamFailure`."""
        value = self.fields.get("content-length")
        if value is None:
            return None
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            raise StreamFailure(ErrorCode.PROTOCOL_ERROR, f"the content-length '{value}' is no number")
        return int(value)


TOO_LONG = RequestHead("", "", {}, is_too_long=True)


def _field(name: bytes, value: bytes) -> Field:
    return Field(name.decode("latin-1"), value.decode("latin-1"), len(name) + len(value) + FIELD_BYTES)


_STATIC = tuple(_field(*each) for each in HeaderTable.STATIC_TABLE)
_STATIC_COUNT = len(_STATIC)


class HeaderDecoder:
    """Decodes the header blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._previous: deque[Field] = deque()  # the newest first
        self._size = 0
        self._limit = TABLE_BYTES

    def decode(self, block: bytes) -> list[Field] | None:
        """The fields of a block; None if they exceed `FIELDS_BYTES_MAX`. Raises `ConnectionFailure`."""
        try:
            return self._decode(block)
        except (IndexError, HPACKDecodingError):
            raise ConnectionFailure(ErrorCode.COMPRESSION_ERROR, "a header block cannot be decoded") from None

    def _decode(self, block: bytes) -> list[Field] | None:
        fields: list[Field] = []
        position, end, size = 0, len(block), 0
        while position < end:
            first = block[position]
            if first & 0x80:
                index, position = _integer(block, position, 0x7F)
                field = self._at(index)
            elif first & 0xE0 == 0x20:
                if fields or size:
                    raise ConnectionFailure(ErrorCode.COMPRESSION_ERROR, "a table size stands behind a field")
                position = self._resize(block, position)
                continue
            else:
                index, position = _integer(block, position, 0x3F if first & 0x40 else 0x0F)
                if index:
                    name = self._at(index).name
                else:
                    name, position = _string(block, position)
                value, position = _string(block, position)
                field = Field(name, value, len(name) + len(value) + FIELD_BYTES)
                if first & 0x40:
                    self._add(field)
            size += field.size
            if size <= FIELDS_BYTES_MAX:
                fields.append(field)
            elif size > DECODED_BYTES_MAX:
                raise ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, f"headers of more than {DECODED_BYTES_MAX} bytes")
        return fields if size <= FIELDS_BYTES_MAX else None

    def _at(self, index: int) -> Field:
        if index <= _STATIC_COUNT:
            if not index:
                raise IndexError
            return _STATIC[index - 1]
        return self._previous[index - _STATIC_COUNT - 1]

    def _add(self, field: Field) -> None:
        self._previous.appendleft(field)
        self._size += field.size
        if self._size > self._limit:
            self._shrink()

    def _shrink(self) -> None:
        while self._size > self._limit:
            self._size -= self._previous.pop().size

    def _resize(self, block: bytes, position: int) -> int:
        limit, position = _integer(block, position, 0x1F)
        if limit > TABLE_BYTES:
            raise ConnectionFailure(ErrorCode.COMPRESSION_ERROR, f"a table of {limit} bytes, at most {TABLE_BYTES}")
        self._limit = limit
        self._shrink()
        return position


def _integer(block: bytes, position: int, mask: int) -> tuple[int, int]:
    """The integer at `position`, and the position behind it."""
    value = block[position] & mask
    position += 1
    if value < mask:
        return value, position
    shift = 0
    while True:
        more = block[position]
        position += 1
        value += (more & 0x7F) << shift
        shift += 7
        if value > INTEGER_MAX or shift > 35:
            raise ConnectionFailure(ErrorCode.COMPRESSION_ERROR, f"an integer of {INTEGER_MAX} or more")
        if not more & 0x80:
            return value, position


def _string(block: bytes, position: int) -> tuple[str, int]:
    is_huffman = block[position] & 0x80
    length, position = _integer(block, position, 0x7F)
    end = position + length
    if end > len(block):
        raise IndexError
    data = block[position:end]
    if not is_huffman:
        return data.decode("latin-1"), end
    return (_remembered(data) if length <= REMEMBERED_BYTES_MAX else _text(data)), end


def _text(data: bytes) -> str:
    return decode_huffman(data).decode("latin-1")


_remembered = lru_cache(REMEMBERED_MAX)(_text)


# What a request's fields must be (RFC 9113, sections 8.2 and 8.3).

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
_PSEUDO = frozenset({":method", ":scheme", ":path", ":authority"})
_OF_CONNECTIONS = frozenset({"connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade"})


@lru_cache(REMEMBERED_MAX)
def _is_allowed(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in _OF_CONNECTIONS


def request_head(decoded: list[Field] | None) -> RequestHead:
    """Check the fields of a request. Raises `StreamFailure`."""
    if decoded is None:
        return TOO_LONG
    pseudo: dict[str, str] = {}
    fields: dict[str, str] = {}
    for name, value, _ in decoded:
        if name[:1] == ":":
            if fields or name in pseudo or name not in _PSEUDO:
                raise StreamFailure(ErrorCode.PROTOCOL_ERROR, f"the pseudo-header '{name}' is wrong here")
            pseudo[name] = value
        elif not _is_allowed(name) or (name == "te" and value != "trailers"):
            raise StreamFailure(ErrorCode.PROTOCOL_ERROR, f"the header '{name}' is not allowed in HTTP/2")
        else:
            fields[name] = value
    method, path = pseudo.get(":method"), pseudo.get(":path")
    if not method or not path or not pseudo.get(":scheme"):
        raise StreamFailure(ErrorCode.PROTOCOL_ERROR, "a request has a method, a scheme and a path")
    return RequestHead(method, path, fields)


def metadata(fields: dict[str, str]) -> dict[str, str | bytes]:
    """The fields of a request; the values of names that end in `-bin` are decoded."""
    if not any(name.endswith("-bin") for name in fields):
        return fields  # type: ignore[return-value]  # a dict of text is one of text or bytes, if nothing is written to it
    return {name: _bytes(value) if name.endswith("-bin") else value for name, value in fields.items()}


def _bytes(value: str) -> bytes:
    """What base64 encodes, with or without padding; nothing if it is not base64."""
    try:
        return b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return b""


def are_trailers(decoded: list[Field] | None) -> bool:
    """Whether a request may have these fields at its end."""
    return all(_is_allowed(name) for name, _, _ in decoded or ())


# Answers. They use no table, so a block is the same on every connection.

_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def _literal(name: str, value: str) -> bytes:
    return b"\0" + _written(name.encode()) + _written(value.encode())


def _written(data: bytes) -> bytes:
    length = len(data)
    if length < 0x7F:
        return bytes((length,)) + data
    rest, written = length - 0x7F, bytearray(b"\x7f")
    while rest >= 0x80:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
    return bytes(written) + data


# Encoded it fits into one frame, whatever its characters are.
SENTENCE_CHARACTERS_MAX = 1_300
OK = b"\x88" + _literal("content-type", "application/grpc") + _literal("grpc-accept-encoding", "identity")
DONE = _literal("grpc-status", "0")


def trailers(code: int, sentence: str) -> bytes:
    """The end of a call with gRPC's status code and a sentence."""
    message = _literal("grpc-message", quote(sentence[:SENTENCE_CHARACTERS_MAX], safe=_PRINTABLE)) if sentence else b""
    return _literal("grpc-status", str(code)) + message


def http_status(code: int) -> bytes:
    """The beginning of an answer to a request that is not gRPC."""
    return _literal(":status", str(code)) + _literal("content-type", "text/plain")
