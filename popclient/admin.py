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
class Group:
    """A consumer group.

    max_attempts: the first delivery included. retry_intervals: before each further attempt; the last one repeats.
    consume_from: EARLIEST or LATEST. history: none, errors or all. mode: POP or PULL, empty until first use.
    lag: per topic, filled by `get_group` alone.
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
    """The server in numbers. `store` is its database URL without the password."""

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
    lag: tuple[GroupLag, ...]


class Admin:
    """The administration of one server.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    connect_timeout: seconds to wait for a server that has not answered yet; then Unreachable.

    Every method raises a PopError: BadRequest, NotFound, Unreachable, UnsupportedByServer and so on.
    """

    def __init__(self, endpoints: str | ClientConfig | None = None, *, connect_timeout: float = 1.0) -> None:
        self._config = ClientConfig.of(endpoints)
        self._connect_timeout = connect_timeout
        self._thread = loop_thread()
        self._transport = Transport(self._config, new_client_id())

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
        consume_from: str = "",
        history: str = "",
    ) -> Group:
        """What is not given is the server's default. Intervals are seconds or timedeltas."""
        request = wire.CreateGroupRequest(
            group=self._named(name), max_attempts=max_attempts, consume_from=consume_from, history=history
        )
        _add_intervals(request.retry_intervals, retry_intervals)
        return _group(self._call(lambda link: link.admin.CreateGroup, request).group)

    def update_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        retry_intervals: Iterable[float | timedelta] = (),
        history: str | None = None,
    ) -> Group:
        """What is not given stays as it is."""
        request = wire.UpdateGroupRequest(group=self._named(name), max_attempts=max_attempts, history=history)
        _add_intervals(request.retry_intervals, retry_intervals)
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
            lag=tuple(map(_lag, answer.lag)),
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
