"""Conversion between popmq.v1.Admin's messages and the server's own types. `transport.convert` does the same for the
protocol of clients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.administration.disk import DiskSpace
from popserver.administration.facts import DeadElsewhere, Lag, MessageState
from popserver.administration.filter_trial import Match
from popserver.administration.flow import GroupFacts
from popserver.administration.holds import Hold, LockedGroup
from popserver.catalog.facts import TopicFacts
from popserver.catalog.pauses import FirstPauses, GroupPause
from popserver.clients import settings
from popserver.clients.clients import Client
from popserver.cluster.sql import KnownServer
from popserver.delivery.history import HistoryStep
from popserver.engine.meters import Histogram
from popserver.maintenance.patrol import RepairedRow
from popserver.model.budget import Budget
from popserver.model.errors import BadRequest
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.retry import Exponential, Intervals
from popserver.model.topic import MessageType
from popserver.producing.pending_facts import ScheduledMessage
from popserver.transport import convert
from popserver.transport.convert import found_message


def accepted_types(types: Iterable[int]) -> tuple[MessageType, ...]:
    """The types without repetitions, in the given order. Raises `BadRequest` for an unknown one."""
    return tuple(dict.fromkeys(map(_message_type, types)))


def _message_type(number: int) -> MessageType:
    try:
        return MessageType(pb.MessageType.Name(number))  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(f"{kind} ({pb.MessageType.Value(kind)})" for kind in MessageType)
        raise BadRequest(f"a topic cannot accept message type {number}; choose from {known}") from None


def intervals_ms(request: wire.CreateGroupRequest | wire.UpdateGroupRequest) -> Intervals | None:
    """A request's retry ladder or exponential intervals; None if it has neither. Raises `BadRequest` if it has both."""
    ladder = tuple(map(convert.duration_ms, request.retry_intervals))
    if not request.HasField("exponential_retry"):
        return ladder or None
    if ladder:
        raise BadRequest("both a retry ladder and exponential intervals are given; leave one out")
    given, default = request.exponential_retry, Exponential()
    return Exponential(
        convert.duration_ms(given.initial) if given.HasField("initial") else default.initial_ms,
        convert.duration_ms(given.max) if given.HasField("max") else default.longest_ms,
        # The protocol's float turns 1.1 into 1.100000023841858; this turns it back.
        float(f"{given.multiplier:.7g}") if given.multiplier else default.multiplier,
    )


def lite_expires_ms(request: wire.CreateTopicRequest | wire.UpdateTopicRequest) -> int | None:
    return convert.duration_ms(request.lite_expiry) if request.HasField("lite_expiry") else None


def fifo_interval_ms(request: wire.CreateGroupRequest | wire.UpdateGroupRequest) -> int | None:
    return convert.duration_ms(request.fifo_retry_interval) if request.HasField("fifo_retry_interval") else None


def topic(facts: TopicFacts) -> wire.Topic:
    topic = facts.topic
    return wire.Topic(
        topic=convert.as_resource(topic.name),
        queue_count=len(topic.queues),
        accept_message_types=[pb.MessageType.Value(kind) for kind in topic.accepts],
        message_count=facts.message_count,
        created_at=convert.timestamp(topic.created_at_ms),
        lite_topic_count=facts.lite_topics,
        lite_expiry=None if topic.lite_expires_ms is None else convert.duration(topic.lite_expires_ms),
        closed_because=topic.closed_because or "",
    )


def group(group: Group) -> wire.Group:
    answer = wire.Group(
        group=convert.as_resource(group.name),
        max_attempts=group.retry.max_attempts,
        consume_from=group.consume_from,
        history=group.history,
        mode=group.mode or "",
        fifo_retry_interval=convert.duration(group.retry.fifo_interval_ms),
        created_at=convert.timestamp(group.created_at_ms),
        lite=group.lite or "",
    )
    settings.set_intervals(answer.exponential_retry, answer.retry_intervals, group.retry.intervals_ms)
    return answer


def groups(groups_: Iterable[Group], pauses: Mapping[int, FirstPauses]) -> Iterator[wire.Group]:
    """The groups, with their pauses; these are given by group id."""
    for found in groups_:
        answer = group(found)
        _add_pauses(answer, pauses[found.group_id])
        yield answer


def _add_pauses(answer: wire.Group, pauses: FirstPauses) -> None:
    answer.pauses.extend(map(_pause, pauses.shown))
    answer.more_pauses = pauses.more


def _pause(pause: GroupPause) -> wire.Pause:
    return wire.Pause(
        topic=None if pause.topic is None else convert.as_resource(pause.topic),
        message_group=pause.message_group,
        paused_at=convert.timestamp(pause.paused_at_ms),
        paused_by=pause.paused_by,
    )


