"""Conversion between protobuf and the server's own types, for all rooms.

Timestamps and Durations are filled in place, because the classes of the private descriptor pool are not those of
google.protobuf. Delivered messages are filled field by field; that measured fastest, and a receive converts 32 at once.
"""

from __future__ import annotations

import hashlib
import ipaddress
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, cast

from google.protobuf.message_factory import GetMessageClass

from popproto.pool import POOL
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.filters import Filter, tags
from popserver.filters import sql as filters_sql
from popserver.filters.subscription import TopicFilter
from popserver.model.errors import (
    BadRequest,
    MessageCorrupted,
    MessagePropertiesTooLarge,
    MessagePropertyConflictWithType,
    Unsupported,
)
from popserver.model.message import (
    BodyEncoding,
    Delivery,
    Message,
    StoredMessage,
    attempt_of,
    check_lite_topic,
    check_message_group,
)
from popserver.model.names import Resource
from popserver.model.topic import MessageType, Topic

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp


Choice = TypeVar("Choice", bound=StrEnum)

_Timestamp = cast("type[Timestamp]", GetMessageClass(POOL.FindMessageTypeByName("google.protobuf.Timestamp")))
_Duration = cast("type[Duration]", GetMessageClass(POOL.FindMessageTypeByName("google.protobuf.Duration")))

BROKER_NAME = "popmq"
TIME_MS_MIN = -62_135_596_800_000  # the first millisecond of the year 1
BORN_AT_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999
RECOVERY_DURATION_MS_MAX = 3_600_000  # protocol 8.1
BORN_HOST_LENGTH_MAX = 255
TRACE_CONTEXT_LENGTH_MAX = 1_024

# Module constants, because looking up an enum member in its class costs more than converting a field.
_NORMAL, _DELAY, _PRIORITY, _LITE = MessageType.NORMAL, MessageType.DELAY, MessageType.PRIORITY, MessageType.LITE
_GZIP = BodyEncoding.GZIP
_TYPES = {
    MessageType.NORMAL: pb.NORMAL,
    MessageType.FIFO: pb.FIFO,
    MessageType.DELAY: pb.DELAY,
    MessageType.TRANSACTION: pb.TRANSACTION,
    MessageType.PRIORITY: pb.PRIORITY,
    MessageType.LITE: pb.LITE,
}
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
# The digest of a body, in hexadecimal digits.
_DIGESTS: dict[int, Callable[[bytes], str]] = {
    pb.CRC32: lambda body: f"{zlib.crc32(body):08x}",
    pb.MD5: lambda body: hashlib.md5(body, usedforsecurity=False).hexdigest(),
    pb.SHA1: lambda body: hashlib.sha1(body, usedforsecurity=False).hexdigest(),
}
# Unspecified (0) means IDENTITY: the sender did not set the field.
_ENCODINGS = {0: BodyEncoding.IDENTITY, pb.IDENTITY: BodyEncoding.IDENTITY, pb.GZIP: BodyEncoding.GZIP}


def resource(named: pb.Resource, header_namespace: str) -> Resource:
    """A topic or group. Some clients give the namespace only in the call's header."""
    return Resource(named.resource_namespace or header_namespace, named.name)


def as_resource(name: Resource) -> pb.Resource:
    return pb.Resource(resource_namespace=name.namespace, name=name.name)


def choice(field: str, given: str, choices: type[Choice]) -> Choice:
    """The member of `choices` with that name, in capitals or not. Raises `BadRequest` if there is none."""
    for each in choices:
        if each.lower() == given.lower():
            return each
    raise BadRequest(f"{field} is '{given[:64]}'; choose one of {', '.join(choices)}")


def subscription_entry(topic_filter: TopicFilter) -> pb.SubscriptionEntry:
    """One topic of a subscription, with its filter."""
    expression = pb.FilterExpression(type=pb.FilterType.Value(topic_filter.kind), expression=topic_filter.expression)
    return pb.SubscriptionEntry(topic=as_resource(topic_filter.topic), expression=expression)


class Moment(Protocol):
    """A Timestamp or a Duration. The private descriptor pool has its own classes for them."""

    seconds: int
    nanos: int


