"""The subscription that a consumer declares, and how the subscriptions of two consumers differ (requirement G5).

All consumers of a group share its progress. If their subscriptions differ, each of them gets or skips messages that
others should get. The server does not refuse that, but it must show it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from popserver.filters import Filter
from popserver.filters.sql import SqlFilter
from popserver.model.group import Model
from popserver.model.names import Resource

TOPICS_KEPT = 64
EXPRESSION_LENGTH_KEPT = 256


class TopicFilter(NamedTuple):
    """One topic and the filter for it, as text."""

    topic: Resource
    kind: str  # TAG or SQL
    expression: str

    def __str__(self) -> str:
        return f"topic '{self.topic}' by {self.kind} '{self.expression}'"


class Subscription(NamedTuple):
    """The filters of one consumer, sorted by topic: at most 64, and how many more it has.

    A long SQL expression is shortened, with a checksum of the whole.
    """

    filters: tuple[TopicFilter, ...]
    more: int = 0

    def __str__(self) -> str:
        more = [f"{self.more} more topics"] if self.more else []
        return ", ".join([*map(str, self.filters), *more]) or "nothing"


def subscription(filters: Iterable[tuple[Resource, Filter]]) -> Subscription:
    """The subscription with these filters. Filters that select the same tags are equal."""
    wanted = topic_filters(filters)
    kept = tuple(map(_shortened, wanted[:TOPICS_KEPT]))
    return Subscription(kept, len(wanted[TOPICS_KEPT:]))


def topic_filters(filters: Iterable[tuple[Resource, Filter]]) -> tuple[TopicFilter, ...]:
    """The filters of a consumer as text, sorted by topic, not shortened."""
    return tuple(sorted(_topic_filter(topic, wanted) for topic, wanted in dict(filters).items()))


def difference(one: Subscription, other: Subscription) -> tuple[str, str]:
    """The differences between two subscriptions, as text about each of them."""
    only_one = [each for each in one.filters if each not in other.filters]
    only_other = [each for each in other.filters if each not in one.filters]
    topics = {each.topic for each in only_one + only_other}
    return _about(one, topics), _about(other, topics)


def _about(given: Subscription, topics: set[Resource]) -> str:
    shown = [str(each) for each in given.filters if each.topic in topics]
    nothing = sorted(f"nothing of topic '{topic}'" for topic in topics - {each.topic for each in given.filters})
    return ", ".join([*shown, *nothing]) or f"{given.more} more topics"


def shown_filter(topic: Resource, wanted: Filter) -> TopicFilter:
    """A filter as `Subscription` has it."""
    return _shortened(_topic_filter(topic, wanted))


def _topic_filter(topic: Resource, wanted: Filter) -> TopicFilter:
    if isinstance(wanted, SqlFilter):
        return TopicFilter(topic, "SQL", wanted.expression.strip())
    return TopicFilter(topic, "TAG", " || ".join(wanted.tags) or "*")


def _shortened(found: TopicFilter) -> TopicFilter:
    expression = found.expression
    if len(expression) <= EXPRESSION_LENGTH_KEPT:
        return found
    checksum = zlib.crc32(expression.encode())
    kept = f"{expression[:EXPRESSION_LENGTH_KEPT]}… ({len(expression)} characters, {checksum:08x})"
    return found._replace(expression=kept)


class ClientKind(StrEnum):
    """The kind of a consumer."""

    PUSH = "PUSH"
    SIMPLE = "SIMPLE"
    PULL = "PULL"
    LITE_PUSH = "LITE_PUSH"
    LITE_SIMPLE = "LITE_SIMPLE"

    @property
    def is_lite(self) -> bool:
        """Whether it subscribes to lite topics."""
        return self in (ClientKind.LITE_PUSH, ClientKind.LITE_SIMPLE)


class Role(NamedTuple):
    """What a consumer declares: its group, its kind, its subscription, and its message model."""

    group: Resource
    kind: ClientKind
    subscription: Subscription  # for people to read; it may lack topics
    # The filters of all topics, and when they were set (epoch ms); 0 if unknown.
    filters: Mapping[Resource, Filter] = MappingProxyType({})
    subscription_version: int = 0
    model: Model = Model.CLUSTERING

    @property
    def declared(self) -> DeclaredSubscription:
        return DeclaredSubscription(self.subscription, self.model)

    def filter_of(self, topic: Resource) -> Filter | None:
        """Its filter for the topic; None if it does not subscribe to it."""
        return self.filters.get(topic)

    def subscribes_to(self, topic: Resource) -> bool:
        return self.filter_of(topic) is not None

    @property
    def shares(self) -> bool:
        """Whether it shares messages with other consumers. A pull consumer without subscriptions does not."""
        return self.kind is not ClientKind.PULL or bool(self.subscription.filters)


class DeclaredSubscription(NamedTuple):
    """What all consumers of a group should declare in the same way."""

    subscription: Subscription
    model: Model
