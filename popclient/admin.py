"""Administration of a PopMQ server: topics, groups, looking at messages, dead letters, status.

Speaks popmq.v1.Admin, which a RocketMQ server does not have: every call then raises UnsupportedByServer. Synchronous,
safe in threads, fails fast when nobody listens.

    with Admin("127.0.0.1:8081") as admin:
        admin.create_topic("flights", queue_count=8)
        print(admin.status().messages)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from popclient import _convert as convert
from popclient._loop import loop_thread
from popclient._transport import Link, Transport, new_client_id
from popclient.access import (
    Explanation,
    NewUser,
    Policy,
    User,
    explanation_of,
    new_secret,
    policy_of,
    user_of,
)
from popclient.config import ClientConfig
from popclient.errors import UnsupportedByServer, check
from popclient.message import MessageView
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb

Answer = TypeVar("Answer")
PAGE = 100  # dead letters asked for at once


@dataclass(frozen=True, slots=True)
class Queue:
    """A message queue: the offset of its oldest stored message, and the one the next message gets."""

    id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Topic:
    """`message_count` is what is stored now; `queues` is filled by `get_topic` alone."""

    name: str
    namespace: str
    queue_count: int
    accept_message_types: tuple[str, ...]
    message_count: int
    created_at: datetime
    queues: tuple[Queue, ...]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind in a topic, in messages.

    `oldest_ready` is when the oldest message it never received was stored.
    """

    group: str
    topic: str
    ready: int
    inflight: int
    waiting_retry: int
    dead_letters: int
    oldest_ready: datetime | None


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic that a consumer wants, by a filter: its kind is TAG or SQL."""

    topic: str
    kind: str
    expression: str


@dataclass(frozen=True, slots=True)
class Consumer:
    """A client that works for a group, as the asked server knows it.

    kind: PUSH, SIMPLE or PULL. connected: it has an open stream. `more_subscriptions` of its topics are left out.
    """

    client_id: str
    kind: str
    last_seen: datetime
    connected: bool
    subscriptions: tuple[Subscription, ...]
    more_subscriptions: int


@dataclass(frozen=True, slots=True)
class Redeliveries:
    """Of `deliveries` that the asked server handed out in the time `over`, `retries` were not a message's first."""

    deliveries: int
    retries: int
    over: timedelta

    @property
    def ratio(self) -> float:
        """0 to 1."""
        return self.retries / self.deliveries if self.deliveries else 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group.

    max_attempts: the first delivery included. retry_intervals: before each further attempt; the last one repeats.
    fifo_retry_interval: the same for a message of a message group, whose group waits with it.
    consume_from: EARLIEST or LATEST. history: none, errors or all. mode: POP or PULL, empty until first use.
    Filled by `get_group` alone: lag, per topic; consumers, who works for it with the asked server; redeliveries;
    hints, a sentence for each thing that deserves a look.
    """

    name: str
    namespace: str
    max_attempts: int
    retry_intervals: tuple[timedelta, ...]
    consume_from: str
    history: str
    mode: str
    created_at: datetime
    lag: tuple[GroupLag, ...]
    fifo_retry_interval: timedelta
    consumers: tuple[Consumer, ...]
    redeliveries: Redeliveries
    hints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessageState:
    """Where a message stands in a group; `visible_at` is when a hold or back-off ends, `client_id` who holds it."""

    group: str
    state: str
    delivery_attempt: int
    visible_at: datetime | None
    client_id: str


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One step of a message in a group, and why it was taken."""

    at: datetime
    group: str
    event: str
    from_state: str
    to_state: str
    delivery_attempt: int
    client_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """A message, its state in each group, and as much of its history as each group keeps, oldest first."""

    message: MessageView
    states: tuple[MessageState, ...]
    history: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class Why:
    """Why a message is where it is in a group: one sentence, what it rests on, and the group's history of it."""

    sentence: str
    evidence: dict[str, str]
    history: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class FilterTrial:
    """What a SQL filter says of stored messages: of `examined` ones `matched` are wanted.

    `incomparable` more are not, because a property is not what the expression takes it for. Not `complete`: older
    messages were left out. `newest` are some of the matches, newest first, without their bodies.
    """

    examined: int
    matched: int
    incomparable: int
    complete: bool
    newest: tuple[MessageView, ...]


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A message in no queue yet.

    kind: DELAY, or HALF of a transaction. due_at: when it enters its queue, or when its producers are asked next.
    checks: how often they were asked. id: its place among those that are due at the same time.
    """

    id: int
    message: MessageView
    kind: str
    due_at: datetime
    checks: int
    transaction_id: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message a group has given up. `topic` is where it came from; `message` is None once it is deleted."""

    id: int
    group: str
    topic: str
    message: MessageView | None
    delivery_attempt: int
    reason: str
    dead_at: datetime
    redrive_state: str
    origin_message_id: str