def duration_ms(duration: Moment) -> int:
    return duration.seconds * 1_000 + duration.nanos // 1_000_000


def time_ms(timestamp: Moment, field: str) -> int:
    """A time in a request, in epoch ms. Raises `BadRequest` outside the years 1 to 9999, protobuf's range."""
    moment_ms = duration_ms(timestamp)
    if not TIME_MS_MIN <= moment_ms <= BORN_AT_MS_MAX:
        raise BadRequest(
            f"{field} is {timestamp.seconds} s and {timestamp.nanos} ns after 1970; give a time in the years 1 to 9999"
        )
    return moment_ms


def set_ms(field: Moment, ms: int) -> None:
    """Fill a Timestamp or a Duration."""
    field.seconds, rest_ms = divmod(ms, 1_000)
    field.nanos = rest_ms * 1_000_000


def timestamp(ms: int | None) -> Timestamp | None:
    """A value for a message's constructor; None leaves the field unset."""
    return None if ms is None else _Timestamp(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def duration(ms: int) -> Duration:
    """A Duration for a message's constructor."""
    return _Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def message(sent: pb.Message, topic: Resource, now_ms: int) -> Message:
    """The message that was sent. Raises a `BadRequest` for errors in the encoding.

    `model.message.check` checks the rest.
    """
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
        _deliver_at_ms(system.delivery_timestamp) if message_type is _DELAY else None,
        system.priority if message_type is _PRIORITY else None,
        _recovery_ms(system) if has("orphaned_transaction_recovery_duration") else None,
    )


def common_fields(topic: pb.Resource, store_host: str, invisible_ms: int | None = None) -> pb.Message:
    """What the messages of one answer have in common; `topic` as the request named it.

    Each message begins as a copy, which costs a third of filling in these fields one by one.
    """
    common = pb.Message(topic=topic)
    system = common.system_properties
    system.body_digest.type = pb.MD5
    system.body_encoding = pb.IDENTITY
    system.store_host = store_host
    if invisible_ms is not None:
        set_ms(system.invisible_duration, invisible_ms)
    return common


def fill_delivered(filled: pb.Message, delivery: Delivery, common: pb.Message) -> None:
    """Fill in one delivered message of an answer with these `common_fields`."""
    _fill(filled, delivery.stored, common)
    system = filled.system_properties
    system.receipt_handle = delivery.receipt_handle
    system.delivery_attempt = delivery.attempt


def fill_pulled(filled: pb.Message, stored: StoredMessage, common: pb.Message) -> None:
    """Fill in one pulled message. It has no receipt handle, because a pull holds nothing."""
    _fill(filled, stored, common)
    filled.system_properties.delivery_attempt = attempt_of(stored)


def unheld(stored: StoredMessage, topic: pb.Resource, store_host: str = "") -> pb.Message:
    """A message as a receive returns it, but without a receipt handle: the message is only shown, not held."""
    filled = pb.Message()
    _fill(filled, stored, common_fields(topic, store_host))
    return filled


def delivered_at(now_ms: int) -> wire.ReceiveMessageResponse:
    """The last frame of a receive. Without it a client drops the batch (protocol 1.7)."""
    answer = wire.ReceiveMessageResponse()
    set_ms(answer.delivery_timestamp, now_ms)
    return answer


def filter_of(expression: pb.FilterExpression) -> Filter:
    """The filter of a subscription; an unspecified type is a tag expression (protocol 7.1).

    Raises `IllegalFilterExpression`, and `Unsupported` for other types, such as class filters (requirement M19).
    """
    if expression.type == pb.SQL:
        return filters_sql.parse(expression.expression)
    if expression.type not in (pb.TAG, pb.FILTER_TYPE_UNSPECIFIED):
        raise Unsupported(
            f"filter type {expression.type} is neither TAG (1) nor SQL (2), and class filters are not supported;"
            " use a SQL expression on the message's properties"
        )
    return tags.parse(expression.expression) if expression.expression not in ("", "*") else tags.EVERYTHING


def broker(name: str, endpoints: pb.Endpoints) -> pb.Broker:
    """A server for a route. Clients ignore servers with another id than 0 (protocol 1.2)."""
    return pb.Broker(name=name, id=0, endpoints=endpoints)


