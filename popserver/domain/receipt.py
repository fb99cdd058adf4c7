"""Receipt handles: opaque proofs of one hold.

A handle names the group, the message, the hold (64 random bits drawn at every grant, never a counter: rows come and
go) and the hold's own end. It is compared with the delivery's row in the statement that uses it; nothing here says
whether it is current.
"""

from __future__ import annotations

import base64
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
    """The handle as the wire carries it: URL-safe text of 40 characters."""
    packed = _LAYOUT.pack(_VERSION, *receipt)
    return base64.urlsafe_b64encode(packed).decode("ascii")


def decode(handle: str) -> Receipt:
    """Read a handle back; raise `InvalidReceiptHandle` for anything this server cannot have made."""
    try:
        if len(handle) != _TEXT_LENGTH:
            raise ValueError(f"{len(handle)} characters instead of {_TEXT_LENGTH}")
        version, *fields = _LAYOUT.unpack(base64.b64decode(handle, altchars=b"-_", validate=True))
        if version != _VERSION:
            raise ValueError(f"version {version} instead of {_VERSION}")
    except (ValueError, binascii.Error, struct.error) as error:
        raise InvalidReceiptHandle(f"receipt handle '{handle[:48]}' is malformed: {error}") from None
    return Receipt(*fields)
