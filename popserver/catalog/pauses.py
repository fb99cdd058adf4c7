"""Keeper of the pauses of groups: in all topics, in one topic, or for one message group."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, FromClause, ScalarSelect, bindparam, delete, func, insert, select

from popserver.catalog import groups, topics
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import pause
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


class FirstPauses(NamedTuple):
    """The first pauses of a group, and how many `more` it has. Pauses in all topics come first, then by topic and
    message group."""

    shown: list[GroupPause]
    more: int


def pauses_of(conn: Connection, group_ids: Collection[int], limit: int) -> dict[int, FirstPauses]:
    """The first `limit` pauses of each of these groups."""
    names = {"groups": encode_column(group_ids), "limit": limit}
    shown: dict[int, list[GroupPause]] = {each: [] for each in group_ids}
    for row in _FIRST.rows(conn, names):
        shown[row.group_id].append(_pause(row))
    counts = {row[0]: row[1] for row in conn.execute(_COUNTS, names)}
    return {each: FirstPauses(first, counts.get(each, 0) - len(first)) for each, first in shown.items()}


def pause_of_topic(conn: Connection, group_id: int, topic_id: int, message_group: str | None) -> GroupPause | None:
    """The widest pause that stops messages of the topic, or of this message group of it, for the group."""
    names = {"for_group": group_id, "of_topic": topic_id, "of_message_group": message_group or WHOLE}
    row = _OF_TOPIC.first(conn, names)
    return None if row is None else _pause(row)


def _pause(row: _PauseRow) -> GroupPause:
    topic = None if row.name is None else Resource(row.namespace or "", row.name)
    return GroupPause(row.group_id, topic, row.message_group or None, row.paused_at_ms, row.paused_by)


def paused_topics(conn: Connection) -> dict[int, frozenset[int]]:
    """The topics (ids) in which groups are paused as a whole, by group id; `EVERY_TOPIC` is the id for all topics."""
    topics: dict[int, set[int]] = {}
    for row in conn.execute(_WHOLE_TOPICS):
        topics.setdefault(row.group_id, set()).add(row.topic_id)
    return {group_id: frozenset(several) for group_id, several in topics.items()}


class PauseKey(NamedTuple):
    """`topic_id`: `EVERY_TOPIC` for all; `message_group`: `WHOLE` unless only one is paused."""

    group_id: int
    topic_id: int
    message_group: str


def is_paused(conn: Connection, key: PauseKey) -> bool:
    return conn.execute(_FIND, key._asdict()).first() is not None


def paused_among(conn: Connection, topic_id: int, message_groups: Collection[str]) -> set[str]:
    """Those of these message groups of the topic that are paused for any consumer group."""
    names = encode_column(sorted(message_groups))
    return set(conn.execute(_AMONG, {"topic_id": topic_id, "names": names}).scalars())


def message_groups_in(conn: Connection, group_id: int, queue_id: int) -> list[tuple[int, str]]:
    """The message groups of the queue that are paused: topic id and name."""
    return [(row[0], row[1]) for row in conn.execute(_IN_QUEUE, {"for_group": group_id, "of_queue": queue_id})]


def paused_at(rows: FromClause) -> ScalarSelect[int]:
    """When the message group in `rows` (`group_id`, `topic_id`, `message_group`) was paused; NULL if it is not."""
    # No EXISTS: Postgres would turn it into a join, and read all positions.
    of_row = (pause.c[name] == rows.c[name] for name in ("group_id", "topic_id", "message_group"))
    return select(pause.c.paused_at_ms).where(*of_row).correlate(rows).scalar_subquery()


def add(conn: Connection, key: PauseKey, queue_id: int | None, paused_at_ms: int, paused_by: str) -> None:
    """`queue_id`: the queue of the message group, if only one is paused."""
    conn.execute(_ADD, {**key._asdict(), "queue_id": queue_id, "paused_at_ms": paused_at_ms, "paused_by": paused_by})


def end(conn: Connection, key: PauseKey) -> None:
    conn.execute(_END, key._asdict())


def end_all(conn: Connection, group_id: int, topic_id: int) -> bool:
    """End the pauses of the group in the topic and in its message groups. Returns whether there were any."""
    return bool(conn.execute(_END_ALL, {"group_id": group_id, "topic_id": topic_id}).rowcount)


def forget_group(conn: Connection, group_id: int) -> None:
    """Remove the pauses of a deleted group."""
    conn.execute(delete(pause).where(pause.c.group_id == group_id))


def forget_topic(conn: Connection, topic_id: int) -> None:
    """Remove the pauses in a deleted topic."""
    conn.execute(delete(pause).where(pause.c.topic_id == topic_id))


_OF_GROUP_AND_TOPIC = (pause.c.group_id == bindparam("group_id"), pause.c.topic_id == bindparam("topic_id"))
_ONE = (*_OF_GROUP_AND_TOPIC, pause.c.message_group == bindparam("message_group"))
_FIND = select(pause.c.topic_id).where(*_ONE)
_ADD = insert(pause)
_NAMES = rows_parameter("names", text=("name",))
_AMONG = select(pause.c.message_group).where(
    pause.c.topic_id == bindparam("topic_id"), pause.c.message_group.in_(select(_NAMES.c.name))
)
_IN_QUEUE = select(pause.c.topic_id, pause.c.message_group).where(
    pause.c.group_id == bindparam("for_group"), pause.c.queue_id == bindparam("of_queue")
)
_END = delete(pause).where(*_ONE)
_END_ALL = delete(pause).where(*_OF_GROUP_AND_TOPIC)
_COLUMNS = (
    pause.c.group_id,
    pause.c.topic_id,
    pause.c.message_group,
    topics.EXISTING.c.namespace,
    topics.EXISTING.c.name,
    pause.c.paused_at_ms,
    pause.c.paused_by,
)
_PAUSES = (
    select(*_COLUMNS)
    .join(groups.EXISTING, groups.EXISTING.c.group_id == pause.c.group_id)
    .outerjoin(topics.EXISTING, topics.EXISTING.c.topic_id == pause.c.topic_id)
    .where((pause.c.topic_id == EVERY_TOPIC) | topics.EXISTING.c.topic_id.is_not(None))
)
_GROUPS = rows_parameter("groups", "group_id")
_OF_GROUPS = _PAUSES.where(pause.c.group_id.in_(select(_GROUPS.c.group_id)))
_RANKED = _OF_GROUPS.add_columns(
    func.row_number()
    .over(partition_by=pause.c.group_id, order_by=(pause.c.topic_id, pause.c.message_group))
    .label("number")
).subquery()
_FIRST = RowStatement(
    _PauseRow,
    select(*(_RANKED.c[name] for name in _PauseRow._fields))
    .where(_RANKED.c.number <= bindparam("limit"))
    .order_by(_RANKED.c.group_id, _RANKED.c.number),
)
_COUNTS = _OF_GROUPS.with_only_columns(pause.c.group_id, func.count()).group_by(pause.c.group_id)
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
