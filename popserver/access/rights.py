"""Which rights a call needs, from the names in its request. Each method has one of these functions.

A need is a list of rights; one of them is enough. A call must meet all of its needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from popproto.v1 import legacy_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.model.acl import Action, AnyOfRights, ResourceKind, Right
from popserver.model.names import Resource, is_system_derived
from popserver.transport.calls import Caller, RequiredRights


class HasTopic(Protocol):
    """A request that names a topic."""

    @property
    def topic(self) -> pb.Resource: ...


class HasGroup(Protocol):
    """A request that names a consumer group."""

    @property
    def group(self) -> pb.Resource: ...


class HasTopicAndGroup(HasTopic, HasGroup, Protocol):
    """A request that names both."""


class HasMessageQueue(Protocol):
    """A request that names a queue of a topic."""

    @property
    def message_queue(self) -> pb.MessageQueue: ...


class HasMessageQueueAndGroup(HasMessageQueue, HasGroup, Protocol):
    """A request that names a queue and a consumer group."""


class HasQueueAndGroup(HasGroup, Protocol):
    """A request of popmq.v1 that names a queue and a consumer group."""

    @property
    def queue(self) -> legacy_pb2.QueueName: ...


class HasQueuesAndGroup(HasGroup, Protocol):
    """A request that names several queues and a consumer group."""

    @property
    def queues(self) -> Sequence[legacy_pb2.QueueName]: ...


def pub(topic: pb.Resource, caller: Caller) -> Right:
    return Right(Action.PUB, ResourceKind.TOPIC, caller.resource(topic))


def sub(topic: pb.Resource, caller: Caller) -> Right:
    return Right(Action.SUB, ResourceKind.TOPIC, caller.resource(topic))


def sub_group(group: pb.Resource, caller: Caller) -> Right:
    return Right(Action.SUB, ResourceKind.GROUP, caller.resource(group))


def of_settings(settings: pb.Settings, caller: Caller) -> RequiredRights:
    """A producer needs PUB on its topics; a consumer needs SUB on its group and its topics."""
    subscription = settings.subscription
    needs: list[AnyOfRights] = [(pub(topic, caller),) for topic in settings.publishing.topics]
    needs += [(sub(entry.topic, caller),) for entry in subscription.subscriptions]
    return [*needs, *group_if_named(subscription, caller)]


def of_check(topic: Resource) -> RequiredRights:
    """The needs of a producer that answers checks of half messages of this topic."""
    return [(Right(Action.PUB, ResourceKind.TOPIC, topic),)]


def route(request: HasTopic, caller: Caller) -> RequiredRights:
    if is_system_derived(request.topic.name):
        # Only the server writes to such a topic, so only its readers need a route.
        return [(sub(request.topic, caller),)]
    return [(pub(request.topic, caller), sub(request.topic, caller))]


def send(request: wire.SendMessageRequest, caller: Caller) -> RequiredRights:
    # Each topic once. A request with several topics is refused, but only after its rights are checked.
    topics = {(each.topic.resource_namespace, each.topic.name): each.topic for each in request.messages}
    return [(pub(topic, caller),) for topic in topics.values()]


def publish(request: HasTopic, caller: Caller) -> RequiredRights:
    return [(pub(request.topic, caller),)]


def consume(request: HasTopicAndGroup, caller: Caller) -> RequiredRights:
    return [(sub(request.topic, caller),), (sub_group(request.group, caller),)]


def consume_message_queue(request: HasMessageQueueAndGroup, caller: Caller) -> RequiredRights:
    return [(sub(request.message_queue.topic, caller),), (sub_group(request.group, caller),)]


def read_message_queue(request: HasMessageQueue, caller: Caller) -> RequiredRights:
    return [(sub(request.message_queue.topic, caller),)]


def consume_queue(request: HasQueueAndGroup, caller: Caller) -> RequiredRights:
    return [(sub(request.queue.topic, caller),), (sub_group(request.group, caller),)]


def consume_queues(request: HasQueuesAndGroup, caller: Caller) -> RequiredRights:
    return _of_queues(request.group, request.queues, caller)


def commit_offsets(request: legacy_pb2.CommitOffsetsRequest, caller: Caller) -> RequiredRights:
    return _of_queues(request.group, [each.queue for each in request.offsets], caller)


def group(request: HasGroup, caller: Caller) -> RequiredRights:
    return [(sub_group(request.group, caller),)]


def group_if_named(request: HasGroup, caller: Caller) -> RequiredRights:
    return group(request, caller) if request.group.name else ()


def own_client(_request: object, _caller: Caller) -> RequiredRights:
    """Nothing: the method concerns only the calling client, which belongs to its user."""
    return ()


def admin(_request: object, _caller: Caller) -> RequiredRights:
    """Nothing: `AdminGate` checks that the caller is an admin."""
    return ()


def _of_queues(group: pb.Resource, queues: Sequence[legacy_pb2.QueueName], caller: Caller) -> RequiredRights:
    topics = {(each.topic.resource_namespace, each.topic.name): each.topic for each in queues}
    return [(sub_group(group, caller),), *((sub(topic, caller),) for topic in topics.values())]
