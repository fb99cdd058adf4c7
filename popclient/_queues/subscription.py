"""What a consumer wants of a topic, and the topic by which its group's failed messages come again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from popclient.message import FilterExpression, MessageView

RETRY_PREFIX: Final = "%RETRY%"


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """One topic and what is wanted of it.

    sub_version: epoch milliseconds of when it was made; of two that differ the later one holds (requirement B22).
    """

    topic: str
    filter_expression: FilterExpression = field(default_factory=FilterExpression)
    sub_version: int = 0


def retry_topic(group: str) -> str:
    """Where the server puts what members of the group have handed back (requirement E14)."""
    return RETRY_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def subscriptions(
    group: str, topics: Mapping[str, FilterExpression], sub_version: int, *, retries: bool
) -> dict[str, TopicSubscription]:
    """By topic. With `retries`, which only clustering has, all of the group's own retry topic is among them."""
    wanted = {**topics, retry_topic(group): FilterExpression()} if retries else dict(topics)
    return {topic: TopicSubscription(topic, expression, sub_version) for topic, expression in wanted.items()}


def filter_by_tag(messages: Iterable[MessageView], expression: FilterExpression) -> list[MessageView]:
    """The messages whose tag the expression names. The server has applied a SQL filter already.

    A second look: servers compare tags by a hash, which two tags may share (requirement M5).
    """
    tags = {tag.strip() for tag in expression.expression.split("||")} - {""}
    if expression.type == "SQL" or not tags or "*" in tags:
        return list(messages)
    return [message for message in messages if message.tag in tags]