def group_facts(facts: GroupFacts) -> wire.Group:
    answer = group(facts.group)
    answer.lag.extend(map(lag, facts.lag))
    answer.dead_elsewhere.extend(map(dead_elsewhere, facts.dead_elsewhere))
    answer.consumers.extend(map(_consumer, facts.consumers))
    if facts.redeliveries.deliveries:
        answer.redeliveries.deliveries = facts.redeliveries.deliveries
        answer.redeliveries.retries = facts.redeliveries.retries
        convert.set_ms(answer.redeliveries.over, facts.redeliveries.over_ms)
    answer.hints.extend(facts.hints)
    answer.lite_clients, answer.lite_subscriptions = facts.lite
    _add_pauses(answer, facts.pauses)
    return answer


def _consumer(client: Client) -> wire.Consumer:
    role = client.role
    assert role is not None, "only a client with a role is a consumer"
    return wire.Consumer(
        client_id=client.client_id,
        client_type=settings.client_type(role.kind),
        language=client.language,
        version=client.version,
        last_seen=convert.timestamp(client.last_seen_ms),
        connected=client.stream is not None,
        subscriptions=map(convert.subscription_entry, role.subscription.filters),
        more_subscriptions=role.subscription.more,
    )


def lag(lag: Lag) -> wire.GroupLag:
    return wire.GroupLag(
        group=convert.as_resource(lag.group),
        topic=convert.as_resource(lag.topic),
        ready=lag.ready,
        inflight=lag.inflight,
        waiting_retry=lag.waiting_retry,
        dead_letters=lag.dead_letters,
        oldest_ready=convert.timestamp(lag.oldest_ready_ms),
        stored=lag.stored,
        appended=lag.appended,
    )


def dead_elsewhere(dead: DeadElsewhere) -> wire.GroupLag:
    topic = None if dead.topic is None else convert.as_resource(dead.topic)
    return wire.GroupLag(group=convert.as_resource(dead.group), topic=topic, dead_letters=dead.letters)


def scheduled(found: ScheduledMessage) -> wire.ScheduledMessage:
    return wire.ScheduledMessage(
        id=found.pending_id,
        message=found_message(found.stored),
        kind=found.kind,
        due_at=convert.timestamp(found.due_at_ms),
        checks=found.checks,
        transaction_id=found.transaction_id,
    )


def match(match: Match, topic: Resource) -> pb.Message:
    """A message as the filter saw it."""
    return pb.Message(
        topic=convert.as_resource(topic),
        user_properties=match.properties,
        system_properties=pb.SystemProperties(
            message_id=match.message_id,
            tag=match.tag,
            keys=match.keys,
            store_timestamp=convert.timestamp(match.stored_at_ms),
            queue_id=match.queue_number,
            queue_offset=match.offset,
        ),
    )


def hold(found: Hold) -> wire.Hold:
    return wire.Hold(
        topic=convert.as_resource(found.topic),
        message_id=found.message_id,
        queue_id=found.queue_number,
        queue_offset=found.offset,
        state=found.state,
        delivery_attempt=found.attempt,
        visible_at=convert.timestamp(found.visible_at_ms),
        client_id=found.client_id,
        message_group=found.message_group or "",
        holder=found.holder,
    )


def locked(found: LockedGroup) -> wire.LockedMessageGroup:
    return wire.LockedMessageGroup(
        message_group=found.first.message_group or "",
        first=hold(found.first),
        stored_at=convert.timestamp(found.first.stored_at_ms),
        behind=found.behind,
    )


def state(state_: MessageState) -> wire.MessageState:
    return wire.MessageState(
        group=convert.as_resource(state_.group),
        state=state_.state,
        delivery_attempt=state_.attempt,
        client_id=state_.client_id,
        visible_at=convert.timestamp(state_.visible_at_ms),
    )


def step(step: HistoryStep) -> wire.HistoryEntry:
    return wire.HistoryEntry(
        group=convert.as_resource(step.group),
        event=step.event,
        from_state=step.from_state,
        to_state=step.to_state,
        delivery_attempt=step.attempt,
        client_id=step.client_id,
        reason=step.reason,
        at=convert.timestamp(step.at_ms),
    )


def repaired(row: RepairedRow) -> wire.StuckRow:
    stuck, at = row.broken.stuck, row.names
    return wire.StuckRow(
        invariant=stuck.name,
        repair=stuck.effect,
        group=None if at.group is None else convert.as_resource(at.group),
        topic=None if at.topic is None else convert.as_resource(at.topic),
        queue_id=at.queue_number,
        message_group=at.message_group,
        queue_offset=at.offset,
        repaired=row.is_repaired,
    )


def histogram(counted: Histogram) -> wire.Histogram:
    return wire.Histogram(limits=counted.limits, counts=counted.counts, sum=counted.total)


def storage(database_bytes: int, space: DiskSpace | None) -> wire.Storage:
    wal, free, disk = (None, None, None) if space is None else (space.wal, space.free, space.disk)
    return wire.Storage(database_bytes=database_bytes, wal_bytes=wal, disk_free_bytes=free, disk_bytes=disk)


def server(server: KnownServer, own_id: str) -> wire.Server:
    return wire.Server(
        server_id=server.server_id,
        address=server.address,
        last_seen=convert.timestamp(server.last_seen_ms),
        running=server.is_running,
        asked=server.server_id == own_id,
        leaving=server.leaves,
    )


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
