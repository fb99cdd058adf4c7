"""popmq.v1.Admin: the administration of this server, on the same port as the messages.

The calls need no client id: an operator is not a client of the protocol. Every list is bounded; where the answer holds
less than there is, the sentence of its status says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.broker.broker import Broker
from popserver.broker.operations import DeadLetter, Lag, Operations, Standing, Step, TopicFacts
from popserver.domain.errors import AlreadyExists, BadRequest
from popserver.domain.group import ConsumeFrom, Group, HistoryLevel, NewGroup
from popserver.domain.message import BUILT_TYPES, Delivery, MessageType, StoredMessage
from popserver.domain.names import Resource
from popserver.domain.retry import RetryPolicy
from popserver.domain.topic import NewTopic
from popserver.rpc import calls, convert, status
from popserver.rpc.calls import Caller, Verb

SERVICE = wire.DESCRIPTOR.services_by_name["Admin"]

Choice = TypeVar("Choice", ConsumeFrom, HistoryLevel)


def service(broker: Broker, version: str) -> Any:
    """The service, as `rpc.server.build` takes it in `extra`."""
    admin = Admin(Operations(broker), version)
    verbs: dict[str, Callable[..., Awaitable[Any]]] = {
        "CreateTopic": admin.create_topic,
        "UpdateTopic": admin.update_topic,
        "DeleteTopic": admin.delete_topic,
        "GetTopic": admin.get_topic,
        "ListTopics": admin.list_topics,
        "CreateGroup": admin.create_group,
        "UpdateGroup": admin.update_group,
        "DeleteGroup": admin.delete_group,
        "GetGroup": admin.get_group,
        "ListGroups": admin.list_groups,
        "PeekMessages": admin.peek_messages,
        "GetMessage": admin.get_message,
        "ListDeadLetters": admin.list_dead_letters,
        "GetDeadLetter": admin.get_dead_letter,
        "GetStatus": admin.get_status,
    }
    table = {name: Verb(verb, anonymous=True) for name, verb in verbs.items()}
    return calls.handlers(SERVICE, table, wire, _unnoticed)


class Admin:
    """One method per RPC, in the proto's order."""

    def __init__(self, operations: Operations, version: str) -> None:
        self._operations = operations
        self._version = version

    async def create_topic(self, request: wire.CreateTopicRequest, caller: Caller) -> wire.CreateTopicResponse:
        default = NewTopic(convert.resource(request.topic, caller.namespace))
        new = default._replace(
            queue_count=request.queue_count or default.queue_count,
            accepts=_message_types(request.accept_message_types) or default.accepts,
        )
        try:
            facts = await self._operations.create_topic(new)
        except AlreadyExists as refusal:
            raise BadRequest(refusal.sentence) from None
        return wire.CreateTopicResponse(status=status.OK, topic=_topic(facts))

    async def update_topic(self, request: wire.UpdateTopicRequest, caller: Caller) -> wire.UpdateTopicResponse:
        facts = await self._operations.update_topic(
            convert.resource(request.topic, caller.namespace),
            request.queue_count if request.HasField("queue_count") else None,
            _message_types(request.accept_message_types) or None,
        )
        return wire.UpdateTopicResponse(status=status.OK, topic=_topic(facts))

    async def delete_topic(self, request: wire.DeleteTopicRequest, caller: Caller) -> wire.DeleteTopicResponse:
        await self._operations.delete_topic(convert.resource(request.topic, caller.namespace))
        return wire.DeleteTopicResponse(status=status.OK)

    async def get_topic(self, request: wire.GetTopicRequest, caller: Caller) -> wire.GetTopicResponse:
        facts = await self._operations.topic(convert.resource(request.topic, caller.namespace))
        answer = wire.GetTopicResponse(status=status.OK, topic=_topic(facts))
        answer.topic.queues.extend(
            wire.Queue(id=each.number, min_offset=each.min_offset, max_offset=each.next_offset) for each in facts.ranges
        )
        return answer

    async def list_topics(self, _request: wire.ListTopicsRequest, caller: Caller) -> wire.ListTopicsResponse:
        """Those of the namespace in the call's header, or all."""
        topics, count = await self._operations.topics(caller.namespace or None)
        return wire.ListTopicsResponse(status=_listed(len(topics), count, "topics"), topics=map(_topic, topics))

    async def create_group(self, request: wire.CreateGroupRequest, caller: Caller) -> wire.CreateGroupResponse:
        default = NewGroup(convert.resource(request.group, caller.namespace))
        new = NewGroup(
            default.name,
            RetryPolicy(
                request.max_attempts or default.retry.max_attempts,
                _durations_ms(request.retry_intervals) or default.retry.intervals_ms,
            ),
            _choice("consume_from", request.consume_from, ConsumeFrom) or default.consume_from,
            _choice("history", request.history, HistoryLevel) or default.history,
        )
        try:
            group = await self._operations.create_group(new)
        except AlreadyExists as refusal:
            raise BadRequest(refusal.sentence) from None
        return wire.CreateGroupResponse(status=status.OK, group=_group(group))

    async def update_group(self, request: wire.UpdateGroupRequest, caller: Caller) -> wire.UpdateGroupResponse:
        group = await self._operations.update_group(
            convert.resource(request.group, caller.namespace),
            request.max_attempts if request.HasField("max_attempts") else None,
            _durations_ms(request.retry_intervals) or None,
            _choice("history", request.history, HistoryLevel) if request.HasField("history") else None,
        )
        return wire.UpdateGroupResponse(status=status.OK, group=_group(group))

    async def delete_group(self, request: wire.DeleteGroupRequest, caller: Caller) -> wire.DeleteGroupResponse:
        await self._operations.delete_group(convert.resource(request.group, caller.namespace))
        return wire.DeleteGroupResponse(status=status.OK)

    async def get_group(self, request: wire.GetGroupRequest, caller: Caller) -> wire.GetGroupResponse:
        facts = await self._operations.group(convert.resource(request.group, caller.namespace))
        answer = wire.GetGroupResponse(status=status.OK, group=_group(facts.group))
        answer.group.lag.extend(map(_lag, facts.lag))
        return answer

    async def list_groups(self, _request: wire.ListGroupsRequest, caller: Caller) -> wire.ListGroupsResponse:
        """Those of the namespace in the call's header, or all."""
        groups, count = await self._operations.groups(caller.namespace or None)
        return wire.ListGroupsResponse(status=_listed(len(groups), count, "groups"), groups=map(_group, groups))

    async def peek_messages(self, request: wire.PeekMessagesRequest, caller: Caller) -> wire.PeekMessagesResponse:
        found = await self._operations.peek(
            convert.resource(request.topic, caller.namespace),
            request.queue_id if request.HasField("queue_id") else None,
            request.from_offset if request.HasField("from_offset") else None,
            request.max,
        )
        return wire.PeekMessagesResponse(status=status.OK, messages=map(_message, found))

    async def get_message(self, request: wire.GetMessageRequest, caller: Caller) -> wire.GetMessageResponse:
        topic = convert.resource(request.topic, caller.namespace) if request.HasField("topic") else None
        found = await self._operations.message(topic, request.message_id)
        return wire.GetMessageResponse(
            status=status.OK,
            message=_message(found.stored),
            states=map(_state, found.standings),
            history=map(_step, found.steps),
        )

    async def list_dead_letters(
        self, request: wire.ListDeadLettersRequest, caller: Caller
    ) -> wire.ListDeadLettersResponse:
        group = convert.resource(request.group, caller.namespace)
        topic = convert.resource(request.topic, caller.namespace) if request.HasField("topic") else None
        found = await self._operations.dead_letters(group, topic, request.after_id, request.max)
        return wire.ListDeadLettersResponse(status=status.OK, dead_letters=map(_dead_letter, found))

    async def get_dead_letter(self, request: wire.GetDeadLetterRequest, caller: Caller) -> wire.GetDeadLetterResponse:
        group = convert.resource(request.group, caller.namespace)
        found = await self._operations.dead_letter(group, request.message_id)
        return wire.GetDeadLetterResponse(status=status.OK, dead_letter=_dead_letter(found))

    async def get_status(self, _request: wire.GetStatusRequest, _caller: Caller) -> wire.GetStatusResponse:
        now = await self._operations.status()
        answer = wire.GetStatusResponse(
            status=status.OK,
            version=self._version,
            store=now.store,
            durability=now.durability,
            schema_revision=now.counts.revision,
            topics=now.counts.topics,
            groups=now.counts.groups,
            messages=now.counts.messages,
            dead_letters=now.counts.dead_letters,
            parked_polls=now.parked_polls,
            connected_clients=now.connected_clients,
            lag=map(_lag, now.lag),
        )
        convert.set_ms(answer.started_at, now.started_at_ms)
        convert.set_ms(answer.now, now.now_ms)
        return answer


