"""Legal things, but for what the arguments say."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

from popserver.model.group import NewGroup
from popserver.model.message import Message
from popserver.model.names import Resource
from popserver.model.retry import Exponential, RetryPolicy
from popserver.model.topic import MessageType, NewTopic

START = datetime(2025, 1, 1, tzinfo=UTC)  # of a manual clock
TOPIC = Resource("", "orders")
GROUP = Resource("", "billing")
_numbers = itertools.count()


def an_id() -> str:
    """A message id of the v1 layout that no other test has."""
    return f"01{next(_numbers):032X}"


def a_message(topic: Resource = TOPIC, **more: Any) -> Message:
    return Message(**{"topic": topic, "message_id": an_id(), "body": b"body", **more})


def messages_of(count: int, topic: Resource = TOPIC, **more: Any) -> list[Message]:
    return [a_message(topic, **more) for _ in range(count)]


def in_order(message_group: str, count: int = 1, topic: Resource = TOPIC, **more: Any) -> list[Message]:
    """Messages of one message group."""
    return messages_of(count, topic, message_group=message_group, message_type=MessageType.FIFO, **more)


def a_new_topic(
    name: str | Resource = TOPIC, *, queues: int = 1, accepts: tuple[MessageType, ...] = (MessageType.NORMAL,)
) -> NewTopic:
    """One queue: the order of offsets is the order of sending."""
    return NewTopic(_resource(name), queues, accepts)


def a_new_group(
    name: str | Resource = GROUP, *, max_attempts: int = 17, intervals_ms: Any = None, **more: Any
) -> NewGroup:
    if intervals_ms is not None and not isinstance(intervals_ms, Exponential):
        intervals_ms = tuple(intervals_ms)
    policy = RetryPolicy(max_attempts) if intervals_ms is None else RetryPolicy(max_attempts, intervals_ms)
    return NewGroup(_resource(name), policy, **more)


def _resource(name: str | Resource) -> Resource:
    return name if isinstance(name, Resource) else Resource("", name)
