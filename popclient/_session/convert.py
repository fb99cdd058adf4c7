"""The client's models as protobuf messages, and back."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from popclient._arguments import as_timedelta
from popclient._session.message_id import new_message_id
from popclient._version import HOSTNAME, VERSION
from popclient.config import Endpoint
from popclient.errors import PopError, error_of
from popclient.message import IDEMPOTENCY_KEY, FilterExpression, Message, MessageView
from popclient.receipts import SendReceipt
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

CLIENT_PROPERTY: Final = "popmq.client"
CAPABILITIES_PROPERTY: Final = "popmq.capabilities"


def resource(name: str, namespace: str) -> pb.Resource:
    return pb.Resource(resource_namespace=namespace, name=name)


class Outbound(NamedTuple):
    """A message on its way: its destination, and the bytes that go on the wire."""

    topic: str
    kind: pb.MessageType.ValueType
    message_group: str
    message_id: str
    body_size: int
    wire: bytes
    has_key: bool  # an idempotency key


def outbound(message: Message, namespace: str) -> Outbound:
    """Serialised here, once, in the caller's thread: requests are then joined bytes and copy no message again."""
    message_id = message.message_id or new_message_id()
    kind = _kind(message)
    try:
        body = message.body.encode() if isinstance(message.body, str) else message.body
        return Outbound(
            message.topic,
            kind,
            message.message_group or message.lite_topic or "",
            message_id,
            len(body),
            _serialised(message, message_id, kind, body, namespace),
            message.idempotency_key is not None or IDEMPOTENCY_KEY in message.properties,
        )
    except (TypeError, UnicodeEncodeError):
        message.require_sendable()
        raise


def half(message: Message, namespace: str, check_after: timedelta | None) -> Outbound:
    """The half of a transaction, on its way."""
    if (kind := _kind(message)) != pb.NORMAL:
        raise ValueError(
            f"a message in a transaction has no message group, lite topic, delivery time or priority, but this one is"
            f" {pb.MessageType.Name(kind)}"
        )
    ordinary = outbound(message, namespace)
    wire = pb.Message.FromString(ordinary.wire)
    wire.system_properties.message_type = pb.TRANSACTION
    if check_after is not None:
        wire.system_properties.orphaned_transaction_recovery_duration.FromTimedelta(check_after)
    return ordinary._replace(kind=pb.TRANSACTION, wire=wire.SerializeToString())


