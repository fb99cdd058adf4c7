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
_VERSION_IN_ORDER = 2  # of a message in a message group
_TEXT_LENGTH = 4 * -(-_LAYOUT.size // 3)  # base64 of the 29 bytes


class Receipt(NamedTuple):
    """What a receipt handle says."""

    group_id: int
    message_key: int
    hold_id: int
    ends_at_ms: int
    in_order: bool = False  # the message is in a message group, so that its end is a matter of the whole group


def encode(receipt: Receipt) -> str:
    """The handle as the wire carries it: text of 40 characters."""
    version = _VERSION_IN_ORDER if receipt.in_order else _VERSION
    return binascii.b2a_base64(_LAYOUT.pack(version, *receipt[:4]), newline=False).decode("ascii")


def decode(handle: str) -> Receipt:
    """Read a handle back; raise `InvalidReceiptHandle` for anything this server cannot have made."""
    try:
        if len(handle) != _TEXT_LENGTH:
            raise ValueError(f"{len(handle)} characters instead of {_TEXT_LENGTH}")
        packed = binascii.a2b_base64(handle, strict_mode=True)
        version, group_id, message_key, hold_id, ends_at_ms = _LAYOUT.unpack(packed)
        if version not in (_VERSION, _VERSION_IN_ORDER):
            raise ValueError(f"version {version} instead of {_VERSION} or {_VERSION_IN_ORDER}")
    except (ValueError, binascii.Error, struct.error) as error:
        raise InvalidReceiptHandle(f"receipt handle '{handle[:48]}' is malformed: {error}") from None
    return Receipt(group_id, message_key, hold_id, ends_at_ms, version == _VERSION_IN_ORDER)
