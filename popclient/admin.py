"""Administration of a PopMQ server: topics, groups, single messages, dead letters, status.

    from popclient.admin import Admin

    with Admin("127.0.0.1:8081") as admin:
        admin.create_topic("flights", queue_count=16)
        print(admin.group("billing").lag)

Only PopMQ offers this; against another RocketMQ 5 server every call raises `UnsupportedByServer`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self

from popclient._convert import as_timedelta, now, resource
from popclient._loop import loop_thread
from popclient._transport import Link, Transport
from popclient.config import ClientConfig
from popclient.errors import check
from popclient.message import MessageView
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb

log = logging.getLogger("popclient")


class Queue(NamedTuple):
    """One queue of a topic: it stores the offsets from `min_offset` up to, not including, `max_offset`."""

    id: int
    min_offset: int
    max_offset: int


class Topic(NamedTuple):
    """A topic. `message_count` is what is stored now; `queues` is filled by `Admin.topic` alone."""

    name: str
    namespace: str
    queue_count: int
    message_types: tuple[str, ...]
    message_count: int
    created_at: datetime
    queues: tuple[Queue, ...] = ()


class GroupLag(NamedTuple):
    """How far a group is behind in one topic, in messages; `oldest_ready`: when the oldest ready one was stored."""

    group: str
    group_namespace: str
    topic: str
    topic_namespace: str
    ready: int
    inflight: int
    waiting_retry: int
    dead_letters: int
    oldest_ready: datetime | None


class Group(NamedTuple):
    """A consumer group. `max_attempts` counts the first delivery; the last of `retry_intervals` repeats.

    `mode` is POP or PULL, empty until its first use. `lag` is filled by `Admin.group` alone.
    """

    name: str
    namespace: str
    max_attempts: int
    retry_intervals: tuple[timedelta, ...]
    consume_from: str
    history: str
    mode: str
    created_at: datetime
    lag: tuple[GroupLag, ...] = ()


class MessageState(NamedTuple):
    """Where one message stands in one group. `visible_at` is when a hold or a back-off ends."""

    group: str
    namespace: str
    state: str
    delivery_attempt: int
    visible_at: datetime | None
    client_id: str


class HistoryEntry(NamedTuple):
    """One step of a message in one group, and why it was taken."""

    at: datetime
    group: str
    namespace: str
    event: str
    from_state: str
    to_state: str
    delivery_attempt: int
    client_id: str
    reason: str


class FoundMessage(NamedTuple):
    """A message by its id, its state in every group that has met its topic, and the history they keep of it."""

    message: MessageView
    states: tuple[MessageState, ...]
    history: tuple[HistoryEntry, ...]


class DeadLetter(NamedTuple):
    """A dead letter of a group. `topic` is where it came from, empty once that topic is gone."""

    id: int
    group: str
    namespace: str
    topic: str
    message_id: str
    message: MessageView
    delivery_attempt: int
    reason: str
    dead_at: datetime
    redrive_state: str


class ServerStatus(NamedTuple):
    """The server at this moment."""

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
    """An operator's way to one PopMQ server. Safe in threads; close it, or use it in a `with` block.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS). Topics and groups
        are those of the config's namespace; without one, lists show every namespace.

    Every call raises a PopError: BadRequest, NotFound, Unreachable, UnsupportedByServer and so on.
    """

    def __init__(self, endpoints: str | ClientConfig | None = None) -> None:
        self._config = ClientConfig.of(endpoints)
        self._thread = loop_thread()
        # No client id: an operator's look is not a client to be waited for.
        self._transport = Transport(self._config, client_id="")

    # ---- Topics ----

    def create_topic(self, name: str, *, queue_count: int = 0, message_types: Iterable[str] = ()) -> Topic:
        """0 queues and no types: the server's defaults (8, NORMAL)."""
        request = wire.CreateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=_types(message_types)
        )
        return _topic(self._call(lambda link: link.admin.CreateTopic, request).topic)

    def update_topic(self, name: str, *, queue_count: int | None = None, message_types: Iterable[str] = ()) -> Topic:
        """Queues are only ever added; no types: unchanged."""
        request = wire.UpdateTopicRequest(
            topic=self._named(name), queue_count=queue_count, accept_message_types=_types(message_types)
        )
        return _topic(self._call(lambda link: link.admin.UpdateTopic, request).topic)

    def delete_topic(self, name: str) -> None:
        """The topic goes with its messages."""
        self._call(lambda link: link.admin.DeleteTopic, wire.DeleteTopicRequest(topic=self._named(name)))

    def topic(self, name: str) -> Topic:
        return _topic(self._call(lambda link: link.admin.GetTopic, wire.GetTopicRequest(topic=self._named(name))).topic)

    def topics(self) -> list[Topic]:
        """By name, at most 1,000; a warning in the log says when there are more."""
        answer = self._call(lambda link: link.admin.ListTopics, wire.ListTopicsRequest())
        return [_topic(each) for each in answer.topics]

    # ---- Consumer groups ----

    def create_group(
        self,
        name: str,
        *,
        max_attempts: int = 0,
        retry_intervals: Sequence[float | timedelta] = (),
        consume_from: str = "",
        history: str = "",
    ) -> Group:
        """Intervals are seconds or timedeltas; consume_from is EARLIEST or LATEST, history none, errors or all.

        What is left out is the server's default (17 attempts, 10 s to 2 h, EARLIEST, errors).
        """
        request = wire.CreateGroupRequest(
            group=self._named(name), max_attempts=max_attempts, consume_from=consume_from, history=history
        )
        _add_intervals(request, retry_intervals)
        return _group(self._call(lambda link: link.admin.CreateGroup, request).group)

    def update_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        retry_intervals: Sequence[float | timedelta] = (),
        history: str | None = None,
    ) -> Group:
        """What is left out stays as it is."""
        request = wire.UpdateGroupRequest(group=self._named(name), max_attempts=max_attempts, history=history)
        _add_intervals(request, retry_intervals)
        return _group(self._call(lambda link: link.admin.UpdateGroup, request).group)

    def delete_group(self, name: str) -> None:
        """The group goes with its progress and its dead letters."""
        self._call(lambda link: link.admin.DeleteGroup, wire.DeleteGroupRequest(group=self._named(name)))

    def group(self, name: str) -> Group:
        return _group(self._call(lambda link: link.admin.GetGroup, wire.GetGroupRequest(group=self._named(name))).group)

    def groups(self) -> list[Group]:
        """By name, at most 1,000; a warning in the log says when there are more."""
        answer = self._call(lambda link: link.admin.ListGroups, wire.ListGroupsRequest())
        return [_group(each) for each in answer.groups]

    # ---- Messages ----

    def peek(
        self, topic: str, *, queue_id: int | None = None, from_offset: int | None = None, max_messages: int = 32
    ) -> list[MessageView]:
        """The oldest messages of a topic, or of one queue from an offset on (at most 1,000). Holds nothing."""
        request = wire.PeekMessagesRequest(
            topic=self._named(topic), queue_id=queue_id, from_offset=from_offset, max=max_messages
        )
        answer = self._call(lambda link: link.admin.PeekMessages, request)
        return [_view(each) for each in answer.messages]

    def message(self, message_id: str, topic: str | None = None) -> FoundMessage:
        """One message, in the topic or in whichever has it."""
        named = None if topic is None else self._named(topic)
        request = wire.GetMessageRequest(topic=named, message_id=message_id)
        answer = self._call(lambda link: link.admin.GetMessage, request)
        states = tuple(map(_state, answer.states))
        return FoundMessage(_view(answer.message), states, tuple(map(_history_entry, answer.history)))

    # ---- Dead letters ----

    def dead_letters(
        self, group: str, *, topic: str | None = None, after_id: int = 0, max_messages: int = 32
    ) -> list[DeadLetter]:
        """Oldest first (at most 1,000); the last one's id, given as `after_id`, leads to the next page."""
        named = None if topic is None else self._named(topic)
        request = wire.ListDeadLettersRequest(
            group=self._named(group), topic=named, after_id=after_id, max=max_messages
        )
        answer = self._call(lambda link: link.admin.ListDeadLetters, request)
        return [_dead_letter(each) for each in answer.dead_letters]

    def dead_letter(self, group: str, message_id: str) -> DeadLetter:
        request = wire.GetDeadLetterRequest(group=self._named(group), message_id=message_id)
        return _dead_letter(self._call(lambda link: link.admin.GetDeadLetter, request).dead_letter)

    # ---- The server ----

    def status(self) -> ServerStatus:
        answer = self._call(lambda link: link.admin.GetStatus, wire.GetStatusRequest())
        return ServerStatus(
            version=answer.version,
            store=answer.store,
            durability=answer.durability,
            schema_revision=answer.schema_revision,
            started_at=answer.started_at.ToDatetime(UTC),
            now=answer.now.ToDatetime(UTC),
            topics=answer.topics,
            groups=answer.groups,
            messages=answer.messages,
            dead_letters=answer.dead_letters,
            parked_polls=answer.parked_polls,
            connected_clients=answer.connected_clients,
            lag=tuple(map(_lag, answer.lag)),
        )

    def close(self) -> None:
        """Closes the connection. Closing twice is fine."""
        self._thread.run(self._transport.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Admin {self._config.endpoints}>"

    def _named(self, name: str) -> pb.Resource:
        return resource(name, self._config.namespace)

    def _call(self, pick: Callable[[Link], Any], request: Any) -> Any:
        answer = self._thread.run(lambda: self._transport.unary(pick, request, self._config.request_timeout))
        check(answer.status)
        if answer.status.message not in ("", "OK"):
            log.warning("%s", answer.status.message)
        return answer


def _types(names: Iterable[str]) -> list[pb.MessageType.ValueType]:
    try:
        return [pb.MessageType.Value(name.upper()) for name in names]
    except ValueError as unknown:
        raise ValueError(f"{unknown}; message types are {', '.join(pb.MessageType.keys()[1:])}") from None


def _add_intervals(request: Any, intervals: Sequence[float | timedelta]) -> None:
    for interval in intervals:
        request.retry_intervals.add().FromTimedelta(as_timedelta("retry_intervals", interval))


def _topic(given: wire.Topic) -> Topic:
    return Topic(
        name=given.topic.name,
        namespace=given.topic.resource_namespace,
        queue_count=given.queue_count,
        message_types=tuple(map(pb.MessageType.Name, given.accept_message_types)),
        message_count=given.message_count,
        created_at=given.created_at.ToDatetime(UTC),
        queues=tuple(Queue(each.id, each.min_offset, each.max_offset) for each in given.queues),
    )


def _group(given: wire.Group) -> Group:
    return Group(
        name=given.group.name,
        namespace=given.group.resource_namespace,
        max_attempts=given.max_attempts,
        retry_intervals=tuple(each.ToTimedelta() for each in given.retry_intervals),
        consume_from=given.consume_from,
        history=given.history,
        mode=given.mode,
        created_at=given.created_at.ToDatetime(UTC),
        lag=tuple(map(_lag, given.lag)),
    )


def _lag(given: wire.GroupLag) -> GroupLag:
    return GroupLag(
        group=given.group.name,
        group_namespace=given.group.resource_namespace,
        topic=given.topic.name,
        topic_namespace=given.topic.resource_namespace,
        ready=given.ready,
        inflight=given.inflight,
        waiting_retry=given.waiting_retry,
        dead_letters=given.dead_letters,
        oldest_ready=_time(given, "oldest_ready"),
    )


def _view(given: pb.Message) -> MessageView:
    return MessageView(given, now())  # held by nobody: its hold is over already


def _state(given: wire.MessageState) -> MessageState:
    return MessageState(
        group=given.group.name,
        namespace=given.group.resource_namespace,
        state=given.state,
        delivery_attempt=given.delivery_attempt,
        visible_at=_time(given, "visible_at"),
        client_id=given.client_id,
    )


def _history_entry(given: wire.HistoryEntry) -> HistoryEntry:
    return HistoryEntry(
        at=given.at.ToDatetime(UTC),
        group=given.group.name,
        namespace=given.group.resource_namespace,
        event=given.event,
        from_state=given.from_state,
        to_state=given.to_state,
        delivery_attempt=given.delivery_attempt,
        client_id=given.client_id,
        reason=given.reason,
    )


def _dead_letter(given: wire.DeadLetter) -> DeadLetter:
    return DeadLetter(
        id=given.id,
        group=given.group.name,
        namespace=given.group.resource_namespace,
        topic=given.topic.name,
        message_id=given.origin_message_id,
        message=_view(given.message),
        delivery_attempt=given.delivery_attempt,
        reason=given.reason,
        dead_at=given.dead_at.ToDatetime(UTC),
        redrive_state=given.redrive_state,
    )


def _time(given: Any, field: str) -> datetime | None:
    moment: datetime | None = getattr(given, field).ToDatetime(UTC) if given.HasField(field) else None
    return moment
