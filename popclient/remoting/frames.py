"""Frames of RocketMQ's remoting protocol: what travels over one TCP connection, in both directions.

    length      4 bytes, of all that follows
    header      4 bytes: how the header is written (0: JSON), then its length in 3 bytes; then the header
    body        the rest

The header is JSON with a code, the number of the request (`opaque`), flags, a remark and fields of text. An answer has
the number of its request, and its code is 0 if all went well. Sources: RemotingCommand, NettyDecoder of RocketMQ 5.5.0.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

FRAME_MAX: Final = 16 << 20  # bytes; RocketMQ's own clients and servers have the same limit
PREFIX_BYTES: Final = 4
VERSION: Final = 513  # how RocketMQ 5.5.0 writes its version
OPAQUE_MAX: Final = 2**31 - 1
_JSON: Final = 0
_ANSWER: Final = 1  # of the flags


class MalformedFrame(ValueError):
    """These bytes are no frame that this client understands; the text says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A request, or an answer to one.

    code: which request it is; of an answer, 0 or what went wrong. opaque: the number that request and answer share.
    remark: words of a server for people. fields: arguments of the request, or values of the answer.
    """

    code: int
    opaque: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_answer: bool = False
    remark: str = ""


def encode(frame: Frame) -> bytes:
    """Raises MalformedFrame if it is longer than 16 MiB."""
    header: dict[str, Any] = {
        "code": frame.code,
        "language": "PYTHON",
        "version": VERSION,
        "opaque": frame.opaque,
        "flag": _ANSWER if frame.is_answer else 0,
        "extFields": dict(frame.fields),
        "serializeTypeCurrentRPC": "JSON",
    }
    if frame.remark:
        header["remark"] = frame.remark
    written = json.dumps(header).encode()
    length = PREFIX_BYTES + len(written) + len(frame.body)
    if length > FRAME_MAX:
        raise MalformedFrame(f"a frame of {length:,} bytes is longer than {FRAME_MAX:,}")
    return struct.pack(">II", length, len(written)) + written + frame.body


def length_of(prefix: bytes) -> int:
    """How many bytes follow these four. Raises MalformedFrame if no frame is so long, or so short."""
    (length,) = struct.unpack(">I", prefix)
    if not PREFIX_BYTES < length <= FRAME_MAX:
        raise MalformedFrame(f"a frame says that it has {length:,} bytes; it may have {FRAME_MAX:,}")
    return int(length)


def decode(content: bytes) -> Frame:
    """The frame whose bytes behind the length these are. Raises MalformedFrame, and nothing else."""
    if len(content) < PREFIX_BYTES:
        raise MalformedFrame(f"a frame ends after {len(content)} bytes, before its header")
    (prefix,) = struct.unpack(">I", content[:PREFIX_BYTES])
    kind, length = prefix >> 24, prefix & 0xFFFFFF
    end = PREFIX_BYTES + length
    if end > len(content):
        raise MalformedFrame(f"a header says that it has {length:,} bytes, in a frame of {len(content):,}")
    if kind != _JSON:
        raise MalformedFrame(f"a header is written in form {kind}, and not as JSON")
    return _of_header(_header(content[PREFIX_BYTES:end]), content[end:])


def _header(written: bytes) -> Mapping[str, Any]:
    try:
        header = json.loads(written)
    except (ValueError, RecursionError):
        raise MalformedFrame(f"a header is no JSON: {written[:40]!r}") from None
    if not isinstance(header, dict):
        raise MalformedFrame(f"a header is no JSON object: {written[:40]!r}")
    return header


def _of_header(header: Mapping[str, Any], body: bytes) -> Frame:
    fields = header.get("extFields") or {}
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise MalformedFrame("the fields of a header are not texts by their names")
    remark = header.get("remark") or ""
    if not isinstance(remark, str):
        raise MalformedFrame("the remark of a header is no text")
    return Frame(
        code=_whole(header, "code"),
        opaque=_whole(header, "opaque"),
        fields=fields,
        body=body,
        is_answer=bool(_whole(header, "flag") & _ANSWER),
        remark=remark,
    )


def _whole(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise MalformedFrame(f"{name} of a header is no whole number")
    return value