def _unnoticed(_client_id: str) -> None:
    """Operators hold no messages: they are not counted among the clients, and nobody notices when they leave."""


def _listed(shown: int, count: int, what: str) -> pb.Status:
    return status.OK if shown == count else pb.Status(code=pb.OK, message=f"the first {shown} of {count} {what}")


def _message_types(types: Iterable[int]) -> tuple[MessageType, ...]:
    """Each once, in the order given."""
    return tuple(dict.fromkeys(map(_message_type, types)))


def _message_type(number: int) -> MessageType:
    try:
        return MessageType(pb.MessageType.Name(number))  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(f"{kind} ({pb.MessageType.Value(kind)})" for kind in sorted(BUILT_TYPES))
        raise BadRequest(f"message type {number} is not one a topic can accept; choose from {known}") from None


def _durations_ms(durations: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(convert.duration_ms, durations))


def _choice(field: str, given: str, choices: type[Choice]) -> Choice | None:
    """The choice of that name; None for an empty one."""
    if not given:
        return None
    try:
        return choices(given)
    except ValueError:
        raise BadRequest(f"{field} is '{given[:64]}'; choose one of {', '.join(choices)}") from None


def _resource(name: Resource) -> pb.Resource:
    return pb.Resource(resource_namespace=name.namespace, name=name.name)


