"""Messages: their content, their rules, and the stored form of their ids."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from popserver.model.errors import (
    BadRequest,
    IllegalLiteTopic,
    IllegalMessageGroup,
    IllegalMessageId,
    IllegalMessageKey,
    IllegalMessagePropertyKey,
    IllegalMessageTag,
    MessageBodyEmpty,
    MessageBodyTooLarge,
    MessagePropertiesTooLarge,
)
from popserver.model.names import CONTROL, RETRY_PREFIX, Resource
from popserver.model.retry import HOUR_MS
from popserver.model.topic import MessageType

BODY_BYTES_MAX = 4 * 1024 * 1024
PROPERTIES_MAX = 128
PROPERTIES_BYTES_MAX = 16 * 1024
MESSAGE_GROUP_BYTES_MAX = 63
LITE_TOPIC_BYTES_MAX = 64
MESSAGE_ID_LENGTH_MAX = 255
PRIORITY_MAX = 32_767

# Property names that RocketMQ reserves; a user's property may not have them (protocol 4.2).
RESERVED_PROPERTIES = frozenset(
    """
    TRACE_ON MSG_REGION KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET
    BUYER_ID ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES
    CONSUME_START_TIME POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO
    INSTANCE_ID CORRELATION_ID REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#
    """.split()
)

_LITE_TOPIC = re.compile(rf"[A-Za-z0-9_-]{{1,{LITE_TOPIC_BYTES_MAX}}}")
_NOT_IN_LITE_TOPIC = re.compile(r"[^A-Za-z0-9_-]")
_ID_V1 = re.compile(r"01[0-9A-F]{32}")


class BodyEncoding(StrEnum):
    IDENTITY = "IDENTITY"
    GZIP = "GZIP"


class Message(NamedTuple):
    """A message as its producer sent it. Times are epoch milliseconds."""

    topic: Resource
    message_id: str
    body: bytes
    tag: str | None = None
    keys: tuple[str, ...] = ()
    properties: Mapping[str, str] = {}
    message_type: MessageType = MessageType.NORMAL
    message_group: str | None = None  # of a LITE message: its lite topic
    body_encoding: BodyEncoding = BodyEncoding.IDENTITY
    born_at_ms: int = 0
    born_host: str = ""
    trace_context: str | None = None
    deliver_at_ms: int | None = None  # of a delayed message
    priority: int | None = None
    recovery_ms: int | None = None  # of a half message: how long until the first check


class StoredMessage(NamedTuple):
    """A message with its queue and offset."""

    message: Message
    message_key: int
    queue_number: int
    offset: int
    stored_at_ms: int
    dead_letter_of: tuple[str, str] | None = None  # of a dead letter: topic and message id of the original


class SendResult(NamedTuple):
    """The answer to a sent message: its id, its message queue and its offset there (requirement H12).

    A delayed or half message is in no queue yet; then the queue is None and the offset 0.
    """

    message_id: str
    queue_number: int | None
    offset: int
    transaction_id: str = ""  # of a half message
    deliver_at_ms: int | None = None  # of a delayed message


class Delivery(NamedTuple):
    """A message that was delivered to a consumer."""

    stored: StoredMessage
    receipt_handle: str
    attempt: int
    visible_at_ms: int


def check(message: Message) -> None:
    """Raise the error for the first rule of protocol 4.2 that the message breaks.

    Limits: body 1 byte to 4 MiB; at most 128 properties; properties, tag and keys together at most 16 KiB of UTF-8.
    """
    message_id = message.message_id
    if not message_id.strip() or len(message_id) > MESSAGE_ID_LENGTH_MAX or "\x00" in message_id:
        raise _illegal_id(message_id)
    if not message.body:
        raise MessageBodyEmpty("the message's body is empty; send at least one byte")
    if len(message.body) > BODY_BYTES_MAX:
        raise MessageBodyTooLarge(
            f"the message's body has {len(message.body)} bytes, at most {BODY_BYTES_MAX} are allowed; send a reference"
            " instead"
        )
    if message.tag is not None:
        _check_tag(message.tag)
    for key in message.keys:
        _check_key(key)
    if message.properties:
        _check_properties(message.properties)
        check_key(message.properties)
    if message.priority is not None and not 0 <= message.priority <= PRIORITY_MAX:
        raise BadRequest(f"the priority is {message.priority}, allowed: 0 to {PRIORITY_MAX}, the highest first")
    if message.tag is not None or message.keys or message.properties:
        _check_size(message)


def id_to_bytes(message_id: str) -> bytes:
    """The stored form of an id: 17 bytes for RocketMQ's v1 layout, a zero byte and the text for other ids."""
    if _ID_V1.fullmatch(message_id):
        return bytes.fromhex(message_id)
    return b"\x00" + message_id.encode()


def id_from_bytes(stored: bytes) -> str:
    """The id as its producer wrote it, from the stored form."""
    return stored[1:].decode() if stored[:1] == b"\x00" else stored.hex().upper()


def check_message_group(message_group: str) -> None:
    """Raise `IllegalMessageGroup` if it is blank, longer than 63 bytes, or has control characters."""
    size = len(message_group.encode())
    if not message_group.strip():
        raise IllegalMessageGroup("the message group is blank; leave it out, or give 1 to 63 bytes")
    if size > MESSAGE_GROUP_BYTES_MAX:
        raise IllegalMessageGroup(
            f"message group '{message_group[:16]}…' has {size} bytes, at most {MESSAGE_GROUP_BYTES_MAX} are allowed"
        )
    if CONTROL.search(message_group):
        raise IllegalMessageGroup(f"message group {message_group!r} has a control character; send it without")


