"""Makes the facts of the administration from the messages of popmq.v1.Admin.

A fact has the names of the wire's fields. `facts_of` reads these by the wire's types, and takes other values from its
caller.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from datetime import UTC
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from popclient._session import convert
from popclient.admin.facts import (
    ClientFacts,
    Consumer,
    ExponentialBackoff,
    FilterTrial,
    Group,
    GroupLag,
    HistoryEntry,
    Hold,
    LockedMessageGroup,
    MessageState,
    Pause,
    Queue,
    Redeliveries,
    Subscription,
    Topic,
    Trial,
    Why,
)
from popclient.admin.mirror_facts import MirrorFacts
from popclient.admin.redrive_facts import DeadLetter
from popclient.admin.server_facts import (
    Alert,
    Budget,
    ChartPoint,
    HealthCheck,
    Histogram,
    KnownServer,
    Storage,
    StuckRow,
)
from popclient.admin.user_facts import Policy
from popclient.message import MessageView
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb

Fact = TypeVar("Fact")


def topic_of(topic: wire.Topic) -> Topic:
    kinds = tuple(pb.MessageType.Name(kind) for kind in topic.accept_message_types)
    named = {"name": topic.topic.name, "namespace": topic.topic.resource_namespace}
    return facts_of(Topic, topic, **named, accept_message_types=kinds)


def _backoff_of(backoff: pb.ExponentialBackoff) -> ExponentialBackoff:
    # 1.1, where the wire's 32-bit number is 1.100000023841858.
    multiplier = float(f"{backoff.multiplier:.7g}")
    return ExponentialBackoff(backoff.initial.ToTimedelta(), backoff.max.ToTimedelta(), multiplier)


def group_of(group: wire.Group) -> Group:
    return facts_of(
        Group,
        group,
        name=group.group.name,
        namespace=group.group.resource_namespace,
        retry_backoff=_backoff_of(group.exponential_retry) if group.HasField("exponential_retry") else None,
    )


def _consumer_of(consumer: wire.Consumer) -> Consumer:
    return facts_of(
        Consumer,
        consumer,
        kind=pb.ClientType.Name(consumer.client_type).removesuffix("_CONSUMER"),
        subscriptions=tuple(
            Subscription(each.topic.name, pb.FilterType.Name(each.expression.type), each.expression.expression)
            for each in consumer.subscriptions
        ),
    )


def client_facts_of(client: wire.Client) -> ClientFacts:
    kind = pb.ClientType.Name(client.client_type) if client.client_type else ""
    return facts_of(ClientFacts, client, client_type=kind)


# How a trial may end; the server says nothing else by these codes.
OUTCOMES: Final = frozenset({pb.FAILED_TO_CONSUME_MESSAGE, pb.NOT_IMPLEMENTED, pb.VERIFY_FIFO_MESSAGE_UNSUPPORTED})


def trial_of(status: pb.Status) -> Trial:
    return Trial(pb.Code.Name(status.code), status.message)


def why_of(answer: wire.WhyResponse) -> Why:
    return facts_of(Why, answer, evidence={fact.name: fact.value for fact in answer.evidence})


def filter_trial_of(answer: wire.TryFilterResponse) -> FilterTrial:
    return facts_of(FilterTrial, answer, newest=tuple(views_of(answer.messages)))


def dead_letter_of(letter: wire.DeadLetter) -> DeadLetter:
    queue_offset = letter.queue_offset if letter.HasField("queue_id") else None
    return facts_of(DeadLetter, letter, queue_offset=queue_offset)


def mirror_of(mirror: wire.Mirror) -> MirrorFacts:
    return facts_of(MirrorFacts, mirror, namespace=mirror.topic.resource_namespace)


def policy_of(policy: wire.Policy) -> Policy:
    return facts_of(Policy, policy, namespace=policy.pattern.resource_namespace)


def views_of(messages: Iterable[pb.Message]) -> list[MessageView]:
    """Views of messages that no consumer holds."""
    now = convert.now()
    return [MessageView(message, now) for message in messages]


# The fact of a message, by the message's type.
_MADE: Final[dict[str, Callable[[Any], object]]] = {
    "google.protobuf.Timestamp": lambda value: value.ToDatetime(UTC),
    "google.protobuf.Duration": lambda value: value.ToTimedelta(),
    pb.Resource.DESCRIPTOR.full_name: lambda value: value.name,
    pb.Message.DESCRIPTOR.full_name: lambda value: views_of([value])[0],
    wire.Alert.DESCRIPTOR.full_name: lambda value: facts_of(Alert, value),
    wire.Budget.DESCRIPTOR.full_name: lambda value: facts_of(Budget, value),
    wire.ChartPoint.DESCRIPTOR.full_name: lambda value: facts_of(ChartPoint, value),
    wire.Consumer.DESCRIPTOR.full_name: _consumer_of,
    wire.DeadLetter.DESCRIPTOR.full_name: dead_letter_of,
    wire.GroupLag.DESCRIPTOR.full_name: lambda value: facts_of(
        GroupLag, value, namespace=value.group.resource_namespace
    ),
    wire.HealthCheck.DESCRIPTOR.full_name: lambda value: facts_of(HealthCheck, value),
    wire.Histogram.DESCRIPTOR.full_name: lambda value: facts_of(Histogram, value),
    wire.Hold.DESCRIPTOR.full_name: lambda value: facts_of(Hold, value),
    wire.HistoryEntry.DESCRIPTOR.full_name: lambda value: facts_of(HistoryEntry, value),
    wire.LockedMessageGroup.DESCRIPTOR.full_name: lambda value: facts_of(LockedMessageGroup, value),
    wire.MessageState.DESCRIPTOR.full_name: lambda value: facts_of(MessageState, value),
    wire.Pause.DESCRIPTOR.full_name: lambda value: facts_of(Pause, value),
    wire.Policy.DESCRIPTOR.full_name: policy_of,
    wire.Queue.DESCRIPTOR.full_name: lambda value: facts_of(Queue, value),
    wire.Server.DESCRIPTOR.full_name: lambda value: facts_of(KnownServer, value),
    wire.Storage.DESCRIPTOR.full_name: lambda value: facts_of(Storage, value),
    wire.StuckRow.DESCRIPTOR.full_name: lambda value: facts_of(StuckRow, value),
    wire.Redeliveries.DESCRIPTOR.full_name: lambda value: facts_of(Redeliveries, value),
}


def facts_of(kind: type[Fact], answer: Message, /, **given: object) -> Fact:
    """The fact; `given`: the values that are not the wire's field of that name."""
    key: Any = (kind, type(answer), tuple(given))
    return kind(**{name: read(answer) for name, read in _readers(*key)}, **given)


@functools.cache
def _readers(kind: Any, answer: Any, given: tuple[str, ...]) -> list[tuple[str, Callable[[Any], object]]]:
    """How to read each field of a fact that the message has too, and that is not given."""
    wire_fields = answer.DESCRIPTOR.fields_by_name
    return [
        (each.name, _reader(wire_fields[each.name], is_optional="None" in str(each.type)))
        for each in dataclasses.fields(kind)
        if each.name in wire_fields and each.name not in given
    ]


def _reader(field: Any, *, is_optional: bool) -> Callable[[Any], object]:
    """is_optional: None if the message does not have the field."""
    name, made = field.name, _made_of(field)
    if field.is_repeated:
        return lambda answer: tuple(map(made, getattr(answer, name)))
    if is_optional:
        return lambda answer: made(getattr(answer, name)) if answer.HasField(name) else None
    return lambda answer: made(getattr(answer, name))


def _made_of(field: Any) -> Callable[[Any], object]:
    return _as_it_is if field.message_type is None else _MADE[field.message_type.full_name]


def _as_it_is(value: object) -> object:
    return value
