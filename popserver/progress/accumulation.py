"""What a group has not consumed, by topic: the rows of the view `group_lag`, added up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, Integer, bindparam, text

from popserver.catalog import facts as catalog_facts
from popserver.model.names import Resource, retry_topic

TOPICS_MAX = 1_000  # in an answer about all topics of a group


class Accumulation(NamedTuple):
    """Messages of a group. `waiting`: for their next retry. `oldest_ready_ms`: when the oldest READY one was stored."""

    ready: int = 0
    inflight: int = 0
    waiting: int = 0
    oldest_ready_ms: int | None = None

    def plus(self, other: Accumulation) -> Accumulation:
        oldest = [each for each in (self.oldest_ready_ms, other.oldest_ready_ms) if each is not None]
        return Accumulation(
            self.ready + other.ready,
            self.inflight + other.inflight,
            self.waiting + other.waiting,
            min(oldest, default=None),
        )


class GroupAccumulation(NamedTuple):
    """The sum of all topics, and the topics by name; `left_out` of them are not listed."""

    total: Accumulation
    topics: list[tuple[Resource, Accumulation]]
    left_out: int


def accumulation(conn: Connection, group_name: Resource, topic_names: Iterable[Resource]) -> GroupAccumulation:
    """Of these topics, or (none) of all that the group consumes. Messages that members sent back for a retry count in
    the sum only. Raises `ConsumerGroupNotFound` and `TopicNotFound`."""
    group = catalog_facts.group(conn, group_name)
    ids = {catalog_facts.topic_facts(conn, each).topic.topic_id for each in topic_names}
    if ids:
        rows = conn.execute(_OF_TOPICS, {"for_group": group.group_id, "ids": sorted(ids)})
    else:
        rows = conn.execute(_OF_GROUP, {"for_group": group.group_id})
    total, topics = Accumulation(), []
    for row in rows:
        # Postgres's sum of integers is a decimal.
        counted = Accumulation(int(row.ready), int(row.inflight), int(row.waiting_retry), row.oldest_ready_ms)
        total = total.plus(counted)
        topic = Resource(row.topic_namespace, row.topic)
        if topic != retry_topic(group_name) or ids:
            topics.append((topic, counted))
    most = len(ids) or TOPICS_MAX
    return GroupAccumulation(total, topics[:most], len(topics[most:]))


_ROWS = (
    "SELECT topic_namespace, topic, ready, inflight, waiting_retry, oldest_ready_ms FROM group_lag"
    " WHERE group_id = :for_group"
)
_ORDER = "ORDER BY topic_namespace, topic"
_OF_GROUP = text(f"{_ROWS} {_ORDER}").bindparams(bindparam("for_group", type_=Integer))
_OF_TOPICS = text(f"{_ROWS} AND topic_id IN :ids {_ORDER}").bindparams(bindparam("ids", expanding=True))
