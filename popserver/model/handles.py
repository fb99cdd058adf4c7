"""Handles that the server gives to clients: receipt handles, recall handles, transaction ids. And attempt ids."""

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
# A handle has the group, the message, the hold's id, the end of the hold, and 15 bits from the message's id. The hold's
# id is random and new for every hold; a counter would repeat, because rows are deleted. The statement that uses a
# handle compares it with the delivery's row, so only the database knows whether it is current. The bits of the
# message's id show, without reading the message, that a client has mixed up the handles of two messages.

_LAYOUT = struct.Struct(">BIqqq")
# A time needs 48 bits. The bits of the message's id are above it. The SQL function popmq_ack reads the whole number: it
# sees an end that is too late, which does no harm, because it compares the hold's id with the row.
_TIME_BITS = 48
_TIME_MASK = (1 << _TIME_BITS) - 1
_ID_MASK = 0x7FFF
_VERSION = 1
_VERSION_IN_ORDER = 2  # of a message in a message group
VERSIONS = (_VERSION, _VERSION_IN_ORDER)
_TEXT_LENGTH = 4 * -(-_LAYOUT.size // 3)  # base64 of the 29 bytes


class Receipt(NamedTuple):
    """The content of a receipt handle."""

    group_id: int
    message_key: int
    hold_id: int
    ends_at_ms: int
    in_order: bool = False  # the message is in a message group, so its end concerns the whole group
    id_bits: int = 0  # from the message's id, 1 to 32,767; 0 if the handle has none


def encode_receipt(receipt: Receipt, message_id: str | None = None) -> str:
    """The handle for the wire: 40 characters. `message_id` is for a new handle; None keeps the receipt's `id_bits`."""
    version = _VERSION_IN_ORDER if receipt.in_order else _VERSION
    id_bits = receipt.id_bits if message_id is None else zlib.crc32(message_id.encode()) & _ID_MASK or 1
    end = id_bits << _TIME_BITS | receipt.ends_at_ms
    return binascii.b2a_base64(_LAYOUT.pack(version, *receipt[:3], end), newline=False).decode("ascii")


def decode_receipt(handle: str, message_id: str = "") -> Receipt:
    """Decode a handle.

    Raises `InvalidReceiptHandle` for text that no server can have made, and for a handle of another message than
    `message_id`. A blank `message_id` is not compared.
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


# Attempt ids are stored together with their caller, so that other callers cannot use them.
#
# The attempt id of a ReceiveMessage belongs to its client; if callers must sign, to the user's client. The attempt id
# of a bulk receive belongs to a user, because the workers of a Spark stream repeat, renew and ack it and have different
# client ids. If callers need not sign, any caller that knows the attempt id of a bulk receive may use it.

# This character is not allowed in client ids, access keys and attempt ids.
_SEPARATOR = "\n"


def attempt_of_client(client_id: str, attempt_id: str | None) -> str | None:
    """The stored form of a client's attempt id; None for a receive without one."""
    return None if attempt_id is None else f"{client_id}{_SEPARATOR}{attempt_id}"


def attempt_of_user(user: str, attempt_id: str) -> str:
    """The stored form of the attempt id of a bulk receive; `user` is empty if callers need not sign."""
    return f"{_SEPARATOR}{user}{_SEPARATOR}{attempt_id}"


def attempt_as_sent(kept: str) -> str:
    """The attempt id as its caller sent it, from the stored form."""
    return kept.rpartition(_SEPARATOR)[2]


# Recall handles, by which a producer recalls a delayed message (protocol 8.2).
#
# The layout is RocketMQ's, so that tools can read it: URL-safe base64 of five words, "v1", topic, broker name, delivery
# time in ms, message id.

_RECALL_VERSION = "v1"
_LENGTH_MAX = 2_048


class RecallHandle(NamedTuple):
    """The content of a recall handle. The broker's name is ignored, because every server can recall the message."""

    topic: str
    broker_name: str
    deliver_at_ms: int
    message_id: str


def encode_recall(recall: RecallHandle) -> str:
    """The handle for the wire."""
    words = (_RECALL_VERSION, recall.topic, recall.broker_name, str(recall.deliver_at_ms), recall.message_id)
    return base64.urlsafe_b64encode(" ".join(words).encode()).decode("ascii")


def decode_recall(handle: str) -> RecallHandle:
    """Decode a handle. Raises `BadRequest` for other text."""
    try:
        if not 0 < len(handle) <= _LENGTH_MAX:
            raise ValueError(f"it has {len(handle)} characters")
        text = base64.b64decode(handle.encode("ascii"), altchars=b"-_", validate=True).decode()
        version, topic, broker_name, deliver_at_ms, message_id = text.split(" ", 4)
        if version != _RECALL_VERSION:
            raise ValueError(f"version '{version[:8]}' instead of {_RECALL_VERSION}")
        if not deliver_at_ms.isascii() or not deliver_at_ms.isdecimal() or len(deliver_at_ms) > 15:
            raise ValueError(f"'{deliver_at_ms[:16]}' is not a delivery time")
    except (ValueError, binascii.Error) as error:
        raise BadRequest(
            f"recall handle '{handle[:48]}' is malformed ({error}); give the handle from the answer to the delayed"
            " message, or cancel the message by its id: popmq message cancel"
        ) from None
    return RecallHandle(topic, broker_name, int(deliver_at_ms), message_id)


def transaction_id_of(topic_id: int, message_id: bytes, drawn: bytes) -> str:
    """The id of a half message's transaction: eight random bytes, and a digest of them with the message's id.

    A message that is rolled back and sent again has another transaction id, so the bytes are random. With the digest a
    wrong id is recognized even if the transaction is no longer stored.
    """
    named = drawn + topic_id.to_bytes(8, "big") + message_id
    return (drawn + hashlib.blake2b(named, digest_size=4).digest()).hex().upper()


def is_transaction_of(transaction_id: str, topic_id: int, message_id: bytes) -> bool:
    """Whether this can be a transaction id of that message."""
    with suppress(ValueError):
        return transaction_id == transaction_id_of(topic_id, message_id, bytes.fromhex(transaction_id[:16]))
    return False


NO_HOLD = 0  # hold ids are 63 random bits
