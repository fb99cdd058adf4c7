"""Queries for what operators have paused: groups in all topics, in one topic, or for one message group."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from popserver.database.rows import RowStatement
from popserver.database.schema import consumer_group, pause
from popserver.database.schema import topic as topic_table
from popserver.model.names import Resource

EVERY_TOPIC = 0  # as a topic's id: the group is paused in all topics
WHOLE = ""  # as a message group: not only one message group


class GroupPause(NamedTuple):
    """A pause of a group. `topic` None: in all topics; `message_group` None: not only one."""

    group_id: int
    topic: Resource | None
    message_group: str | None
    paused_at_ms: int
    paused_by: str


class _PauseRow(NamedTuple):
    group_id: int
    topic_id: int
    message_group: str
    namespace: str | None
    name: str | None
    paused_at_ms: int
    paused_by: str


def pauses_of(conn: Connection, group_id: int) -> list[GroupPause]:
    """The pauses of one group: first those of all topics, then by topic and message group."""
    return [_pause(row) for row in _OF_GROUP.rows(conn, {"for_group": group_id})]


def pauses(conn: Connection, limit: int) -> list[GroupPause]:
    """The first `limit` pauses of all groups, the oldest first."""
    return [_pause(row) for row in _OLDEST.rows(conn, {"limit": limit})]


def pause_of_topic(conn: Connection, group_id: int, topic_id: int, message_group: str | None) -> GroupPause | None:
    """The widest pause because of which the group gets no message of the topic, or of this message group of it."""
    names = {"for_group": group_id, "of_topic": topic_id, "of_message_group": message_group or WHOLE}
    row = _OF_TOPIC.first(conn, names)
    return None if row is None else _pause(row)


def _pause(row: _PauseRow) -> GroupPause:
    topic = None if row.name is None else Resource(row.namespace or "", row.name)
    return GroupPause(row.group_id, topic, row.message_group or None, row.paused_at_ms, row.paused_by)


def paused_topics(conn: Connection) -> dict[int, frozenset[int]]:
    """The topics (ids) in which groups are paused as a whole, by group id; `EVERY_TOPIC` stands for all."""
    topics: dict[int, set[int]] = {}
    for row in conn.execute(_WHOLE_TOPICS):
        topics.setdefault(row.group_id, set()).add(row.topic_id)
    return {group_id: frozenset(several) for group_id, several in topics.items()}


_COLUMNS = (
    pause.c.group_id,
    pause.c.topic_id,
    pause.c.message_group,
    topic_table.c.namespace,
    topic_table.c.name,
    pause.c.paused_at_ms,
    pause.c.paused_by,
)
_PAUSES = (
    select(*_COLUMNS)
    .join(consumer_group, consumer_group.c.group_id == pause.c.group_id)
    .outerjoin(topic_table, topic_table.c.topic_id == pause.c.topic_id)
    .where(consumer_group.c.deleted_at_ms.is_(None))
    .where((pause.c.topic_id == EVERY_TOPIC) | topic_table.c.deleted_at_ms.is_(None))
)
_OF_GROUP = RowStatement(
    _PauseRow,
    _PAUSES.where(pause.c.group_id == bindparam("for_group")).order_by(pause.c.topic_id, pause.c.message_group),
)
_OLDEST = RowStatement(
    _PauseRow,
    _PAUSES.order_by(pause.c.paused_at_ms, pause.c.group_id, pause.c.topic_id, pause.c.message_group).limit(
        bindparam("limit")
    ),
)
_OF_TOPIC = RowStatement(
    _PauseRow,
    _PAUSES.where(
        pause.c.group_id == bindparam("for_group"),
        pause.c.topic_id.in_([EVERY_TOPIC, bindparam("of_topic")]),
        pause.c.message_group.in_([WHOLE, bindparam("of_message_group")]),
    )
    .order_by(pause.c.topic_id, pause.c.message_group)
    .limit(1),
)
_WHOLE_TOPICS = select(pause.c.group_id, pause.c.topic_id).where(pause.c.message_group == WHOLE)