@dataclass(frozen=True, slots=True)
class Status:
    """The server in numbers. `store` is its database URL without the password.

    oldest_overdue: how late the latest hold, back-off or delayed message is that should have ended; 0 when none is.
    hints: a sentence for each thing that deserves a look.
    """

    version: str
    store: str
    durability: str
    schema_revision: str
    started_at: datetime
    now: datetime
    topics: int
    groups: int
    messages: int
    dead_letters: int
    parked_polls: int
    connected_clients: int
    discarded_transactions: int
    lag: tuple[GroupLag, ...]
    oldest_overdue: timedelta
    hints: tuple[str, ...]


class Admin:
    """The administration of one server.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    connect_timeout: seconds to wait for a server that has not answered yet; then Unreachable.
    transport: another way to the server than the endpoints.

    Every method raises a PopError: BadRequest, NotFound, Unreachable, UnsupportedByServer and so on.
    """

    def __init__(
        self,
        endpoints: str | ClientConfig | None = None,
        *,
        connect_timeout: float = 1.0,
        transport: Transport | None = None,
    ) -> None:
        self._config = ClientConfig.of(endpoints)
        self._connect_timeout = connect_timeout
        self._thread = loop_thread()
        self._transport = transport or Transport(self._config, new_client_id())

    # ---- Topics ----

    def create_topic(self, name: str, *, queue_count: int = 0, accept_message_types: Iterable[str] = ()) -> Topic:
        """0 queues and no types stand for the server's defaults. Types are NORMAL, FIFO, DELAY, TRANSACTION."""
        request = wire.CreateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=_types(accept_message_types)
        )
        return _topic(self._call(lambda link: link.admin.CreateTopic, request).topic)

    def update_topic(
        self, name: str, *, queue_count: int | None = None, accept_message_types: Iterable[str] = ()
    ) -> Topic:
        """What is not given stays as it is. The number of queues only grows."""
        request = wire.UpdateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=_types(accept_message_types)
        )
        return _topic(self._call(lambda link: link.admin.UpdateTopic, request).topic)

    def delete_topic(self, name: str) -> None:
        self._call(lambda link: link.admin.DeleteTopic, wire.DeleteTopicRequest(topic=self._named(name)))

    def get_topic(self, name: str) -> Topic:
        return _topic(self._call(lambda link: link.admin.GetTopic, wire.GetTopicRequest(topic=self._named(name))).topic)

    def list_topics(self) -> list[Topic]:
        """Those of the config's namespace; all of them without one. Servers bound the list."""
        return [
            _topic(each) for each in self._call(lambda link: link.admin.ListTopics, wire.ListTopicsRequest()).topics
        ]

    # ---- Groups ----

    def create_group(
        self,
        name: str,
        *,
        max_attempts: int = 0,
        retry_intervals: Iterable[float | timedelta] = (),
        fifo_retry_interval: float | timedelta | None = None,
        consume_from: str = "",
        history: str = "",
    ) -> Group:
        """What is not given is the server's default. Intervals are seconds or timedeltas."""
        request = wire.CreateGroupRequest(
            group=self._named(name), max_attempts=max_attempts, consume_from=consume_from, history=history
        )
        _add_intervals(request.retry_intervals, retry_intervals)
        _set_interval(request, fifo_retry_interval)
        return _group(self._call(lambda link: link.admin.CreateGroup, request).group)

    def update_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        retry_intervals: Iterable[float | timedelta] = (),
        fifo_retry_interval: float | timedelta | None = None,
        history: str | None = None,
    ) -> Group:
        """What is not given stays as it is."""
        request = wire.UpdateGroupRequest(group=self._named(name), max_attempts=max_attempts, history=history)
        _add_intervals(request.retry_intervals, retry_intervals)
        _set_interval(request, fifo_retry_interval)
        return _group(self._call(lambda link: link.admin.UpdateGroup, request).group)

    def delete_group(self, name: str) -> None:
        self._call(lambda link: link.admin.DeleteGroup, wire.DeleteGroupRequest(group=self._named(name)))

    def get_group(self, name: str) -> Group:
        return _group(self._call(lambda link: link.admin.GetGroup, wire.GetGroupRequest(group=self._named(name))).group)

    def list_groups(self) -> list[Group]:
        """Those of the config's namespace; all of them without one. Servers bound the list."""
        return [
            _group(each) for each in self._call(lambda link: link.admin.ListGroups, wire.ListGroupsRequest()).groups
        ]

    # ---- Messages ----

    def peek_messages(
        self, topic: str, *, queue_id: int | None = None, from_offset: int | None = None, max_messages: int = 32
    ) -> list[MessageView]:
        """Reads without holding: no group's progress changes. Without a queue all of them, from their oldest on."""
        request = wire.PeekMessagesRequest(
            topic=self._named(topic), queue_id=queue_id, from_offset=from_offset, max=max_messages
        )
        return _views(self._call(lambda link: link.admin.PeekMessages, request).messages)

    def get_message(self, message_id: str, topic: str | None = None) -> MessageFacts:
        """A message with its states and history; without a topic all of them are searched."""
        request = wire.GetMessageRequest(topic=None if topic is None else self._named(topic), message_id=message_id)
        answer = self._call(lambda link: link.admin.GetMessage, request)
        return MessageFacts(
            _view(answer.message), tuple(map(_state, answer.states)), tuple(map(_history_entry, answer.history))
        )

    def why(self, message_id: str, group: str, topic: str | None = None) -> Why:
        """Why the message is where it is in that group; without a topic all of them are searched."""
        request = wire.WhyRequest(
            topic=None if topic is None else self._named(topic), group=self._named(group), message_id=message_id
        )
        answer = self._call(lambda link: link.admin.Why, request)
        evidence = {fact.name: fact.value for fact in answer.evidence}
        return Why(answer.sentence, evidence, tuple(map(_history_entry, answer.history)))

    def try_filter(
        self, expression: str, topic: str, *, last: float | timedelta | None = None, max_messages: int = 10
    ) -> FilterTrial:
        """What a SQL filter would have wanted of the messages stored in the `last` time, or of all. Nothing changes.

        `last` is seconds or a timedelta; at most the newest 100,000 messages are examined. Raises BadRequest, saying
        where, for an expression that is illegal.
        """
        request = wire.TryFilterRequest(topic=self._named(topic), expression=expression, max=max_messages)
        if last is not None:
            request.last.FromTimedelta(convert.as_timedelta("last", last))
        answer = self._call(lambda link: link.admin.TryFilter, request)
        return FilterTrial(
            examined=answer.examined,
            matched=answer.matched,
            incomparable=answer.incomparable,
            complete=answer.complete,
            newest=tuple(_views(answer.messages)),
        )

    # ---- Messages in no queue yet ----

    def list_scheduled(
        self, topic: str, *, after: ScheduledMessage | None = None, max_messages: int = PAGE
    ) -> list[ScheduledMessage]:
        """One page of delayed and half messages, by due time; the last one, given as `after`, leads to the next."""
        request = wire.ListScheduledRequest(topic=self._named(topic), max=max_messages)
        if after is not None:
            request.after_due_at.FromDatetime(after.due_at)
            request.after_id = after.id
        answer = self._call(lambda link: link.admin.ListScheduled, request)
        return [
            ScheduledMessage(
                each.id, _view(each.message), each.kind, _time(each.due_at), each.checks, each.transaction_id
            )
            for each in answer.messages
        ]

    def scheduled(self, topic: str) -> Iterator[ScheduledMessage]:
        """All of them, by due time, page by page."""
        page = self.list_scheduled(topic)
        while page:
            yield from page
            page = self.list_scheduled(topic, after=page[-1])

    def cancel_scheduled(self, topic: str, message_ids: Iterable[str] = (), *, key: str | None = None) -> list[str]:
        """Removes delayed and half messages, by id or (at most 1,000 at once) by key; the ids of what was there."""
        request = wire.CancelScheduledRequest(topic=self._named(topic), message_ids=message_ids, key=key)
        return list(self._call(lambda link: link.admin.CancelScheduled, request).message_ids)

    # ---- Dead letters ----

    def list_dead_letters(
        self, group: str, *, topic: str | None = None, after_id: int = 0, max_messages: int = PAGE
    ) -> list[DeadLetter]:
        """One page, oldest first; the last one's id, given as `after_id`, leads to the next."""
        request = wire.ListDeadLettersRequest(
            group=self._named(group),
            topic=None if topic is None else self._named(topic),
            after_id=after_id,
            max=max_messages,
        )
        answer = self._call(lambda link: link.admin.ListDeadLetters, request)
        return [_dead_letter(each) for each in answer.dead_letters]

    def dead_letters(self, group: str, *, topic: str | None = None) -> Iterator[DeadLetter]:
        """All of them, oldest first, page by page."""
        page = self.list_dead_letters(group, topic=topic)
        while page:
            yield from page
            page = self.list_dead_letters(group, topic=topic, after_id=page[-1].id)

    def get_dead_letter(self, group: str, message_id: str) -> DeadLetter:
        request = wire.GetDeadLetterRequest(group=self._named(group), message_id=message_id)
        return _dead_letter(self._call(lambda link: link.admin.GetDeadLetter, request).dead_letter)

    # ---- Users and policies ----

    def create_user(self, access_key: str, secret: str | None = None, *, is_admin: bool = False) -> NewUser:
        """Without a secret it gets a random one; the answer is the only place that ever shows it."""
        secret = new_secret() if secret is None else secret
        request = wire.CreateUserRequest(access_key=access_key, secret=secret, is_admin=is_admin)
        return NewUser(user_of(self._call(lambda link: link.admin.CreateUser, request).user), secret)

    def rotate_secret(self, access_key: str, secret: str | None = None) -> NewUser:
        """Another secret for the user, a random one where none is given. The old one counts no more at once."""
        secret = new_secret() if secret is None else secret
        request = wire.UpdateUserRequest(access_key=access_key, secret=secret)
        return NewUser(user_of(self._call(lambda link: link.admin.UpdateUser, request).user), secret)

    def disable_user(self, access_key: str) -> User:
        """Shut a user out, its open sessions included; what it may do is remembered."""
        return self._set_disabled(access_key, disabled=True)

    def enable_user(self, access_key: str) -> User:
        return self._set_disabled(access_key, disabled=False)

    def delete_user(self, access_key: str) -> None:
        """With its policies."""
        self._call(lambda link: link.admin.DeleteUser, wire.DeleteUserRequest(access_key=access_key))

    def list_users(self) -> list[User]:
        """By name. Servers bound the list."""
        return [user_of(each) for each in self._call(lambda link: link.admin.ListUsers, wire.ListUsersRequest()).users]

    def add_policy(
        self, access_key: str, effect: str, actions: Iterable[str], resource_kind: str, pattern: str
    ) -> Policy:
        """Say what a user may do (`effect` ALLOW) or may not (DENY); see `Policy` for the words.

        The pattern is one of the config's namespace. The actions join those of the policy that says the same of it.
        """
        request = wire.AddPolicyRequest(
            access_key=access_key,
            effect=effect.upper(),
            actions=actions,
            resource_kind=resource_kind,
            pattern=self._named(pattern),
        )
        return policy_of(self._call(lambda link: link.admin.AddPolicy, request).policy)

    def remove_policy(self, policy_id: int) -> Policy:
        """The policy that is gone."""
        answer = self._call(lambda link: link.admin.RemovePolicy, wire.RemovePolicyRequest(id=policy_id))
        return policy_of(answer.policy)

    def list_policies(self, access_key: str = "") -> list[Policy]:
        """One user's, or everybody's. Servers bound the list."""
        answer = self._call(lambda link: link.admin.ListPolicies, wire.ListPoliciesRequest(access_key=access_key))
        return [policy_of(each) for each in answer.policies]

    def explain_access(self, access_key: str, action: str, resource_kind: str, name: str) -> Explanation:
        """Whether the user may PUB or SUB the topic or group, and why."""
        request = wire.ExplainAccessRequest(
            access_key=access_key, action=action, resource_kind=resource_kind, resource=self._named(name)
        )
        return explanation_of(self._call(lambda link: link.admin.ExplainAccess, request))

    def _set_disabled(self, access_key: str, *, disabled: bool) -> User:
        request = wire.UpdateUserRequest(access_key=access_key, disabled=disabled)
        return user_of(self._call(lambda link: link.admin.UpdateUser, request).user)

    # ---- The server ----

    def status(self) -> Status:
        answer = self._call(lambda link: link.admin.GetStatus, wire.GetStatusRequest())
        return Status(
            version=answer.version,
            store=answer.store,
            durability=answer.durability,
            schema_revision=answer.schema_revision,
            started_at=_time(answer.started_at),
            now=_time(answer.now),
            topics=answer.topics,
            groups=answer.groups,
            messages=answer.messages,
            dead_letters=answer.dead_letters,
            parked_polls=answer.parked_polls,
            connected_clients=answer.connected_clients,
            discarded_transactions=answer.discarded_transactions,
            lag=tuple(map(_lag, answer.lag)),
            oldest_overdue=answer.oldest_overdue.ToTimedelta(),
            hints=tuple(answer.hints),
        )

    def close(self) -> None:
        """Closing twice is fine."""
        self._thread.run(self._transport.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _named(self, name: str) -> pb.Resource:
        return convert.resource(name, self._config.namespace)

    def _call(self, pick: Callable[[Link], Callable[..., Awaitable[Answer]]], request: Any) -> Answer:
        timeout = self._config.request_timeout
        patience = timeout if self._transport.reached else min(timeout, self._connect_timeout)
        try:
            answer = self._thread.run(lambda: self._transport.unary(pick, request, patience))
        except UnsupportedByServer as refusal:
            raise UnsupportedByServer(
                f"the server at {self._transport.where} has no popmq.v1.Admin; only PopMQ offers it", name=refusal.name
            ) from None
        check(answer.status)  # type: ignore[attr-defined]
        return answer


def _types(names: Iterable[str]) -> list[pb.MessageType.ValueType]:
    known = [name for name, number in pb.MessageType.items() if number]
    wanted = list(names)
    for name in wanted:
        if name not in known:
            raise ValueError(f"message type {name!r} is not known; choose from {', '.join(known)}")
    return [pb.MessageType.Value(name) for name in wanted]


def _add_intervals(to: Any, intervals: Iterable[float | timedelta]) -> None:
    for interval in intervals:
        to.add().FromTimedelta(convert.as_timedelta("retry interval", interval))


def _set_interval(request: Any, interval: float | timedelta | None) -> None:
    if interval is not None:
        request.fifo_retry_interval.FromTimedelta(convert.as_timedelta("retry interval in order", interval))


def _time(timestamp: Any) -> datetime:
    moment: datetime = timestamp.ToDatetime(UTC)
    return moment


def _view(message: pb.Message) -> MessageView:
    return _views([message])[0]


def _views(messages: Iterable[pb.Message]) -> list[MessageView]:
    """Of messages that nobody holds."""
    now = convert.now()
    return [MessageView(message, now) for message in messages]


def _topic(topic: wire.Topic) -> Topic:
    return Topic(
        name=topic.topic.name,
        namespace=topic.topic.resource_namespace,
        queue_count=topic.queue_count,
        accept_message_types=tuple(pb.MessageType.Name(kind) for kind in topic.accept_message_types),
        message_count=topic.message_count,
        created_at=_time(topic.created_at),
        queues=tuple(Queue(queue.id, queue.min_offset, queue.max_offset) for queue in topic.queues),
    )


def _lag(lag: wire.GroupLag) -> GroupLag:
    return GroupLag(
        group=lag.group.name,
        topic=lag.topic.name,
        ready=lag.ready,
        inflight=lag.inflight,
        waiting_retry=lag.waiting_retry,
        dead_letters=lag.dead_letters,
        oldest_ready=_time(lag.oldest_ready) if lag.HasField("oldest_ready") else None,
    )


def _group(group: wire.Group) -> Group:
    return Group(
        name=group.group.name,
        namespace=group.group.resource_namespace,
        max_attempts=group.max_attempts,
        retry_intervals=tuple(interval.ToTimedelta() for interval in group.retry_intervals),
        consume_from=group.consume_from,
        history=group.history,
        mode=group.mode,
        created_at=_time(group.created_at),
        lag=tuple(map(_lag, group.lag)),
        fifo_retry_interval=group.fifo_retry_interval.ToTimedelta(),
        consumers=tuple(map(_consumer, group.consumers)),
        redeliveries=Redeliveries(
            group.redeliveries.deliveries, group.redeliveries.retries, group.redeliveries.over.ToTimedelta()
        ),
        hints=tuple(group.hints),
    )


def _consumer(consumer: wire.Consumer) -> Consumer:
    return Consumer(
        client_id=consumer.client_id,
        kind=pb.ClientType.Name(consumer.client_type).removesuffix("_CONSUMER"),
        last_seen=_time(consumer.last_seen),
        connected=consumer.connected,
        subscriptions=tuple(
            Subscription(each.topic.name, pb.FilterType.Name(each.expression.type), each.expression.expression)
            for each in consumer.subscriptions
        ),
        more_subscriptions=consumer.more_subscriptions,
    )


def _state(state: wire.MessageState) -> MessageState:
    return MessageState(
        group=state.group.name,
        state=state.state,
        delivery_attempt=state.delivery_attempt,
        visible_at=_time(state.visible_at) if state.HasField("visible_at") else None,
        client_id=state.client_id,
    )


def _history_entry(entry: wire.HistoryEntry) -> HistoryEntry:
    return HistoryEntry(
        at=_time(entry.at),
        group=entry.group.name,
        event=entry.event,
        from_state=entry.from_state,
        to_state=entry.to_state,
        delivery_attempt=entry.delivery_attempt,
        client_id=entry.client_id,
        reason=entry.reason,
    )


def _dead_letter(letter: wire.DeadLetter) -> DeadLetter:
    return DeadLetter(
        id=letter.id,
        group=letter.group.name,
        topic=letter.topic.name,
        message=_view(letter.message) if letter.HasField("message") else None,
        delivery_attempt=letter.delivery_attempt,
        reason=letter.reason,
        dead_at=_time(letter.dead_at),
        redrive_state=letter.redrive_state,
        origin_message_id=letter.origin_message_id,
    )
