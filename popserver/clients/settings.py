"""The settings handshake: a client describes itself and gets the server's values (protocol 3.3).

The answer has all that the client sent, with the server's values added. Clients adopt the answer, so the server drops
or changes nothing that they sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from popproto.v2 import definition_pb2 as pb
from popserver.catalog.flow import Catalog, check_gets_messages
from popserver.filters import Filter
from popserver.filters.subscription import ClientKind, Role, subscription, topic_filters
from popserver.lite.subscriptions import LITE_SUBSCRIPTIONS_MAX
from popserver.members.flow import Membership
from popserver.model.errors import (
    BadRequest,
    IllegalFilterExpression,
    InvalidClientProperties,
    UnrecognizedClientType,
    Unsupported,
)
from popserver.model.group import INTERVALS_MAX, Group, Model
from popserver.model.message import BATCH_SIZE_MAX, BODY_BYTES_MAX, LITE_TOPIC_BYTES_MAX
from popserver.model.names import Resource, check_topic
from popserver.model.retry import SECOND_MS, Exponential, Intervals, RetryPolicy, interval_ms
from popserver.model.topic import AUTO_CREATE_ACCEPTS, MessageType, Topic
from popserver.transport import convert
from popserver.transport.limits import CallLimits

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

SEND_ATTEMPTS_MAX = 3
SEND_BACKOFF_MS = (10, 1_000)
SEND_BACKOFF_MULTIPLIER = 2.0

# Characters of all filter expressions of a client: parsing takes time, and the filters are kept while it is connected.
EXPRESSIONS_LENGTH_MAX = 64 * 1024
CLIENT_PROPERTIES_MAX = 32
CLIENT_PROPERTIES_BYTES_MAX = 4 * 1024
CLIENT_PROPERTY_NAME_LENGTH_MAX = 64
CLIENT_PROPERTY_VALUE_LENGTH_MAX = 256
SUBSCRIPTION_VERSION = "popmq.subscription_version"
CAPABILITIES = ["admin", "batch", "legacy", "lite", "pull-batch", "receive-batch"]
SERVER = "popmq.server"  # in answers to PopMQ's own clients
MODEL = "popmq.model"

_SIGNS_METRICS = frozenset({pb.JAVA, pb.DOT_NET})
_SENDS_METRICS = _SIGNS_METRICS | {pb.PYTHON}
_PROPERTY_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]*")
_CONSUMERS = {
    pb.PUSH_CONSUMER: ClientKind.PUSH,
    pb.SIMPLE_CONSUMER: ClientKind.SIMPLE,
    pb.PULL_CONSUMER: ClientKind.PULL,
    pb.LITE_PUSH_CONSUMER: ClientKind.LITE_PUSH,
    pb.LITE_SIMPLE_CONSUMER: ClientKind.LITE_SIMPLE,
}
_LITE = frozenset({pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER})


def capabilities(*, has_idempotency_keys: bool) -> str:
    """Features that RocketMQ's server does not have, for our own clients."""
    # Arrow is an optional dependency: without it there is no bulk transfer (`bulk.rpc`).
    bulk = ["bulk"] if find_spec("pyarrow") is not None else []
    return ",".join([*CAPABILITIES, *bulk, *(["idempotency"] if has_idempotency_keys else [])])


async def merge(
    sent: pb.Settings, namespace: str, catalog: Catalog, limits: CallLimits, version: str, capabilities: str
) -> pb.Settings:
    """The answer to a client's settings. Raises a `PopError` for the first error in them."""
    _check_properties(sent.client_properties)
    _model(sent)
    merged = pb.Settings()
    merged.CopyFrom(sent)
    if sent.client_type == pb.PRODUCER:
        _publish(merged, namespace)
    elif sent.client_type in _CONSUMERS:
        await _subscribe(merged, namespace, catalog, limits)
    else:
        raise UnrecognizedClientType(
            f"client type {_type_name(sent.client_type)} is not supported;"
            " use a producer, or a push, simple, pull or lite consumer"
        )
    merged.metric.Clear()
    merged.metric.on = False
    if _is_ours(sent):
        merged.client_properties[SERVER] = version
        merged.client_properties["popmq.capabilities"] = capabilities
    return merged


