"""Queries of operators about lite topics (reads only)."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, column, func, select, table

from popserver.catalog import facts as catalog_facts
from popserver.catalog import groups, progress
from popserver.catalog.lookup import as_typed, topic_not_found
from popserver.catalog.topics import find_topic
from popserver.members import lite_subscriptions
from popserver.members.lite_subscriptions import clients_of
from popserver.messages import lite_topics
from popserver.messages.lite_topics import LiteTopic
from popserver.messages.parts import NEWEST_OF_GROUP
from popserver.model.errors import BadRequest, NotFound
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.states import State
from popserver.model.topic import Topic, message_key, queue_of

COUNTED_MAX = 1_000


class LiteCounts(NamedTuple):
    """The number of messages in each state, of the newest 1,000 of a lite topic; and when the oldest READY one was
    stored."""

    states: dict[State, int]
    oldest_ready_ms: int | None


class LiteTopicGroup(NamedTuple):
    """A group's counts for a lite topic, and its clients that get it."""

    group: Group
    counts: LiteCounts
    client_ids: list[str]


class LiteTopicFacts(NamedTuple):
    """A lite topic, the number of its queue, and its groups."""

    lite_topic: LiteTopic
    queue_number: int
    groups: list[LiteTopicGroup]


def list_lite_topics(
    conn: Connection, topic_name: Resource, prefix: str, after: str, limit: int
) -> tuple[Topic, list[LiteTopic]]:
    """Lite topics by name. Raises `TopicNotFound`, and `BadRequest` for a topic without lite topics."""
    topic = _bind_topic(conn, topic_name)
    return topic, lite_topics.listed(conn, topic.topic_id, prefix, after, limit)


def lite_topic_facts(conn: Connection, topic_name: Resource, name: str) -> LiteTopicFacts:
    """One lite topic. Raises as `list_lite_topics` does, and `NotFound`."""
    topic = _bind_topic(conn, topic_name)
    found = _found(conn, topic, name)
    queue_id, bounds = queue_of(found.first_key), _bounds(found)
    group_ids = progress.groups_of_queue(conn, queue_id)
    known = groups.groups_by_id(conn, group_ids)
    number = next((each.number for each in topic.queues if each.queue_id == queue_id), 0)
    return LiteTopicFacts(
        found,
        number,
        [
            LiteTopicGroup(
                each.group,
                _counts(conn, each.group, bounds),
                clients_of(conn, each.group.group_id, topic.topic_id, name),
            )
            for _, each in sorted(known.items())
            if not each.is_deleted
        ],
    )


class LiteGroupFacts(NamedTuple):
    """How many clients of a group subscribe to lite topics, and how many subscriptions they have together."""

    clients: int
    subscriptions: int


def lite_group_facts(conn: Connection, group: Group) -> LiteGroupFacts:
    if not group.chooses:
        return LiteGroupFacts(0, 0)
    return LiteGroupFacts(*lite_subscriptions.counts(conn, group.group_id))


def counts_of_lite_topic(conn: Connection, group_name: Resource, topic_name: Resource, name: str) -> LiteCounts:
    """A group's counts for a lite topic. Raises as `lite_topic_facts` does, and `ConsumerGroupNotFound`."""
    group = catalog_facts.group(conn, group_name)
    found = _found(conn, _bind_topic(conn, topic_name), name)
    return _counts(conn, group, _bounds(found))


def clients_of_lite_topic(conn: Connection, group_name: Resource, topic_name: Resource, name: str) -> set[str] | None:
    """The clients of a group that get a lite topic; None: all of them, because they do not choose lite topics.

    Raises `ConsumerGroupNotFound`, `TopicNotFound`, and `BadRequest` for a topic without lite topics.
    """
    group, topic = catalog_facts.group(conn, group_name), _bind_topic(conn, topic_name)
    if not group.chooses:
        return None
    return set(clients_of(conn, group.group_id, topic.topic_id, name))


def _found(conn: Connection, topic: Topic, name: str) -> LiteTopic:
    found = lite_topics.find(conn, topic.topic_id, name)
    if found is None:
        raise NotFound(
            f"topic '{topic.name}' has no lite topic '{name[:64]}', or it has expired; list them with: popmq lite list"
            f" {as_typed(topic.name)}"
        )
    return found


def _bounds(found: LiteTopic) -> dict[str, Any]:
    end = message_key(queue_of(found.first_key) + 1, 0)
    return {"of_group": found.name, "first": found.first_key, "end": end, "limit": COUNTED_MAX}


def _bind_topic(conn: Connection, name: Resource) -> Topic:
    topic = find_topic(conn, name)
    if topic is None:
        raise topic_not_found(name, " --type LITE")
    if not topic.is_lite:
        raise BadRequest(f"topic '{name}' takes {' and '.join(topic.accepts)} messages and has no lite topics")
    return topic


def _counts(conn: Connection, group: Group, bounds: dict[str, Any]) -> LiteCounts:
    names = {**bounds, "group_namespace": group.name.namespace, "group_name": group.name.name}
    rows = {State(row.state): row for row in conn.execute(_COUNTS, names)}
    ready = rows.get(State.READY)
    return LiteCounts({state: row.messages for state, row in rows.items()}, None if ready is None else ready.oldest_ms)


# The newest messages of the lite topic, with their states from the view.
_STATE = table("message_state", *map(column, ("message_key", "group_namespace", "consumer_group", "state")))
_COUNTS = (
    select(_STATE.c.state, func.count().label("messages"), func.min(NEWEST_OF_GROUP.c.stored_at_ms).label("oldest_ms"))
    .select_from(NEWEST_OF_GROUP)
    .join(_STATE, _STATE.c.message_key == NEWEST_OF_GROUP.c.message_key)
    .where(_STATE.c.group_namespace == bindparam("group_namespace"), _STATE.c.consumer_group == bindparam("group_name"))
    .group_by(_STATE.c.state)
)
