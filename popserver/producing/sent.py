"""A message as a producer sent it: from protobuf to the server's own type.

This module refuses errors in the encoding; `model.message.check` checks the rest.
"""

from __future__ import annotations

from typing import Literal

from popproto.v2 import definition_pb2 as pb
from popserver.model.errors import (
    BadRequest,
    MessageCorrupted,
    MessagePropertiesTooLarge,
    MessagePropertyConflictWithType,
)
from popserver.model.message import BodyEncoding, Message, check_lite_topic, check_message_group
from popserver.model.names import Resource
from popserver.model.topic import MessageType
from popserver.transport.convert import BORN_AT_MS_MAX, DIGESTS, Moment, duration_ms

RECOVERY_DURATION_MS_MAX = 3_600_000  # protocol 8.1
BORN_HOST_LENGTH_MAX = 255
TRACE_CONTEXT_LENGTH_MAX = 1_024

# Module constants, because looking up an enum member in its class costs more than converting a field.
_NORMAL, _DELAY, _PRIORITY, _LITE = MessageType.NORMAL, MessageType.DELAY, MessageType.PRIORITY, MessageType.LITE
# Each of these properties decides the message's type.
_Exclusive = Literal["delivery_timestamp", "message_group", "priority", "lite_topic"]
_EXCLUSIVE: dict[_Exclusive, MessageType] = {
    "delivery_timestamp": MessageType.DELAY,
    "message_group": MessageType.FIFO,
    "priority": MessageType.PRIORITY,
    "lite_topic": MessageType.LITE,
}
_OF_TRANSACTION = "message_type TRANSACTION"
_KINDS: dict[str, MessageType] = dict(_EXCLUSIVE.items())
_KINDS[_OF_TRANSACTION] = MessageType.TRANSACTION
# Unspecified (0) means IDENTITY: the sender did not set the field.
_ENCODINGS = {0: BodyEncoding.IDENTITY, pb.IDENTITY: BodyEncoding.IDENTITY, pb.GZIP: BodyEncoding.GZIP}


def sent_message(sent: pb.Message, topic: Resource, now_ms: int, calendar_ms: int) -> Message:
    """The message that was sent, at these times of the clock. Raises a `BadRequest` for errors in the encoding."""
    system = sent.system_properties
    has = system.HasField
    message_type, message_group = _kind(system)
    encoding = _ENCODINGS.get(system.body_encoding)
    if encoding is None:
        raise MessageCorrupted(f"body encoding {system.body_encoding} is not known; use IDENTITY (1) or GZIP (2)")
    if has("body_digest"):
        _check_digest(system.body_digest, sent.body)
    properties = sent.user_properties
    # By position, because keywords cost twice as much, for each message sent.
    return Message(
        topic,
        system.message_id,
        sent.body,
        system.tag if has("tag") else None,
        # By a slice, because an iteration costs twice as much.
        tuple(system.keys[:]),
        dict(properties) if properties else {},
        message_type,
        message_group,
        encoding,
        _born_at_ms(system) if has("born_timestamp") else now_ms,
        _text("born_host", system.born_host, BORN_HOST_LENGTH_MAX) if system.born_host else "",
        _text("trace_context", system.trace_context, TRACE_CONTEXT_LENGTH_MAX) if has("trace_context") else None,
        _deliver_at_ms(system, calendar_ms) if message_type is _DELAY else None,
        system.priority if message_type is _PRIORITY else None,
        _recovery_ms(system) if has("orphaned_transaction_recovery_duration") else None,
    )


def _kind(system: pb.SystemProperties) -> tuple[MessageType, str | None]:
    """The message's type, from its properties (protocol 4.3), and its message group or lite topic."""
    # Not a list made by a loop: this is run for each message sent, and most have none of the properties.
    has, transaction = system.HasField, system.message_type == pb.TRANSACTION
    if not (transaction or has("message_group") or has("delivery_timestamp") or has("priority") or has("lite_topic")):
        return _NORMAL, None
    named: list[str] = [name for name in _EXCLUSIVE if has(name)]
    if transaction:
        named.append(_OF_TRANSACTION)
    if len(named) > 1:
        raise MessagePropertyConflictWithType(f"{' and '.join(named)} exclude each other; send the message with one")
    message_type = _KINDS[named[0]]
    if message_type is _LITE:
        check_lite_topic(system.lite_topic)
        return message_type, system.lite_topic
    if message_type is not MessageType.FIFO:
        return message_type, None
    check_message_group(system.message_group)
    return message_type, system.message_group


def _check_digest(digest: pb.Digest, body: bytes) -> None:
    """Raise `MessageCorrupted` unless the digest fits the body.

    Upper and lower case, with or without leading zeros, are accepted: clients write both.
    """
    if not digest.checksum:
        return
    compute = DIGESTS.get(digest.type)
    if compute is None:
        raise MessageCorrupted(
            f"body_digest has type {digest.type}, which is not known; use CRC32 (1), MD5 (2) or SHA1 (3), or send none"
        )
    checksum = compute(body)
    if digest.checksum.upper().lstrip("0") != checksum.lstrip("0"):
        raise MessageCorrupted(
            f"body_digest is {pb.DigestType.Name(digest.type)} {digest.checksum[:64]}, but the {len(body)} bytes that"
            f" arrived have {checksum}; the body was damaged on the way, send it again"
        )


def _deliver_at_ms(system: pb.SystemProperties, calendar_ms: int) -> int:
    """In epoch ms, rounded up, so that no message is delivered before its delivery time."""
    if system.HasField("delay"):
        return calendar_ms + _rounded_up_ms(system.delay)
    return _rounded_up_ms(system.delivery_timestamp)


def _rounded_up_ms(time: Moment) -> int:
    return time.seconds * 1_000 - -time.nanos // 1_000_000


def _born_at_ms(system: pb.SystemProperties) -> int:
    born_at_ms = duration_ms(system.born_timestamp)
    if not 0 <= born_at_ms <= BORN_AT_MS_MAX:
        raise MessageCorrupted(f"born_timestamp is {born_at_ms} ms; give a time in the years 1970 to 9999")
    return born_at_ms


def _recovery_ms(system: pb.SystemProperties) -> int:
    recovery_ms = duration_ms(system.orphaned_transaction_recovery_duration)
    if not 0 <= recovery_ms <= RECOVERY_DURATION_MS_MAX:
        raise BadRequest(
            f"orphaned_transaction_recovery_duration is {recovery_ms} ms, allowed: 0 to {RECOVERY_DURATION_MS_MAX} ms"
        )
    return recovery_ms


def _text(field: str, value: str, length_max: int) -> str:
    if len(value) > length_max:
        raise MessagePropertiesTooLarge(f"{field} has {len(value)} characters, at most {length_max} are allowed")
    if "\x00" in value:
        raise MessageCorrupted(f"{field} has a zero byte, which some databases cannot store; send it without")
    return value
