"""The subscription to a topic, and the topic for a group's failed messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from popclient.message import FilterExpression, MessageView

RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """One topic and its filter.

    sub_version: epoch milliseconds of when it was made; the later one of two subscriptions counts (requirement B22).
    """

    topic: str
    filter_expression: FilterExpression = field(default_factory=FilterExpression)
    sub_version: int = 0


def retry_topic(group: str) -> str:
    """The topic for messages that members of the group have handed back (requirement E14)."""
    return RETRY_PREFIX + group


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def subscriptions(
    group: str, topics: Mapping[str, FilterExpression], sub_version: int, *, retries: bool
) -> dict[str, TopicSubscription]:
    """The subscriptions by topic. retries: with the group's retry topic, which only clustering has."""
    wanted = {**topics, retry_topic(group): FilterExpression()} if retries else dict(topics)
    return {topic: TopicSubscription(topic, expression, sub_version) for topic, expression in wanted.items()}


def filter_by_tag(messages: Iterable[MessageView], expression: FilterExpression) -> list[MessageView]:
    """The messages whose tag is in the expression. The server has applied a SQL filter already.

    The client compares again, because servers compare tags by a hash, which two tags may share (requirement M5).
    """
    tags = {tag.strip() for tag in expression.expression.split("||")} - {""}
    if expression.type == "SQL" or not tags or "*" in tags:
        return list(messages)
    return [message for message in messages if message.tag in tags]
