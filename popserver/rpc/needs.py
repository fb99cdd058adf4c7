"""Which rights a call needs, by what its request names. One table, RPC by RPC.

A need is a choice of rights, one of which suffices; a call needs all of its needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from popproto.v2 import definition_pb2 as pb
from popserver.broker.access import Need
from popserver.domain.acl import Action, ResourceKind, Right
from popserver.domain.names import Resource, is_system_derived
from popserver.rpc import convert
from popserver.rpc.calls import Caller

Needs = Sequence[Need]


def pub(topic: pb.Resource, caller: Caller) -> Right:
    return Right(Action.PUB, ResourceKind.TOPIC, convert.resource(topic, caller.namespace))


def sub(topic: pb.Resource, caller: Caller) -> Right:
    return Right(Action.SUB, ResourceKind.TOPIC, convert.resource(topic, caller.namespace))


def sub_group(group: pb.Resource, caller: Caller) -> Right:
    return Right(Action.SUB, ResourceKind.GROUP, convert.resource(group, caller.namespace))


def of_settings(settings: pb.Settings, caller: Caller) -> Needs:
    """What a client says it will do: a producer to its topics, a consumer to its group and its topics."""
    subscription = settings.subscription
    needs: list[Need] = [(pub(topic, caller),) for topic in settings.publishing.topics]
    needs += [(sub(entry.topic, caller),) for entry in subscription.subscriptions]
    return [*needs, *_group(subscription, caller)]


def of_check(topic: Resource) -> Needs:
    """What a producer needs to be asked about a half message of that topic."""
    return [(Right(Action.PUB, ResourceKind.TOPIC, topic),)]


def _route(request: Any, caller: Caller) -> Needs:
    if is_system_derived(request.topic.name):
        # The server alone fills it: a route is for its readers.
        return [(sub(request.topic, caller),)]
    return [(pub(request.topic, caller), sub(request.topic, caller))]


def _send(request: Any, caller: Caller) -> Needs:
    # Each topic once; a request of several is refused for that, but not before it was asked whether it may at all.
    topics = {(each.topic.resource_namespace, each.topic.name): each.topic for each in request.messages}
    return [(pub(topic, caller),) for topic in topics.values()]


def _publish(request: Any, caller: Caller) -> Needs:
    return [(pub(request.topic, caller),)]


def _consume(request: Any, caller: Caller) -> Needs:
    return [(sub(request.topic, caller),), (sub_group(request.group, caller),)]


def _consume_queue(request: Any, caller: Caller) -> Needs:
    return [(sub(request.message_queue.topic, caller),), (sub_group(request.group, caller),)]


def _look_at_queue(request: Any, caller: Caller) -> Needs:
    return [(sub(request.message_queue.topic, caller),)]


def _group(request: Any, caller: Caller) -> Needs:
    return [(sub_group(request.group, caller),)] if request.group.name else ()


def _nothing(_request: Any, _caller: Caller) -> Needs:
    return ()


def _consume_queues(request: Any, caller: Caller) -> Needs:
    return _of_queues(request.group, request.queues, caller)


def _commit_offsets(request: Any, caller: Caller) -> Needs:
    return _of_queues(request.group, [each.queue for each in request.offsets], caller)


def _of_queues(group: pb.Resource, queues: Sequence[Any], caller: Caller) -> Needs:
    topics = {(each.topic.resource_namespace, each.topic.name): each.topic for each in queues}
    return [(sub_group(group, caller),), *((sub(topic, caller),) for topic in topics.values())]


def _consume_queue_by_name(request: Any, caller: Caller) -> Needs:
    return [(sub(request.queue.topic, caller),), (sub_group(request.group, caller),)]


def _members(request: Any, caller: Caller) -> Needs:
    return [(sub_group(request.group, caller),)]


OF: dict[str, Callable[[Any, Caller], Needs]] = {
    "QueryRoute": _route,
    "Heartbeat": _group,
    "SendMessage": _send,
    "QueryAssignment": _consume,
    "ReceiveMessage": _consume_queue,
    "AckMessage": _consume,
    "ForwardMessageToDeadLetterQueue": _consume,
    "PullMessage": _consume_queue,
    "UpdateOffset": _consume_queue,
    "GetOffset": _consume_queue,
    "QueryOffset": _look_at_queue,
    "EndTransaction": _publish,
    "Telemetry": _nothing,  # its frames are asked about one by one: `of_settings`
    "NotifyClientTermination": _nothing,  # a client is its user's own
    "ChangeInvisibleDuration": _consume,
    "RecallMessage": _publish,
    "SyncLiteSubscription": _consume,
    "ListMembers": _members,
    "LockQueues": _consume_queues,
    "UnlockQueues": _consume_queues,
    "FetchOffsets": _consume_queues,
    "CommitOffsets": _commit_offsets,
    "SendBack": _consume_queue_by_name,
    "PullBatch": _consume_queue_by_name,
    "PullBulk": _consume,
    "ReceiveBulk": _consume,
    "RenewAttempt": _consume,
    "AckAttempt": _consume,
}
