"""Receipt handles: opaque proofs of one hold.

A handle names the group, the message, the hold (64 random bits drawn at every grant, never a counter: rows come and
go), the hold's own end, and a few bits of the message's id. It is compared with the delivery's row in the statement
that uses it; nothing here says whether it is current. The bits show, without a look at the message, that a client has
mixed up the handles of two messages.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from typing import NamedTuple

from popserver.domain.errors import InvalidReceiptHandle

_LAYOUT = struct.Struct(">BIqqq")
# A time needs 48 bits. The bits of the id stand above it, where older servers and the SQL function popmq_ack find a
# hold that ends later.
_TIME_BITS = 48
_TIME_MASK = (1 << _TIME_BITS) - 1
_ID_MASK = 0x7FFF
_VERSION = 1
_VERSION_IN_ORDER = 2  # of a message in a message group
VERSIONS = (_VERSION, _VERSION_IN_ORDER)
_TEXT_LENGTH = 4 * -(-_LAYOUT.size // 3)  # base64 of the 29 bytes


class Receipt(NamedTuple):
    """What a receipt handle says."""

    group_id: int
    message_key: int
    hold_id: int
    ends_at_ms: int
    in_order: bool = False  # the message is in a message group, so that its end is a matter of the whole group
    id_bits: int = 0  # of the message's id; 0 in handles of servers that did not put any there

    def check_message(self, message_id: str) -> None:
        """Raise `InvalidReceiptHandle` where a request names another message beside the handle; blank names none."""
        if message_id.strip() and self.id_bits not in (0, bits_of(message_id)):
            raise InvalidReceiptHandle(
                f"the receipt handle was not given with message '{message_id[:64]}', but with another one; send each"
                " message's id with its own handle, or no id"
            )


def bits_of(message_id: str) -> int:
    """1 to 32,767."""
    return zlib.crc32(message_id.encode()) & _ID_MASK or 1


def encode(receipt: Receipt, message_id: str | None = None) -> str:
    """The handle as the wire carries it: text of 40 characters. `message_id`: of the message, where it is new."""
    version = _VERSION_IN_ORDER if receipt.in_order else _VERSION
    id_bits = receipt.id_bits if message_id is None else bits_of(message_id)
    end = id_bits << _TIME_BITS | receipt.ends_at_ms
    return binascii.b2a_base64(_LAYOUT.pack(version, *receipt[:3], end), newline=False).decode("ascii")


def decode(handle: str) -> Receipt:
    """Read a handle back; raise `InvalidReceiptHandle` for anything this server cannot have made."""
    try:
        if len(handle) != _TEXT_LENGTH:
            raise ValueError(f"{len(handle)} characters instead of {_TEXT_LENGTH}")
        packed = binascii.a2b_base64(handle, strict_mode=True)
        version, group_id, message_key, hold_id, end = _LAYOUT.unpack(packed)
        if version not in VERSIONS:
            raise ValueError(f"version {version} instead of {_VERSION} or {_VERSION_IN_ORDER}")
    except (ValueError, binascii.Error, struct.error) as error:
        raise InvalidReceiptHandle(f"receipt handle '{handle[:48]}' is malformed: {error}") from None
    in_order = version == _VERSION_IN_ORDER
    return Receipt(group_id, message_key, hold_id, end & _TIME_MASK, in_order, end >> _TIME_BITS & _ID_MASK)
