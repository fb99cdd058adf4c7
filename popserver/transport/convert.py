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
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from google.protobuf.message_factory import GetMessageClass

from popproto.pool import POOL
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.filters import Filter, tags
from popserver.filters import sql as filters_sql
from popserver.filters.subscription import TopicFilter
from popserver.model.errors import (
    BadRequest,
    Unsupported,
)
from popserver.model.message import (
    BodyEncoding,
    Delivery,
    StoredMessage,
    attempt_of,
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

# The digest of a body, in upper-case hexadecimal digits.
DIGESTS: dict[int, Callable[[bytes], str]] = {
    pb.CRC32: lambda body: f"{zlib.crc32(body):08X}",
    pb.MD5: lambda body: hashlib.md5(body, usedforsecurity=False).hexdigest().upper(),
    pb.SHA1: lambda body: hashlib.sha1(body, usedforsecurity=False).hexdigest().upper(),
}
_GZIP = BodyEncoding.GZIP  # a constant: looking up the member in its class costs more than converting a field
_TYPES = {
    MessageType.NORMAL: pb.NORMAL,
    MessageType.FIFO: pb.FIFO,
    MessageType.DELAY: pb.DELAY,
    MessageType.TRANSACTION: pb.TRANSACTION,
    MessageType.PRIORITY: pb.PRIORITY,
    MessageType.LITE: pb.LITE,
}


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


def common_fields(
    topic: pb.Resource, store_host: str, invisible_ms: int | None = None, *, digest: pb.DigestType.ValueType = pb.MD5
) -> pb.Message:
    """What the messages of one answer have in common; `topic` as the request named it.

    Each message begins as a copy, which costs a third of filling in these fields one by one. `digest`: CRC32 needs half
    of the time of MD5 on both sides, for callers that read both.
    """
    common = pb.Message(topic=topic)
    system = common.system_properties
    system.body_digest.type = digest
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
    system.body_digest.checksum = DIGESTS[system.body_digest.type](sent.body)
    if sent.body_encoding is _GZIP:
        system.body_encoding = pb.GZIP
    system.message_type = _TYPES[sent.message_type]
    set_ms(system.born_timestamp, sent.born_at_ms)
    system.born_host = sent.born_host
    set_ms(system.store_timestamp, stored.stored_at_ms)
    system.queue_id = stored.queue_number
    system.queue_offset = stored.offset
    if sent.message_group is not None:
        if sent.message_type is MessageType.LITE:
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


def found_message(stored: StoredMessage, *, has_body: bool = True) -> pb.Message:
    """A message as an operator sees it. Without its body (`has_body`) it has no digest of the body either."""
    found = unheld(stored, as_resource(stored.message.topic))
    if not has_body:
        found.system_properties.ClearField("body_digest")
    return found