def _topic(facts: TopicFacts) -> wire.Topic:
    topic = facts.topic
    answer = wire.Topic(
        topic=_resource(topic.name),
        queue_count=len(topic.queues),
        accept_message_types=[pb.MessageType.Value(kind) for kind in topic.accepts],
        message_count=facts.message_count,
    )
    convert.set_ms(answer.created_at, topic.created_at_ms)
    return answer


def _group(group: Group) -> wire.Group:
    answer = wire.Group(
        group=_resource(group.name),
        max_attempts=group.retry.max_attempts,
        consume_from=group.consume_from,
        history=group.history,
        mode=group.mode or "",
    )
    for interval_ms in group.retry.intervals_ms:
        convert.set_ms(answer.retry_intervals.add(), interval_ms)
    convert.set_ms(answer.created_at, group.created_at_ms)
    return answer


def _lag(lag: Lag) -> wire.GroupLag:
    answer = wire.GroupLag(
        group=_resource(lag.group),
        topic=_resource(lag.topic),
        ready=lag.ready,
        inflight=lag.inflight,
        waiting_retry=lag.waiting_retry,
        dead_letters=lag.dead_letters,
    )
    if lag.oldest_ready_ms is not None:
        convert.set_ms(answer.oldest_ready, lag.oldest_ready_ms)
    return answer


def _message(stored: StoredMessage) -> pb.Message:
    """A message as a receive would carry it, without the hold: nobody holds what is only looked at."""
    unheld = Delivery(stored, receipt_handle="", attempt=0, visible_at_ms=0)
    message: pb.Message = convert.frame(unheld, _resource(stored.message.topic), "", None).message
    message.system_properties.ClearField("receipt_handle")
    message.system_properties.ClearField("delivery_attempt")
    return message


def _state(standing: Standing) -> wire.MessageState:
    answer = wire.MessageState(
        group=_resource(standing.group),
        state=standing.state,
        delivery_attempt=standing.attempt,
        client_id=standing.client_id,
    )
    if standing.visible_at_ms is not None:
        convert.set_ms(answer.visible_at, standing.visible_at_ms)
    return answer


def _step(step: Step) -> wire.HistoryEntry:
    answer = wire.HistoryEntry(
        group=_resource(step.group),
        event=step.event,
        from_state=step.from_state,
        to_state=step.to_state,
        delivery_attempt=step.attempt,
        client_id=step.client_id,
        reason=step.reason,
    )
    convert.set_ms(answer.at, step.at_ms)
    return answer


def _dead_letter(found: DeadLetter) -> wire.DeadLetter:
    answer = wire.DeadLetter(
        id=found.dead_letter_id,
        group=_resource(found.group),
        delivery_attempt=found.attempt,
        reason=found.reason,
        redrive_state=found.redrive_state,
    )
    if found.topic is not None:
        answer.topic.CopyFrom(_resource(found.topic))
    if found.stored is not None:
        answer.message.CopyFrom(_message(found.stored))
        answer.origin_message_id = found.stored.message.message_id
    convert.set_ms(answer.dead_at, found.dead_at_ms)
    return answer
