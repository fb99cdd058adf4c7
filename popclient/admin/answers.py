"""What popmq.v1.Admin answers, as facts."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from popclient import _convert as convert
from popclient.admin.facts import (
    Budget,
    ClientFacts,
    Consumer,
    Explanation,
    ExponentialBackoff,
    FilterTrial,
    Group,
    GroupLag,
    HistoryEntry,
    MessageFacts,
    MessageState,
    MovedOffset,
    Policy,
    Queue,
    QueueLag,
    Redeliveries,
    ScheduledMessage,
    Status,
    Subscription,
    Topic,
    Trial,
    User,
    Why,
)
from popclient.admin.redrive_facts import DeadLetter, DeadLetterPage, Redrive, RedrivePlan
from popclient.message import MessageView
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb


def topic_of(topic: wire.Topic) -> Topic:
    return Topic(
        name=topic.topic.name,
        namespace=topic.topic.resource_namespace,
        queue_count=topic.queue_count,
        accept_message_types=tuple(pb.MessageType.Name(kind) for kind in topic.accept_message_types),
        message_count=topic.message_count,
        created_at=_time_of(topic.created_at),
        queues=tuple(Queue(queue.id, queue.min_offset, queue.max_offset) for queue in topic.queues),
    )


def _backoff_of(backoff: pb.ExponentialBackoff) -> ExponentialBackoff:
    # 1.1, where the wire's narrow number is 1.100000023841858.
    multiplier = float(f"{backoff.multiplier:.7g}")
    return ExponentialBackoff(backoff.initial.ToTimedelta(), backoff.max.ToTimedelta(), multiplier)


def group_of(group: wire.Group) -> Group:
    return Group(
        name=group.group.name,
        namespace=group.group.resource_namespace,
        max_attempts=group.max_attempts,
        retry_intervals=tuple(interval.ToTimedelta() for interval in group.retry_intervals),
        retry_backoff=_backoff_of(group.exponential_retry) if group.HasField("exponential_retry") else None,
        consume_from=group.consume_from,
        history=group.history,
        mode=group.mode,
        created_at=_time_of(group.created_at),
        lag=tuple(map(_lag_of, group.lag)),
        fifo_retry_interval=group.fifo_retry_interval.ToTimedelta(),
        consumers=tuple(map(_consumer_of, group.consumers)),
        redeliveries=Redeliveries(
            group.redeliveries.deliveries, group.redeliveries.retries, group.redeliveries.over.ToTimedelta()
        ),
        hints=tuple(group.hints),
    )


def _lag_of(lag: wire.GroupLag) -> GroupLag:
    return GroupLag(
        group=lag.group.name,
        topic=lag.topic.name,
        ready=lag.ready,
        inflight=lag.inflight,
        waiting_retry=lag.waiting_retry,
        dead_letters=lag.dead_letters,
        oldest_ready=_time_of(lag.oldest_ready) if lag.HasField("oldest_ready") else None,
    )


def queue_lag_of(lag: wire.QueueLag) -> QueueLag:
    return QueueLag(
        topic=lag.topic.name,
        queue_id=lag.queue_id,
        min_offset=lag.min_offset,
        max_offset=lag.max_offset,
        offset=lag.offset,
        ready=lag.ready,
        inflight=lag.inflight,
        waiting_retry=lag.waiting_retry,
        client_id=lag.client_id,
    )


def moved_offset_of(moved: wire.MovedOffset) -> MovedOffset:
    return MovedOffset(moved.topic.name, moved.queue_id, moved.from_offset, moved.to_offset)


def _consumer_of(consumer: wire.Consumer) -> Consumer:
    return Consumer(
        client_id=consumer.client_id,
        kind=pb.ClientType.Name(consumer.client_type).removesuffix("_CONSUMER"),
        last_seen=_time_of(consumer.last_seen),
        connected=consumer.connected,
        subscriptions=tuple(
            Subscription(each.topic.name, pb.FilterType.Name(each.expression.type), each.expression.expression)
            for each in consumer.subscriptions
        ),
        more_subscriptions=consumer.more_subscriptions,
    )


def client_facts_of(client: wire.Client) -> ClientFacts:
    kind = pb.ClientType.Name(client.client_type) if client.client_type else ""
    return ClientFacts(client.client_id, kind, client.group.name, _time_of(client.last_seen), client.connected)


def trial_of(answer: wire.VerifyMessageResponse) -> Trial:
    code = answer.outcome.code
    known = code in pb.Code.values()
    return Trial(pb.Code.Name(code) if known else str(code), answer.outcome.message)


def message_facts_of(answer: wire.GetMessageResponse) -> MessageFacts:
    return MessageFacts(
        message=_view_of(answer.message),
        states=tuple(map(_state_of, answer.states)),
        history=tuple(map(_history_entry_of, answer.history)),
    )


def why_of(answer: wire.WhyResponse) -> Why:
    evidence = {fact.name: fact.value for fact in answer.evidence}
    return Why(answer.sentence, evidence, tuple(map(_history_entry_of, answer.history)))


def _state_of(state: wire.MessageState) -> MessageState:
    return MessageState(
        group=state.group.name,
        state=state.state,
        delivery_attempt=state.delivery_attempt,
        visible_at=_time_of(state.visible_at) if state.HasField("visible_at") else None,
        client_id=state.client_id,
    )


def _history_entry_of(entry: wire.HistoryEntry) -> HistoryEntry:
    return HistoryEntry(
        at=_time_of(entry.at),
        group=entry.group.name,
        event=entry.event,
        from_state=entry.from_state,
        to_state=entry.to_state,
        delivery_attempt=entry.delivery_attempt,
        client_id=entry.client_id,
        reason=entry.reason,
    )


def filter_trial_of(answer: wire.TryFilterResponse) -> FilterTrial:
    return FilterTrial(
        examined=answer.examined,
        matched=answer.matched,
        incomparable=answer.incomparable,
        complete=answer.complete,
        newest=tuple(views_of(answer.messages)),
    )


def scheduled_message_of(message: wire.ScheduledMessage) -> ScheduledMessage:
    return ScheduledMessage(
        id=message.id,
        message=_view_of(message.message),
        kind=message.kind,
        due_at=_time_of(message.due_at),
        checks=message.checks,
        transaction_id=message.transaction_id,
    )


def dead_letter_of(letter: wire.DeadLetter) -> DeadLetter:
    return DeadLetter(
        id=letter.id,
        group=letter.group.name,
        topic=letter.topic.name,
        message=_view_of(letter.message) if letter.HasField("message") else None,
        delivery_attempt=letter.delivery_attempt,
        reason=letter.reason,
        dead_at=_time_of(letter.dead_at),
        redrive_state=letter.redrive_state,
        origin_message_id=letter.origin_message_id,
        plan_id=letter.plan_id,
        queue_id=letter.queue_id if letter.HasField("queue_id") else None,
        queue_offset=letter.queue_offset if letter.HasField("queue_id") else None,
    )


def dead_letter_page_of(answer: wire.ListDeadLettersResponse) -> DeadLetterPage:
    return DeadLetterPage(
        tuple(map(dead_letter_of, answer.dead_letters)),
        answer.next_after_id if answer.HasField("next_after_id") else None,
    )


def redrive_plan_of(plan: wire.RedrivePlan) -> RedrivePlan:
    return RedrivePlan(
        plan_id=plan.plan_id,
        group=plan.group.name,
        state=plan.state,
        reason=plan.reason,
        target=plan.target.name if plan.HasField("target") else None,
        created_by=plan.created_by,
        created_at=_time_of(plan.created_at),
        planned=plan.planned,
        redriven=plan.redriven,
        skipped=plan.skipped,
    )


def redrive_of(redrive: wire.Redrive) -> Redrive:
    return Redrive(
        plan_id=redrive.plan_id,
        dead_letter_id=redrive.dead_letter_id,
        topic=redrive.topic.name,
        message_id=redrive.message_id,
        change=redrive.change,
        reason=redrive.reason,
        state=redrive.state,
        note=redrive.note,
        target=redrive.target.name if redrive.HasField("target") else None,
        redriven_message_id=redrive.redriven_message_id,
        redriven_at=_time_of(redrive.redriven_at) if redrive.HasField("redriven_at") else None,
        outcome=redrive.outcome,
    )


def user_of(user: wire.User) -> User:
    disabled_at = _time_of(user.disabled_at) if user.HasField("disabled_at") else None
    return User(user.access_key, user.is_admin, disabled_at, _time_of(user.created_at))


def policy_of(policy: wire.Policy) -> Policy:
    return Policy(
        id=policy.id,
        access_key=policy.access_key,
        effect=policy.effect,
        actions=tuple(policy.actions),
        resource_kind=policy.resource_kind,
        namespace=policy.pattern.resource_namespace,
        pattern=policy.pattern.name,
        created_at=_time_of(policy.created_at),
    )


def explanation_of(answer: wire.ExplainAccessResponse) -> Explanation:
    policy = policy_of(answer.policy) if answer.HasField("policy") else None
    return Explanation(answer.allowed, policy, answer.reason)


def status_of(answer: wire.GetStatusResponse) -> Status:
    return Status(
        version=answer.version,
        store=answer.store,
        durability=answer.durability,
        schema_revision=answer.schema_revision,
        started_at=_time_of(answer.started_at),
        now=_time_of(answer.now),
        topics=answer.topics,
        groups=answer.groups,
        messages=answer.messages,
        dead_letters=answer.dead_letters,
        parked_polls=answer.parked_polls,
        connected_clients=answer.connected_clients,
        discarded_transactions=answer.discarded_transactions,
        lag=tuple(map(_lag_of, answer.lag)),
        oldest_overdue=answer.oldest_overdue.ToTimedelta(),
        hints=tuple(answer.hints),
        budgets=tuple(map(_budget_of, answer.budgets)),
    )


def views_of(messages: Iterable[pb.Message]) -> list[MessageView]:
    """Of messages that nobody holds."""
    now = convert.now()
    return [MessageView(message, now) for message in messages]


def _budget_of(budget: wire.Budget) -> Budget:
    return Budget(
        name=budget.name,
        option=budget.option,
        unit=budget.unit,
        limit=budget.limit,
        used=budget.used,
        peak=budget.peak,
        refused=budget.refused,
    )


def _view_of(message: pb.Message) -> MessageView:
    return views_of([message])[0]


def _time_of(timestamp: Any) -> datetime:
    moment: datetime = timestamp.ToDatetime(UTC)
    return moment
