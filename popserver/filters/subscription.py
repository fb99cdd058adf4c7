"""What a consumer said it wants, and how two consumers of one group differ in it (requirement G5).

All consumers of a group share its progress. If they want different things, each takes away, or passes over, messages
that were meant for another: nothing is refused, but it must be seen.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from enum import StrEnum
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
    """The wants of one consumer in the order of their topics, at most 64 of them, and how many more it has.

    A long SQL expression is cut and told apart by a checksum.
    """

    wants: tuple[TopicFilter, ...]
    more: int = 0

    def __str__(self) -> str:
        more = [f"{self.more} more topics"] if self.more else []
        return ", ".join([*map(str, self.wants), *more]) or "nothing"


def subscription(filters: Iterable[tuple[Resource, Filter]]) -> Subscription:
    """What is kept of the filters a consumer gave; two that select the same tags are the same."""
    wanted = topic_filters(filters)
    kept = tuple(each._replace(expression=_kept(each.expression)) for each in wanted[:TOPICS_KEPT])
    return Subscription(kept, len(wanted[TOPICS_KEPT:]))


def topic_filters(filters: Iterable[tuple[Resource, Filter]]) -> tuple[TopicFilter, ...]:
    """All that the filters of a consumer want, by topic, with nothing cut."""
    return tuple(sorted(_topic_filter(topic, wanted) for topic, wanted in dict(filters).items()))


def difference(one: Subscription, other: Subscription) -> tuple[str, str]:
    """What each of two unequal subscriptions has that the other has not, in words."""
    only_one = [each for each in one.wants if each not in other.wants]
    only_other = [each for each in other.wants if each not in one.wants]
    topics = {each.topic for each in only_one + only_other}
    return _about(one, topics), _about(other, topics)


def _about(given: Subscription, topics: set[Resource]) -> str:
    told = [str(each) for each in given.wants if each.topic in topics]
    nothing = sorted(f"nothing of topic '{topic}'" for topic in topics - {each.topic for each in given.wants})
    return ", ".join([*told, *nothing]) or f"{given.more} more topics"


def _topic_filter(topic: Resource, wanted: Filter) -> TopicFilter:
    if isinstance(wanted, SqlFilter):
        return TopicFilter(topic, "SQL", wanted.expression.strip())
    return TopicFilter(topic, "TAG", " || ".join(wanted.tags) or "*")


def _kept(expression: str) -> str:
    if len(expression) <= EXPRESSION_LENGTH_KEPT:
        return expression
    checksum = zlib.crc32(expression.encode())
    return f"{expression[:EXPRESSION_LENGTH_KEPT]}… ({len(expression)} characters, {checksum:08x})"


class ClientKind(StrEnum):
    """How a consumer takes messages."""

    PUSH = "PUSH"
    SIMPLE = "SIMPLE"
    PULL = "PULL"


class Role(NamedTuple):
    """What a client said of itself: the group it works for, how, what it wants, and what it shares with the others."""

    group: Resource
    kind: ClientKind
    subscription: Subscription
    # What a pull wants that brings no filter of its own, and since when (epoch ms) it is so; 0 where that is not said.
    filters: tuple[tuple[Resource, Filter], ...] = ()
    subscription_version: int = 0
    model: Model = Model.CLUSTERING

    @property
    def wish(self) -> DeclaredSubscription:
        return DeclaredSubscription(self.subscription, self.model)

    @property
    def shares(self) -> bool:
        """A pull consumer that subscribes to nothing names its queues itself: it takes nothing from the others."""
        return self.kind is not ClientKind.PULL or bool(self.subscription.wants)


class DeclaredSubscription(NamedTuple):
    """What all consumers of a group should have in common."""

    subscription: Subscription
    model: Model