def ask_for_metrics(merged: pb.Settings, own: pb.Endpoints, *, must_sign: bool) -> None:
    """Ask a client for its metrics, at the address where it has found this server; `own` if it does not report that.

    Only clients that send OTLP: those for Go and C++ use an older protocol. If callers must sign, only those that sign
    these calls, too.
    """
    if merged.user_agent.language in (_SIGNS_METRICS if must_sign else _SENDS_METRICS):
        merged.metric.on = True
        merged.metric.endpoints.CopyFrom(merged.access_point if merged.access_point.addresses else own)


def kind_of(sent: pb.Settings) -> ClientKind | None:
    """The kind of a consumer with these settings, which may be invalid; None for other clients."""
    return _CONSUMERS.get(sent.client_type)


def role_of(sent: pb.Settings, namespace: str) -> Role | None:
    """The role of a consumer with these (valid) settings; None for a producer."""
    kind = kind_of(sent)
    if kind is None:
        return None
    filters = _filters(sent, namespace)
    return Role(
        convert.resource(sent.subscription.group, namespace),
        kind,
        subscription(filters),
        dict(filters),
        _subscription_version(sent.client_properties),
        _model(sent),
    )


async def membership_of(sent: pb.Settings, namespace: str, catalog: Catalog) -> Membership | None:
    """The membership of a pull consumer with these settings; None without subscriptions, and for other clients."""
    if sent.client_type != pb.PULL_CONSUMER or not sent.subscription.subscriptions:
        return None
    group = await catalog.group(convert.resource(sent.subscription.group, namespace))
    return Membership(group, _model(sent), topic_filters(_filters(sent, namespace)))


def client_type(kind: ClientKind) -> pb.ClientType.ValueType:
    return next(each for each, known in _CONSUMERS.items() if known is kind)


def _filters(sent: pb.Settings, namespace: str) -> list[tuple[Resource, Filter]]:
    """A consumer's filter for each topic.

    A filter with a syntax error is refused for our own clients, so that they do not start. Official clients start, as
    they do with RocketMQ, and are refused at their first receive.
    """
    found = []
    characters = sum(len(entry.expression.expression) for entry in sent.subscription.subscriptions)
    if characters > EXPRESSIONS_LENGTH_MAX:
        raise BadRequest(
            f"the subscriptions' expressions have {characters} characters together, at most {EXPRESSIONS_LENGTH_MAX}"
            " are allowed; use shorter filters or several consumers"
        )
    for entry in sent.subscription.subscriptions:
        try:
            found.append((convert.resource(entry.topic, namespace), convert.filter_of(entry.expression)))
        except (IllegalFilterExpression, Unsupported):
            if _is_ours(sent):
                raise
    return found


def _is_ours(sent: pb.Settings) -> bool:
    return "popmq.client" in sent.client_properties


def _model(sent: pb.Settings) -> Model:
    """How a group shares its messages, by a client property that only pull consumers send."""
    named = sent.client_properties.get(MODEL, "") if sent.client_type == pb.PULL_CONSUMER else ""
    try:
        return Model(named or Model.CLUSTERING)
    except ValueError:
        raise InvalidClientProperties(
            f"client property '{MODEL}' is '{named[:64]}'; choose one of {', '.join(Model)}"
        ) from None


def _publish(merged: pb.Settings, namespace: str) -> None:
    if merged.HasField("subscription"):
        raise BadRequest("a producer's settings have a subscription; send publishing instead")
    for topic in merged.publishing.topics:
        check_topic(convert.resource(topic, namespace))
    merged.publishing.max_body_size = BODY_BYTES_MAX
    merged.publishing.validate_message_type = True
    initial_ms, max_ms = SEND_BACKOFF_MS
    backoff = merged.backoff_policy.exponential_backoff
    merged.backoff_policy.max_attempts = SEND_ATTEMPTS_MAX
    convert.set_ms(backoff.initial, initial_ms)
    convert.set_ms(backoff.max, max_ms)
    backoff.multiplier = SEND_BACKOFF_MULTIPLIER


