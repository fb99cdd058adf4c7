"""Handles that clients get and bring back: receipts, recall handles, transaction ids; and attempt ids."""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
import zlib
from contextlib import suppress
from typing import NamedTuple

from popserver.model.errors import BadRequest, InvalidReceiptHandle

# Receipt handles: opaque proofs of one hold.
#
# A handle names the group, the message, the hold (64 random bits drawn at every grant, never a counter: rows come and
# go), the hold's own end, and a few bits of the message's id. It is compared with the delivery's row in the statement
# that uses it; nothing here says whether it is current. The bits show, without a look at the message, that a client
# has mixed up the handles of two messages.

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
    id_bits: int = 0  # of the message's id, 1 to 32,767; 0 in handles of servers that did not put any there


def encode_receipt(receipt: Receipt, message_id: str | None = None) -> str:
    """The handle as the wire carries it: text of 40 characters. `message_id`: of the message, where it is new."""
    version = _VERSION_IN_ORDER if receipt.in_order else _VERSION
    id_bits = receipt.id_bits if message_id is None else zlib.crc32(message_id.encode()) & _ID_MASK or 1
    end = id_bits << _TIME_BITS | receipt.ends_at_ms
    return binascii.b2a_base64(_LAYOUT.pack(version, *receipt[:3], end), newline=False).decode("ascii")


def decode_receipt(handle: str, message_id: str = "") -> Receipt:
    """Read a handle back.

    Raise `InvalidReceiptHandle` for anything this server cannot have made, and for a handle that was given with another
    message than `message_id`; a blank id names none.
    """
    try:
        if len(handle) != _TEXT_LENGTH:
            raise ValueError(f"{len(handle)} characters instead of {_TEXT_LENGTH}")
        packed = binascii.a2b_base64(handle, strict_mode=True)
        version, group_id, message_key, hold_id, end = _LAYOUT.unpack(packed)
        if version not in VERSIONS:
            raise ValueError(f"version {version} instead of {_VERSION} or {_VERSION_IN_ORDER}")
    except (ValueError, binascii.Error, struct.error) as error:
        raise InvalidReceiptHandle(f"receipt handle '{handle[:48]}' is malformed: {error}") from None
    id_bits = end >> _TIME_BITS & _ID_MASK
    if id_bits and message_id.strip() and id_bits != (zlib.crc32(message_id.encode()) & _ID_MASK or 1):
        raise InvalidReceiptHandle(
            f"the receipt handle was not given with message '{message_id[:64]}', but with another one; send each"
            " message's id with its own handle, or no id"
        )
    return Receipt(group_id, message_key, hold_id, end & _TIME_MASK, version == _VERSION_IN_ORDER, id_bits)


# What an attempt id is kept as: it names a receive only to the caller that made it.
#
# A ReceiveMessage belongs to its client; where callers sign, to the user's client. A bulk receive is repeated, renewed
# and acknowledged by any process of one user: the workers of a Spark stream have no client id in common. Where callers
# do not sign, any caller that knows the attempt id of a bulk receive may use it.

# Neither a client's id nor a user's access key has one, nor an attempt id.
_SEPARATOR = "\n"


def attempt_of_client(client_id: str, attempt_id: str | None) -> str | None:
    """The attempt id of a client's receive, as it is kept; None for a receive that has none."""
    return None if attempt_id is None else f"{client_id}{_SEPARATOR}{attempt_id}"


def attempt_of_user(user: str, attempt_id: str) -> str:
    """The attempt id of a user's bulk receive, as it is kept; `user` is empty where callers do not sign."""
    return f"{_SEPARATOR}{user}{_SEPARATOR}{attempt_id}"


def attempt_as_sent(kept: str) -> str:
    """The attempt id as its caller wrote it."""
    return kept.rpartition(_SEPARATOR)[2]


# Recall handles: what a delayed message is taken back by (protocol 8.2).
#
# The layout is the field's own, so that tools which read it find what they expect: URL-safe base64 of five words,
# "v1", topic, broker name, delivery time in ms, message id.

_RECALL_VERSION = "v1"
_LENGTH_MAX = 2_048


class RecallHandle(NamedTuple):
    """What a recall handle says. Which broker it names means nothing: every server of a store can recall."""

    topic: str
    broker_name: str
    deliver_at_ms: int
    message_id: str


def encode_recall(recall: RecallHandle) -> str:
    """The handle as the wire carries it."""
    words = (_RECALL_VERSION, recall.topic, recall.broker_name, str(recall.deliver_at_ms), recall.message_id)
    return base64.urlsafe_b64encode(" ".join(words).encode()).decode("ascii")


def decode_recall(handle: str) -> RecallHandle:
    """Read a handle back; raise `BadRequest` for anything that is none."""
    try:
        if not 0 < len(handle) <= _LENGTH_MAX:
            raise ValueError(f"it has {len(handle)} characters")
        text = base64.b64decode(handle.encode("ascii"), altchars=b"-_", validate=True).decode()
        version, topic, broker_name, deliver_at_ms, message_id = text.split(" ", 4)
        if version != _RECALL_VERSION:
            raise ValueError(f"version '{version[:8]}' instead of {_RECALL_VERSION}")
        if not deliver_at_ms.isascii() or not deliver_at_ms.isdecimal() or len(deliver_at_ms) > 15:
            raise ValueError(f"'{deliver_at_ms[:16]}' is no delivery time")
    except (ValueError, binascii.Error) as error:
        raise BadRequest(
            f"recall handle '{handle[:48]}' is malformed ({error});"
            " give the one that the delayed message was answered with"
        ) from None
    return RecallHandle(topic, broker_name, int(deliver_at_ms), message_id)


def transaction_id_of(topic_id: int, message_id: bytes, drawn: bytes) -> str:
    """The id of a half message's transaction: eight drawn bytes, and a digest of them with the message's id.

    Drawn, not counted: one that is rolled back and sent again is another transaction. By the digest an id can be told
    from a wrong one when the transaction itself is not stored any more.
    """
    named = drawn + topic_id.to_bytes(8, "big") + message_id
    return (drawn + hashlib.blake2b(named, digest_size=4).digest()).hex().upper()


def is_transaction_of(transaction_id: str, topic_id: int, message_id: bytes) -> bool:
    """Whether the id may have been given to that message."""
    with suppress(ValueError):
        return transaction_id == transaction_id_of(topic_id, message_id, bytes.fromhex(transaction_id[:16]))
    return False


NO_HOLD = 0  # hold ids are 63 random bits