def queues(topic: Topic, named: pb.Resource, brokers: Sequence[pb.Broker]) -> list[pb.MessageQueue]:
    """A topic's route, with the topic as the client wrote it and every queue readable and writable.

    The queues are divided among the servers, at least one per server. Every server serves all queues.
    """
    accepts = message_types(topic.accepts)
    return [
        pb.MessageQueue(
            topic=named,
            id=topic.queues[index % len(topic.queues)].number,
            permission=pb.READ_WRITE,
            broker=brokers[index % len(brokers)],
            accept_message_types=accepts,
        )
        for index in range(max(len(topic.queues), len(brokers)))
    ]


def lone_queue(named: pb.Resource, number: int, broker: pb.Broker | None = None) -> pb.MessageQueue:
    """A queue outside of a topic's route, or (-1) all of them; without a server's endpoints if it is only named."""
    return pb.MessageQueue(
        topic=named, id=number, permission=pb.READ_WRITE, broker=broker or pb.Broker(name=BROKER_NAME)
    )


def message_types(types: Iterable[MessageType]) -> list[pb.MessageType.ValueType]:
    return [_TYPES[each] for each in types]


def endpoints(host: str, port: int) -> pb.Endpoints:
    """An address for a route."""
    scheme = pb.DOMAIN_NAME
    with suppress(ValueError):
        scheme = pb.IPv4 if ipaddress.ip_address(host).version == 4 else pb.IPv6
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=host, port=port)])


def _fill(filled: pb.Message, stored: StoredMessage, common: pb.Message) -> None:
    sent = stored.message
    filled.CopyFrom(common)
    filled.body = sent.body
    if sent.properties:
        filled.user_properties.update(sent.properties)
    system = filled.system_properties
    if sent.tag is not None:
        system.tag = sent.tag
    if sent.keys:
        system.keys.extend(sent.keys)
    system.message_id = sent.message_id
    system.body_digest.checksum = hashlib.md5(sent.body, usedforsecurity=False).hexdigest().upper()
    if sent.body_encoding is _GZIP:
        system.body_encoding = pb.GZIP
    system.message_type = _TYPES[sent.message_type]
    set_ms(system.born_timestamp, sent.born_at_ms)
    system.born_host = sent.born_host
    set_ms(system.store_timestamp, stored.stored_at_ms)
    system.queue_id = stored.queue_number
    system.queue_offset = stored.offset
    if sent.message_group is not None:
        if sent.message_type is _LITE:
            system.lite_topic = sent.message_group
        else:
            system.message_group = sent.message_group
    if sent.priority is not None:
        system.priority = sent.priority
    if sent.deliver_at_ms is not None:
        set_ms(system.delivery_timestamp, sent.deliver_at_ms)
    if sent.trace_context is not None:
        system.trace_context = sent.trace_context
    if stored.dead_letter_of is not None:
        system.dead_letter_queue.topic, system.dead_letter_queue.message_id = stored.dead_letter_of


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
    compute = _DIGESTS.get(digest.type)
    if compute is None:
        raise MessageCorrupted(
            f"body_digest has type {digest.type}, which is not known; use CRC32 (1), MD5 (2) or SHA1 (3), or send none"
        )
    checksum = compute(body)
    if digest.checksum.lower().lstrip("0") != checksum.lstrip("0"):
        raise MessageCorrupted(
            f"body_digest is {pb.DigestType.Name(digest.type)} {digest.checksum[:64]}, but the {len(body)} bytes that"
            f" arrived have {checksum.upper()}; the body was damaged on the way, send it again"
        )


def _deliver_at_ms(timestamp: Moment) -> int:
    """In epoch ms, rounded up, so that no message is delivered before its delivery time."""
    return timestamp.seconds * 1_000 - -timestamp.nanos // 1_000_000


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


def found_message(stored: StoredMessage, *, has_body: bool = True) -> pb.Message:
    """A message as an operator sees it. Without its body (`has_body`) it has no digest of the body either."""
    found = unheld(stored, as_resource(stored.message.topic))
    if not has_body:
        found.system_properties.ClearField("body_digest")
    return found
