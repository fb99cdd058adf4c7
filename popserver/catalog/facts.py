"""Queries for operators: lists of topics and groups, and the ranges of queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.catalog import groups as catalog_groups
from popserver.catalog import lookup
from popserver.catalog import topics as catalog_topics
from popserver.catalog.queues import QueueRow, queue_rows
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.topic import Topic


class TopicFacts(NamedTuple):
    """A topic with its queues. Each queue stores the offsets min_offset <= offset < next_offset."""

    topic: Topic
    ranges: Sequence[QueueRow]
    lite_topics: int = 0

    @property
    def message_count(self) -> int:
        return sum(each.next_offset - each.min_offset for each in self.ranges)


def topic(conn: Connection, name: Resource) -> Topic:
    """One topic. Raises `TopicNotFound`."""
    found = catalog_topics.find_topic(conn, name)
    if found is None:
        raise lookup.topic_not_found(name)
    return found


def topic_facts(conn: Connection, name: Resource) -> TopicFacts:
    """One topic with its queues. Raises `TopicNotFound`."""
    found = topic(conn, name)
    return TopicFacts(found, queue_rows(conn, found.topic_id), _lite_topics(conn, found))


def list_topics(
    conn: Connection, namespace: str | None, after: Resource | None, limit: int
) -> tuple[list[TopicFacts], int]:
    """The next `limit` topics after this one, by namespace and name, and the number of all topics; in one namespace or
    (None) in all."""
    page = catalog_topics.page_of_topics(conn, namespace, after, limit)
    found = [TopicFacts(topic, queues, _lite_topics(conn, topic)) for topic, queues in page]
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
    return catalog_topics.count_lite_topics(conn, topic.topic_id) if topic.is_lite else 0


def group(conn: Connection, name: Resource) -> Group:
    """One group. Raises `ConsumerGroupNotFound`."""
    found = catalog_groups.find_group(conn, name)
    if found is None:
        raise lookup.group_not_found(name)
    return found


def list_groups(conn: Connection, namespace: str | None, after: Resource | None, limit: int) -> tuple[list[Group], int]:
    """The next `limit` groups after this one, by namespace and name, and the number of all groups; in one namespace or
    (None) in all."""
    found = catalog_groups.page_of_groups(conn, namespace, after, limit)
    return found, catalog_groups.count_groups(conn, namespace)


def groups_by_id(conn: Connection, group_ids: Sequence[int], limit: int) -> list[Group]:
    """The first `limit` of these groups by name, without deleted ones."""
    found = [each.group for each in catalog_groups.groups_by_id(conn, group_ids).values() if not each.is_deleted]
    return sorted(found, key=lambda each: each.name)[:limit]