_RETRY_OUT_OF_ORDER = {pb.NODE_JS, pb.GOLANG}


async def _subscribe(merged: pb.Settings, namespace: str, catalog: Catalog, limits: CallLimits) -> None:
    if not merged.HasField("subscription"):
        raise BadRequest("a consumer's settings have no subscription; send the group, its topics and filters")
    _subscription_version(merged.client_properties)
    subscription = merged.subscription
    is_ours = _is_ours(merged)
    subscription.fifo = False
    _filters(merged, namespace)
    topics: list[Topic] = []
    for entry in subscription.subscriptions:
        name = convert.resource(entry.topic, namespace)
        check_topic(name)
        topic = await catalog.known_topic(name)
        subscription.fifo |= _needs_order(topic, is_ours=is_ours)
        topics += [] if topic is None else [topic]
    # In ordered mode the Node client does not retry by a ladder: its first failure would be a dead letter. The Go
    # client continues with the next message of the group while it retries one. So these two are not asked to work in
    # order; they get one message of a group at a time, and the server retries.
    subscription.fifo &= is_ours or merged.user_agent.language not in _RETRY_OUT_OF_ORDER
    group_name = convert.resource(subscription.group, namespace)
    if merged.client_type in _LITE:
        group = await _lite_group(merged, group_name, namespace, catalog)
        subscription.lite_subscription_quota = LITE_SUBSCRIPTIONS_MAX
        subscription.max_lite_topic_size = LITE_TOPIC_BYTES_MAX
    else:
        group = await catalog.group(group_name)
        for topic in topics:
            check_gets_messages(kind_of(merged), group, topic)
    subscription.receive_batch_size = BATCH_SIZE_MAX
    convert.set_ms(subscription.long_polling_timeout, limits.poll_ms_max)
    # The official Python client ignores exponential intervals and always waits a second. The Node client reads their
    # seconds as milliseconds; with a ladder it leaves the interval to the server.
    takes_exponential = is_ours or merged.user_agent.language not in {pb.PYTHON, pb.NODE_JS}
    policy = group.retry if takes_exponential else _as_ladder(group.retry)
    _retry(merged.backoff_policy, policy, in_order=subscription.fifo and not is_ours)
    if merged.client_type == pb.LITE_PUSH_CONSUMER and merged.user_agent.language == pb.NODE_JS and not is_ours:
        _retry_in_place_of_node(merged.backoff_policy, group.retry)


async def _lite_group(sent: pb.Settings, name: Resource, namespace: str, catalog: Catalog) -> Group:
    """The group of a lite consumer, which becomes one of lite topics at its first use.

    Raises `BadRequest` unless the consumer subscribes to one topic, which has lite topics.
    """
    entries = sent.subscription.subscriptions
    if len(entries) != 1:
        raise BadRequest(f"a lite consumer subscribes to one topic of type LITE, not to {len(entries)} topics")
    topic = await catalog.bind_topic(convert.resource(entries[0].topic, namespace))
    return await catalog.lite_group(name, topic)


def _subscription_version(properties: Mapping[str, str]) -> int:
    """When the client last changed its subscription (epoch ms); 0 if unknown (requirement B22)."""
    version = properties.get(SUBSCRIPTION_VERSION, "0")
    if not version.isdecimal() or not version.isascii():
        raise InvalidClientProperties(
            f"client property '{SUBSCRIPTION_VERSION}' is '{version}'; give epoch milliseconds"
        )
    return int(version)


def _needs_order(topic: Topic | None, *, is_ours: bool) -> bool:
    """Whether a push consumer must process its messages in order.

    Official clients then process all messages one at a time, whatever message group they are in. So that is asked of
    them only for topics whose messages all have a message group. For other topics they get one message of a group at a
    time.
    """
    if topic is not None and topic.is_lite:
        # Official clients then get one message of a lite topic at a time, and process different ones in parallel.
        return is_ours
    # The first use creates a missing topic.
    accepts = AUTO_CREATE_ACCEPTS if topic is None else topic.accepts
    return MessageType.FIFO in accepts and (is_ours or MessageType.NORMAL not in accepts)


