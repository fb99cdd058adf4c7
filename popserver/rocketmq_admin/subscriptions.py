"""Which group consumes which topic.

The store has a subscription as progress rows, without a filter. Consumers that have just connected to this server may
have none yet; what they declare is given to the queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, exists, select

from popserver.catalog import facts as catalog_facts
from popserver.catalog import groups as catalog_groups
from popserver.catalog import progress
from popserver.catalog.groups import EXISTING, find_group
from popserver.catalog.progress import REACHED
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.filters.subscription import Role
from popserver.model.group import Mode
from popserver.model.names import Resource, retry_topic

LISTED_MAX = 1_000
_LIMIT = LISTED_MAX + 2  # one more shows that there are more; and the topic of a group's retries is left out


class Subscribed(NamedTuple):
    """A group that consumes a topic; `mode` is the group's. `is_lite`: its clients subscribe to lite topics."""

    group: Resource
    topic: Resource
    mode: Mode | None
    is_lite: bool = False


class _ConsumingRow(NamedTuple):
    namespace: str
    name: str
    mode: str | None
    lite: str | None


def of(
    conn: Connection,
    group_name: Resource | None,
    topic_name: Resource | None,
    online: Mapping[Resource, Sequence[Role]],
) -> list[Subscribed]:
    """The subscriptions of a group, or (None) those to a topic; `online`: the roles of the
    consumers that declare them, by group."""
    if group_name is not None:
        topics = set[Resource]().union(*(each.filters for each in online.get(group_name, [])))
        return of_group(conn, group_name, topic_name, topics)
    assert topic_name is not None, "a request names a group or a topic"
    return of_topic(conn, topic_name, online)


def of_group(
    conn: Connection, group_name: Resource, topic_name: Resource | None, declared: Iterable[Resource]
) -> list[Subscribed]:
    """The subscriptions of a group by topic, or that to one topic; `declared`: topics that its consumers declare.

    At most one more than `LISTED_MAX`. Raises `ConsumerGroupNotFound` and `TopicNotFound`.
    """
    group = catalog_facts.group(conn, group_name)
    topics = {each for each in declared if topic_name in (None, each)}
    if topic_name is None:
        rows = catalog_groups.topics_of(conn, group.group_id, _LIMIT)
        topics |= {Resource(each.namespace, each.name) for each in rows} - {retry_topic(group_name)}
    elif progress.of_queues(conn, group.group_id, _queues(conn, topic_name)):
        topics.add(topic_name)
    return [
        Subscribed(group_name, each, group.mode, group.lite is not None) for each in sorted(topics)[: LISTED_MAX + 1]
    ]


def of_topic(conn: Connection, topic_name: Resource, declared: Iterable[Resource]) -> list[Subscribed]:
    """The subscriptions to a topic by group; `declared`: groups whose consumers declare the topic.

    At most one more than `LISTED_MAX`. Raises `TopicNotFound`.
    """
    stored = _GROUPS.rows(conn, {"queues": encode_column(_queues(conn, topic_name)), "limit": _LIMIT})
    known = {
        name: Subscribed(name, topic_name, None if row.mode is None else Mode(row.mode), row.lite is not None)
        for row in stored
        if (name := Resource(row.namespace, row.name))
    }
    for name in sorted(set(declared) - known.keys())[:_LIMIT]:
        group = find_group(conn, name)
        if group is not None:
            known[name] = Subscribed(name, topic_name, group.mode, group.lite is not None)
    groups = [each for each in sorted(known) if retry_topic(each) != topic_name]
    return [known[each] for each in groups[: LISTED_MAX + 1]]


def check_known(conn: Connection, group_name: Resource | None, topic_name: Resource | None) -> None:
    """Raise `ConsumerGroupNotFound` or `TopicNotFound` for a name of the two that is given and does not exist."""
    if group_name is not None:
        catalog_facts.group(conn, group_name)
    if topic_name is not None:
        catalog_facts.topic(conn, topic_name)


def _queues(conn: Connection, topic_name: Resource) -> list[int]:
    """The queues of the topic: for each group the index of progress leads to them."""
    return [each.queue_id for each in catalog_facts.topic(conn, topic_name).queues]


_QUEUES = rows_parameter("queues", "queue_id")
_READS_ONE = exists().where(
    REACHED.c.group_id == EXISTING.c.group_id, REACHED.c.queue_id.in_(select(_QUEUES.c.queue_id))
)
_GROUPS = RowStatement(
    _ConsumingRow,
    select(*(EXISTING.c[name] for name in _ConsumingRow._fields))
    .where(_READS_ONE)
    .order_by(EXISTING.c.namespace, EXISTING.c.name)
    .limit(bindparam("limit")),
)