def _serialised(
    message: Message, message_id: str, kind: pb.MessageType.ValueType, body: bytes, namespace: str
) -> bytes:
    system = pb.SystemProperties(
        message_id=message_id,
        message_type=kind,
        body_encoding=pb.IDENTITY,
        born_host=HOSTNAME,
        keys=message.keys,
        tag=message.tag,
        message_group=message.message_group,
        lite_topic=message.lite_topic,
        priority=message.priority,
        trace_context=message.trace_context,
    )
    _fill_time(system.born_timestamp, time.time_ns())
    if message.delivery_timestamp is not None:
        system.delivery_timestamp.FromDatetime(message.delivery_timestamp)
    elif message.delay is not None:
        delay = as_timedelta("delay", message.delay)
        system.delay.FromTimedelta(delay)
        _fill_time(system.delivery_timestamp, time.time_ns() + delay // timedelta(microseconds=1) * 1_000)
    return pb.Message(
        topic=resource(message.topic, namespace),
        user_properties=message.all_properties,
        system_properties=system,
        body=body,
    ).SerializeToString()


# What servers add to the properties of a copy, or of a message of a message group, and what a mirror adds to a dead
# letter for RocketMQ.
_ADDED: Final = (
    "RETRY_TOPIC", "RECONSUME_TIME", "popmq.origin-key", "popmq.parent-resets", "__SHARDINGKEY",
    "popmq.dead-topic", "popmq.dead-reason", "popmq.dead-attempt",
)  # fmt: skip


def as_sent(view: MessageView, topic: pb.Resource) -> pb.Message:
    """A received message as its producer sent it, for another topic or server: with its id, and when and where it was
    born; without what its server has added. The body stays packed if it was."""
    received = view._wire
    sent = pb.Message(topic=topic, body=view.stored_body)
    sent.user_properties.update({name: value for name, value in view.properties.items() if name not in _ADDED})
    of, to = received.system_properties, sent.system_properties
    to.message_id, to.body_encoding, to.message_type = of.message_id, of.body_encoding or pb.IDENTITY, pb.NORMAL
    to.born_timestamp.CopyFrom(of.born_timestamp)
    to.born_host = of.born_host
    to.keys[:] = of.keys
    if of.HasField("tag"):
        to.tag = of.tag
    if of.HasField("message_group"):
        to.message_group, to.message_type = of.message_group, pb.FIFO
    if of.HasField("trace_context"):
        to.trace_context = of.trace_context
    return sent


def _kind(message: Message) -> pb.MessageType.ValueType:
    if message.message_group is not None:
        return pb.FIFO
    if message.lite_topic is not None:
        return pb.LITE
    if message.delivery_timestamp is not None or message.delay is not None:
        return pb.DELAY
    return pb.NORMAL if message.priority is None else pb.PRIORITY


def _fill_time(timestamp: object, ns: int) -> None:
    timestamp.seconds, timestamp.nanos = divmod(ns, 1_000_000_000)  # type: ignore[attr-defined]


# The key of SendMessageRequest.messages on the wire: field 1, length-delimited.
_MESSAGES_KEY: Final = b"\x0a"


def send_request(messages: Iterable[Outbound]) -> bytes:
    """A SendMessageRequest, serialised: a repeated field is its elements one after the other."""
    parts: list[bytes] = []
    for message in messages:
        parts += (_MESSAGES_KEY, _varint(len(message.wire)), message.wire)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def send_outcome(entry: rpc.SendResultEntry) -> SendReceipt | PopError:
    status = entry.status
    if status.code != pb.OK:
        return error_of(status)
    return SendReceipt(
        entry.message_id,
        entry.offset,
        entry.transaction_id,
        entry.recall_handle,
        entry.queue_id if entry.HasField("queue_id") else None,
        entry.delivery_timestamp.ToDatetime(UTC) if entry.HasField("delivery_timestamp") else None,
    )


def filter_expression(given: FilterExpression) -> pb.FilterExpression:
    return pb.FilterExpression(type=pb.SQL if given.type == "SQL" else pb.TAG, expression=given.expression)


def own(wire: pb.Message) -> pb.Message:
    """The message alone: as a part of its answer it would keep the whole batch in memory for as long as it lives."""
    alone = pb.Message()
    alone.CopyFrom(wire)
    return alone


def endpoints(of: Sequence[Endpoint]) -> pb.Endpoints:
    """As the user typed them. DOMAIN_NAME holds one address, so of several names only the first is sent."""
    first = of[0].host
    if ":" in first:
        scheme, same = pb.IPv6, [e for e in of if ":" in e.host]
    elif first.replace(".", "").isdecimal():
        scheme, same = pb.IPv4, [e for e in of if e.host.replace(".", "").isdecimal()]
    else:
        scheme, same = pb.DOMAIN_NAME, list(of[:1])
    return pb.Endpoints(scheme=scheme, addresses=[pb.Address(host=e.host, port=e.port) for e in same])


def settings(
    client_type: pb.ClientType.ValueType,
    access_point: pb.Endpoints,
    request_timeout: float,
    pub_sub: pb.Publishing | pb.Subscription,
    client_properties: Mapping[str, str],
) -> pb.Settings:
    made = pb.Settings(
        client_type=client_type,
        access_point=access_point,
        user_agent=pb.UA(language=pb.PYTHON, version=VERSION, platform=platform.platform(), hostname=HOSTNAME),
        client_properties={CLIENT_PROPERTY: VERSION, **client_properties},
    )
    made.request_timeout.FromTimedelta(timedelta(seconds=request_timeout))
    if isinstance(pub_sub, pb.Publishing):
        made.publishing.CopyFrom(pub_sub)
    else:
        made.subscription.CopyFrom(pub_sub)
    return made


def publishing(topics: Iterable[str], namespace: str) -> pb.Publishing:
    return pb.Publishing(topics=[resource(name, namespace) for name in sorted(topics)])


def subscription(
    group: str, topics: Mapping[str, FilterExpression], namespace: str, await_duration: timedelta
) -> pb.Subscription:
    made = pb.Subscription(group=resource(group, namespace))
    made.long_polling_timeout.FromTimedelta(await_duration)
    for name, expression in topics.items():
        made.subscriptions.add(topic=resource(name, namespace), expression=filter_expression(expression))
    return made


def capabilities(of: pb.Settings) -> frozenset[str]:
    """What this server can do beyond RocketMQ; empty for a real proxy."""
    listed = of.client_properties.get(CAPABILITIES_PROPERTY, "")
    return frozenset(word.strip() for word in listed.split(",") if word.strip())


def send_backoff(of: pb.Settings, attempt: int) -> float:
    """Seconds before attempt + 1 of a send, by the policy the server pushed; 10 ms doubling to 1 s without one."""
    policy = of.backoff_policy.exponential_backoff
    if not of.backoff_policy.HasField("exponential_backoff"):
        return float(min(0.01 * 2 ** (attempt - 1), 1.0))
    initial, longest = policy.initial.ToTimedelta().total_seconds(), policy.max.ToTimedelta().total_seconds()
    try:
        return float(min(initial * (policy.multiplier or 1.0) ** (attempt - 1), longest))
    except OverflowError:
        return longest


# Before a message comes again, where the server has not said.
RETRY_INTERVAL: Final = timedelta(seconds=10)


def retry_interval(of: pb.Settings, attempt: int) -> timedelta:
    """How long a message waits that has failed at its `attempt` (from 1), by the policy the server pushed."""
    policy = of.backoff_policy
    if policy.customized_backoff.next:
        intervals = policy.customized_backoff.next
        return intervals[min(max(attempt, 1), len(intervals)) - 1].ToTimedelta()
    if policy.HasField("exponential_backoff"):
        return timedelta(seconds=send_backoff(of, max(attempt, 1)))
    return RETRY_INTERVAL


def now() -> datetime:
    return datetime.now(UTC)