def check_lite_topic(lite_topic: str) -> None:
    """Raise `IllegalLiteTopic` unless it is 1 to 64 letters, digits, _ and -."""
    if _LITE_TOPIC.fullmatch(lite_topic):
        return
    wrong = _NOT_IN_LITE_TOPIC.search(lite_topic)
    fault = f"{len(lite_topic)} characters" if wrong is None else f"the character {wrong[0]!r}"
    raise IllegalLiteTopic(
        f"lite topic {lite_topic[:LITE_TOPIC_BYTES_MAX]!r} has {fault}; allowed: 1 to {LITE_TOPIC_BYTES_MAX} of A-Z a-z"
        " 0-9 _ -"
    )


def _illegal_id(message_id: str) -> IllegalMessageId:
    if not message_id.strip():
        return IllegalMessageId("the message id is blank; give each message its own id")
    if len(message_id) > MESSAGE_ID_LENGTH_MAX:
        return IllegalMessageId(
            f"message id '{message_id[:32]}…' has {len(message_id)} characters,"
            f" at most {MESSAGE_ID_LENGTH_MAX} are allowed"
        )
    return IllegalMessageId(f"message id {message_id!r} has a zero byte, which some databases cannot store")


def _check_tag(tag: str) -> None:
    if not tag.strip():
        raise IllegalMessageTag("the tag is blank; leave it out, or give it a visible character")
    if "|" in tag:
        raise IllegalMessageTag(f"tag '{tag[:64]}' has '|', which separates tags in a filter expression; use another")
    if _has_control(tag):
        raise IllegalMessageTag(f"tag {tag[:64]!r} has a control character; send it without")


def _check_key(key: str) -> None:
    if not key.strip():
        raise IllegalMessageKey("a key is blank; leave it out, or give it a visible character")
    if _has_control(key):
        raise IllegalMessageKey(f"key {key[:64]!r} has a control character; send it without")


def _check_properties(properties: Mapping[str, str]) -> None:
    if len(properties) > PROPERTIES_MAX:
        raise MessagePropertiesTooLarge(
            f"the message has {len(properties)} properties, at most {PROPERTIES_MAX} are allowed"
        )
    for key, value in properties.items():
        if not key.strip():
            raise IllegalMessagePropertyKey("a property's name is blank; give it a visible character")
        if key in RESERVED_PROPERTIES:
            raise IllegalMessagePropertyKey(f"property name '{key}' is reserved for the system; choose another")
        if _has_control(key):
            raise IllegalMessagePropertyKey(f"property name {key[:64]!r} has a control character; send it without")
        if _has_control(value):
            raise IllegalMessagePropertyKey(f"the value of property '{key[:64]}' has a control character")


def _has_control(text: str) -> bool:
    # A printable text has no control character, and this check costs a quarter of the search.
    return not text.isprintable() and CONTROL.search(text) is not None


def _check_size(message: Message) -> None:
    size = sum(map(_utf8_size, message.keys)) + _utf8_size(message.tag or "")
    for key, value in message.properties.items():
        size += _utf8_size(key) + _utf8_size(value)
    if size > PROPERTIES_BYTES_MAX:
        raise MessagePropertiesTooLarge(
            f"properties, tag and keys have {size} bytes together, at most {PROPERTIES_BYTES_MAX} are allowed"
        )


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


# Messages of one receive (requirement A3), and of one that is answered in one frame (docs/design/0019).
BATCH_SIZE_MAX = 32
ONE_FRAME_BATCH_SIZE_MAX = 128


class HeldMessage(NamedTuple):
    """A message that a receive holds: its key and its delivery attempt."""

    message_key: int
    attempt: int


# Idempotency keys: a producer's own name for the content of a message (complaint U18).
#
# Within a window a topic stores one message with a key. A second message with the key gets the first one's result.

PROPERTY = "popmq.idempotency-key"  # the property with the key
KEY_BYTES_MAX = 255
WINDOW_MS = 24 * HOUR_MS


def check_key(properties: Mapping[str, str]) -> None:
    """Raise `IllegalMessagePropertyKey` for a key that is blank or longer than 255 bytes."""
    key = properties.get(PROPERTY)
    if key is None:
        return
    if not key.strip():
        raise IllegalMessagePropertyKey(f"property {PROPERTY} is blank; leave it out, or give it a visible character")
    size = len(key.encode())
    if size > KEY_BYTES_MAX:
        raise IllegalMessagePropertyKey(
            f"property {PROPERTY} '{key[:32]}…' has {size} bytes, at most {KEY_BYTES_MAX} are allowed"
        )


RECONSUME_TIME = "RECONSUME_TIME"  # a property of a retry message: how often it failed


def attempt_of(stored: StoredMessage) -> int:
    """The delivery attempt of a pulled message. A retry message has a property with the number of its failures."""
    if not stored.message.topic.name.startswith(RETRY_PREFIX):
        return 1
    return 1 + int(stored.message.properties.get(RECONSUME_TIME, "0"))


# Properties of a redriven message: its original, and the redrive plan.
REDRIVE_OF = "popmq.redrive-of"
REDRIVE_PLAN = "popmq.redrive-plan"
