"""Reads what charts and alerts are made of: the lag of all groups, and how many messages topics ever stored."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, select

from popserver.administration import facts
from popserver.administration.facts import Lag
from popserver.catalog import topics
from popserver.catalog.facts import group as group_named
from popserver.catalog.facts import topic as topic_named
from popserver.catalog.queues import TOTALS
from popserver.charts.rules import ChartKind, Owner, TopicCount
from popserver.model.names import Resource

PAIRS_MAX = 20_000  # of a group and a topic; further ones, by name, have no chart


class Look(NamedTuple):
    """The store at one moment."""

    at_ms: int
    lag: list[Lag]
    topics: list[TopicCount]


def look(conn: Connection, now_ms: int) -> Look:
    """The store now. The cost depends on the number of pairs of group and topic, not on that of messages."""
    counted = [TopicCount(row.topic_id, row.name, int(row.appended)) for row in conn.execute(_TOPICS)]
    return Look(now_ms, facts.group_lag(conn, None, PAIRS_MAX), counted)


def owner_of(conn: Connection, kind: ChartKind, name: Resource) -> Owner:
    """Whose chart it is. Raises `ConsumerGroupNotFound` or `TopicNotFound`."""
    if kind is ChartKind.GROUP:
        return Owner(kind, group_named(conn, name).group_id)
    return Owner(kind, topic_named(conn, name).topic_id)


_TOPICS = select(topics.EXISTING.c.topic_id, topics.EXISTING.c.name, TOTALS.c.appended).join(
    TOTALS, TOTALS.c.topic_id == topics.EXISTING.c.topic_id
)