def _retry(backoff: pb.RetryPolicy, retry: RetryPolicy, *, in_order: bool) -> None:
    """Write the retry intervals. A client that retries in place by itself gets one fixed interval (requirement L6)."""
    backoff.Clear()
    backoff.max_attempts = retry.max_attempts
    # In whole seconds: the Python client ignores fractions and would use up all attempts at once.
    in_place_ms = SECOND_MS * math.ceil(retry.fifo_interval_ms / SECOND_MS)
    fixed = (in_place_ms,) * min(retry.max_attempts, INTERVALS_MAX)
    intervals = fixed if in_order else retry.intervals_ms
    set_intervals(backoff.exponential_backoff, backoff.customized_backoff.next, intervals)


def _retry_in_place_of_node(backoff: pb.RetryPolicy, retry: RetryPolicy) -> None:
    """The Node client retries messages of lite topics by itself, and only with exponential intervals, whose seconds it
    reads as milliseconds. Without them the first failure would be a dead letter."""
    as_read_ms = SECOND_MS * retry.fifo_interval_ms
    backoff.ClearField("strategy")
    set_intervals(backoff.exponential_backoff, backoff.customized_backoff.next, Exponential(as_read_ms, as_read_ms, 1))


def _as_ladder(retry: RetryPolicy) -> RetryPolicy:
    """All intervals as a ladder, in whole seconds, because the Python client ignores fractions."""
    if not isinstance(retry.intervals_ms, Exponential):
        return retry
    each_ms = (interval_ms(retry, attempt) for attempt in range(1, retry.max_attempts + 1))
    return retry._replace(intervals_ms=tuple(SECOND_MS * math.ceil(each / SECOND_MS) for each in each_ms))


def set_intervals(
    exponential: pb.ExponentialBackoff, ladder: RepeatedCompositeFieldContainer[Duration], intervals: Intervals
) -> None:
    """Write a group's intervals into one of the two fields; the other field stays unset."""
    if isinstance(intervals, Exponential):
        convert.set_ms(exponential.initial, intervals.initial_ms)
        convert.set_ms(exponential.max, intervals.longest_ms)
        exponential.multiplier = intervals.multiplier
        return
    for each_ms in intervals:
        convert.set_ms(ladder.add(), each_ms)


def _check_properties(properties: Mapping[str, str]) -> None:
    if len(properties) > CLIENT_PROPERTIES_MAX:
        raise InvalidClientProperties(
            f"there are {len(properties)} client properties, at most {CLIENT_PROPERTIES_MAX} are allowed"
        )
    for name, value in properties.items():
        if len(name) > CLIENT_PROPERTY_NAME_LENGTH_MAX or not _PROPERTY_NAME.fullmatch(name):
            raise InvalidClientProperties(
                f"client property name {name[:CLIENT_PROPERTY_NAME_LENGTH_MAX]!r} is not a letter followed by at most"
                f" {CLIENT_PROPERTY_NAME_LENGTH_MAX - 1} of A-Z a-z 0-9 _ . -"
            )
        if name.startswith("rocketmq."):
            raise InvalidClientProperties(
                f"client property name '{name}' is reserved: names that begin with 'rocketmq.' are the system's"
            )
        if len(value) > CLIENT_PROPERTY_VALUE_LENGTH_MAX:
            raise InvalidClientProperties(
                f"the value of client property '{name}' has {len(value)} characters, at most"
                f" {CLIENT_PROPERTY_VALUE_LENGTH_MAX} are allowed"
            )
    size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    if size > CLIENT_PROPERTIES_BYTES_MAX:
        raise InvalidClientProperties(
            f"client properties have {size} bytes together, at most {CLIENT_PROPERTIES_BYTES_MAX} are allowed"
        )


def _type_name(client_type: int) -> str:
    by_number = pb.ClientType.DESCRIPTOR.values_by_number
    return by_number[client_type].name if client_type in by_number else str(client_type)
