"""Queries for operators: lists of topics and groups, and the ranges of queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from popserver.catalog import groups as catalog_groups
from popserver.catalog import lookup
from popserver.catalog import topics as catalog_topics
from popserver.catalog.queues import QueueRow, queue_rows
from popserver.database.schema import topic as topic_table
from popserver.model.errors import BadRequest
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue, Topic


class QueueRange(NamedTuple):
    """The stored offsets of one queue: from `min_offset` up to, but not including, `next_offset`."""

    number: int
    min_offset: int
    next_offset: int


class TopicFacts(NamedTuple):
    """A topic, with the stored ranges of its queues."""

    topic: Topic
    ranges: tuple[QueueRange, ...]
    lite_topics: int = 0

    @property
    def message_count(self) -> int:
        return sum(each.next_offset - each.min_offset for each in self.ranges)


def topic_facts(conn: Connection, name: Resource) -> TopicFacts:
    """One topic. Raises `TopicNotFound`."""
    topic = _topic(conn, name)
    return TopicFacts(topic, _ranges(queue_rows(conn, topic.topic_id)), _lite_topics(conn, topic))


def list_topics(
    conn: Connection, namespace: str | None, after: Resource | None, limit: int
) -> tuple[list[TopicFacts], int]:
    """The next `limit` topics after this one, by namespace and name, and how many there are in all; in one namespace,
    or in all of them (None)."""
    page = catalog_topics.page_of_topics(conn, namespace, after, limit)
    found = [TopicFacts(topic, _ranges(queues), _lite_topics(conn, topic)) for topic, queues in page]
    return found, catalog_topics.count_topics(conn, namespace)


def topic_ids(conn: Connection, names: Iterable[Resource]) -> set[int]:
    """The ids of these topics. Raises `TopicNotFound` for the first that does not exist."""
    wanted = set(names)
    found = catalog_topics.topic_ids_of(conn, wanted)
    if missing := wanted - found.keys():
        raise lookup.topic_not_found(min(missing))
    return set(found.values())


def _lite_topics(conn: Connection, topic: Topic) -> int:
    """How many lite topics a topic has."""
    if not topic.is_lite:
        return 0
    counted = select(topic_table.c.lite_topics).where(topic_table.c.topic_id == topic.topic_id)
    return int(conn.execute(counted).scalar() or 0)


def group(conn: Connection, name: Resource) -> Group:
    """One group. Raises `ConsumerGroupNotFound`."""
    found = catalog_groups.find_group(conn, name)
    if found is None:
        raise lookup.group_not_found(name)
    return found


def list_groups(conn: Connection, namespace: str | None, after: Resource | None, limit: int) -> tuple[list[Group], int]:
    """The next `limit` groups after this one, by namespace and name, and how many there are in all; in one namespace,
    or in all of them (None)."""
    found = catalog_groups.page_of_groups(conn, namespace, after, limit)
    return found, catalog_groups.count_groups(conn, namespace)


def groups_by_id(conn: Connection, group_ids: Sequence[int], limit: int) -> list[Group]:
    """The first `limit` of these groups by name, without deleted ones."""
    found = [each.group for each in catalog_groups.groups_by_id(conn, group_ids).values() if not each.is_deleted]
    return sorted(found, key=lambda each: each.name)[:limit]


def _topic(conn: Connection, name: Resource) -> Topic:
    found = catalog_topics.find_topic(conn, name)
    if found is None:
        raise lookup.topic_not_found(name)
    return found


def _queue(topic: Topic, number: int) -> MessageQueue:
    for each in topic.queues:
        if each.number == number:
            return each
    raise BadRequest(f"topic '{topic.name}' has the queues 0 to {len(topic.queues) - 1}, not {number}")


def _ranges(queues: Iterable[QueueRow]) -> tuple[QueueRange, ...]:
    return tuple(QueueRange(*row[2:]) for row in queues)
