"""Receipt handles: opaque proofs of one hold.

A handle names the group, the message, the hold (64 random bits drawn at every grant, never a counter: rows come and
go) and the hold's own end. It is compared with the delivery's row in the statement that uses it; nothing here says
whether it is current.
"""

from __future__ import annotations

import binascii
import struct
from typing import NamedTuple

from popserver.domain.errors import InvalidReceiptHandle

_LAYOUT = struct.Struct(">BIqqq")
_VERSION = 1
_TEXT_LENGTH = 4 * -(-_LAYOUT.size // 3)  # base64 of the 29 bytes


class Receipt(NamedTuple):
    """What a receipt handle says."""

    group_id: int
    message_key: int
    hold_id: int
    ends_at_ms: int


def encode(receipt: Receipt) -> str:
    """The handle as the wire carries it: text of 40 characters."""
    return binascii.b2a_base64(_LAYOUT.pack(_VERSION, *receipt), newline=False).decode("ascii")


def decode(handle: str) -> Receipt:
    """Read a handle back; raise `InvalidReceiptHandle` for anything this server cannot have made."""
    try:
        if len(handle) != _TEXT_LENGTH:
            raise ValueError(f"{len(handle)} characters instead of {_TEXT_LENGTH}")
        version, *fields = _LAYOUT.unpack(binascii.a2b_base64(handle, strict_mode=True))
        if version != _VERSION:
            raise ValueError(f"version {version} instead of {_VERSION}")
    except (ValueError, binascii.Error, struct.error) as error:
        raise InvalidReceiptHandle(f"receipt handle '{handle[:48]}' is malformed: {error}") from None
    return Receipt(*fields)
