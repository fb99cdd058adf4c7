"""Between popmq.v1.Admin's messages and the operations' own types; `rpc.convert` does it for the clients' protocol."""

from __future__ import annotations

from collections.abc import Iterable

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.broker.operations import (
    Consumer,
    GroupFacts,
    Lag,
    Match,
    Scheduled,
    Standing,
    Step,
    TopicFacts,
)
from popserver.domain.budget import Budget
from popserver.domain.errors import BadRequest
from popserver.domain.group import Group
from popserver.domain.message import MessageType, StoredMessage
from popserver.domain.names import Resource
from popserver.domain.retry import Exponential, Intervals
from popserver.rpc import convert, settings


def message_types(types: Iterable[int]) -> tuple[MessageType, ...]:
    """Each once, in the order given."""
    return tuple(dict.fromkeys(map(_message_type, types)))


def _message_type(number: int) -> MessageType:
    try:
        return MessageType(pb.MessageType.Name(number))  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(f"{kind} ({pb.MessageType.Value(kind)})" for kind in MessageType)
        raise BadRequest(f"message type {number} is not one a topic can accept; choose from {known}") from None


def intervals_ms(request: wire.CreateGroupRequest | wire.UpdateGroupRequest) -> Intervals | None:
    """The ladder or the exponential intervals that a request gives; None for neither. Raises `BadRequest` for both."""
    ladder = tuple(map(convert.duration_ms, request.retry_intervals))
    if not request.HasField("exponential_retry"):
        return ladder or None
    if ladder:
        raise BadRequest("both a retry ladder and exponential intervals are given; leave one out")
    given, default = request.exponential_retry, Exponential()
    return Exponential(
        convert.duration_ms(given.initial) if given.HasField("initial") else default.initial_ms,
        convert.duration_ms(given.max) if given.HasField("max") else default.longest_ms,
        # 1.1, where the wire's narrow number is 1.100000023841858.
        float(f"{given.multiplier:.7g}") if given.multiplier else default.multiplier,
    )


def fifo_interval_ms(request: wire.CreateGroupRequest | wire.UpdateGroupRequest) -> int | None:
    return convert.duration_ms(request.fifo_retry_interval) if request.HasField("fifo_retry_interval") else None


def topic(facts: TopicFacts) -> wire.Topic:
    topic = facts.topic
    answer = wire.Topic(
        topic=convert.as_resource(topic.name),
        queue_count=len(topic.queues),
        accept_message_types=[pb.MessageType.Value(kind) for kind in topic.accepts],
        message_count=facts.message_count,
    )
    convert.set_ms(answer.created_at, topic.created_at_ms)
    return answer


def group(group: Group) -> wire.Group:
    answer = wire.Group(
        group=convert.as_resource(group.name),
        max_attempts=group.retry.max_attempts,
        consume_from=group.consume_from,
        history=group.history,
        mode=group.mode or "",
    )
    settings.set_intervals(answer.exponential_retry, answer.retry_intervals, group.retry.intervals_ms)
    convert.set_ms(answer.fifo_retry_interval, group.retry.fifo_interval_ms)
    convert.set_ms(answer.created_at, group.created_at_ms)
    return answer


def group_facts(facts: GroupFacts) -> wire.Group:
    answer = group(facts.group)
    answer.lag.extend(map(lag, facts.lag))
    answer.consumers.extend(map(_consumer, facts.consumers))
    if facts.redeliveries.deliveries:
        answer.redeliveries.deliveries = facts.redeliveries.deliveries
        answer.redeliveries.retries = facts.redeliveries.retries
        convert.set_ms(answer.redeliveries.over, facts.redeliveries.over_ms)
    answer.hints.extend(facts.hints)
    return answer


def _consumer(consumer: Consumer) -> wire.Consumer:
    answer = wire.Consumer(
        client_id=consumer.client_id,
        client_type=settings.client_type(consumer.kind),
        connected=consumer.is_connected,
        more_subscriptions=consumer.subscription.more,
    )
    for want in consumer.subscription.wants:
        filter_type = pb.FilterType.Value(want.kind)
        expression = pb.FilterExpression(type=filter_type, expression=want.expression)
        answer.subscriptions.add(topic=convert.as_resource(want.topic), expression=expression)
    convert.set_ms(answer.last_seen, consumer.last_seen_ms)
    return answer


def lag(lag: Lag) -> wire.GroupLag:
    answer = wire.GroupLag(
        group=convert.as_resource(lag.group),
        topic=convert.as_resource(lag.topic),
        ready=lag.ready,
        inflight=lag.inflight,
        waiting_retry=lag.waiting_retry,
        dead_letters=lag.dead_letters,
    )
    if lag.oldest_ready_ms is not None:
        convert.set_ms(answer.oldest_ready, lag.oldest_ready_ms)
    return answer


def message(stored: StoredMessage) -> pb.Message:
    return convert.unheld(stored, convert.as_resource(stored.message.topic))


def scheduled(found: Scheduled) -> wire.ScheduledMessage:
    answer = wire.ScheduledMessage(
        id=found.pending_id,
        message=message(found.stored),
        kind=found.kind,
        checks=found.checks,
        transaction_id=found.transaction_id,
    )
    convert.set_ms(answer.due_at, found.due_at_ms)
    return answer


def match(match: Match, topic: Resource) -> pb.Message:
    """What a filter saw of a message."""
    message = pb.Message(topic=convert.as_resource(topic), user_properties=match.properties)
    system = message.system_properties
    system.message_id = match.message_id
    if match.tag is not None:
        system.tag = match.tag
    convert.set_ms(system.store_timestamp, match.stored_at_ms)
    system.queue_id, system.queue_offset = match.queue_number, match.offset
    return message


def state(standing: Standing) -> wire.MessageState:
    answer = wire.MessageState(
        group=convert.as_resource(standing.group),
        state=standing.state,
        delivery_attempt=standing.attempt,
        client_id=standing.client_id,
    )
    if standing.visible_at_ms is not None:
        convert.set_ms(answer.visible_at, standing.visible_at_ms)
    return answer


def step(step: Step) -> wire.HistoryEntry:
    answer = wire.HistoryEntry(
        group=convert.as_resource(step.group),
        event=step.event,
        from_state=step.from_state,
        to_state=step.to_state,
        delivery_attempt=step.attempt,
        client_id=step.client_id,
        reason=step.reason,
    )
    convert.set_ms(answer.at, step.at_ms)
    return answer


def budget(budget: Budget) -> wire.Budget:
    return wire.Budget(
        name=budget.name,
        option=budget.option,
        unit=budget.unit,
        limit=budget.limit,
        used=budget.used,
        peak=budget.peak,
        refused=budget.refused,
    )
