"""What a group holds now, and which of its message groups are locked (reads only)."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, func, select

from popserver.catalog import facts as catalog_facts
from popserver.catalog.queues import STORED
from popserver.database.newest import group_of
from popserver.database.schema import KEY_SHIFT, WITH_TIME, delivery
from popserver.database.schema import topic as topic_table
from popserver.messages import parts
from popserver.messages.by_key import HEADS
from popserver.model.message import id_from_bytes
from popserver.model.names import Resource
from popserver.model.states import State
from popserver.model.topic import message_key, offset_of, queue_of

BEHIND_MAX = 1_000
# So many message groups are looked at for those that are locked.
MESSAGE_GROUPS_MAX = 10_000


class Hold(NamedTuple):
    """A message that is held or waits for its next attempt; `holder`: which kind of consumer received it."""

    topic: Resource
    message_id: str
    queue_number: int
    offset: int
    state: State
    attempt: int
    visible_at_ms: int
    client_id: str
    message_group: str | None
    holder: str
    stored_at_ms: int
    message_key: int


class LockedGroup(NamedTuple):
    """A message group, its first message, and how many messages of it are behind that, at most `BEHIND_MAX`."""

    first: Hold
    behind: int


def holds(conn: Connection, group_name: Resource, topic_name: Resource | None, limit: int) -> list[Hold]:
    """The deliveries of a group that end at a time, the last to end first. Raises `ConsumerGroupNotFound`."""
    group = catalog_facts.group(conn, group_name)
    of_topic: list[Any] = []
    if topic_name is not None:
        of_topic = [delivery.c.topic_id == catalog_facts.topic(conn, topic_name).topic_id]
    wanted = _HOLDS.where(delivery.c.group_id == group.group_id, WITH_TIME, *of_topic)
    rows = conn.execute(wanted.order_by(delivery.c.visible_at_ms.desc(), delivery.c.message_key).limit(limit))
    return [_hold(row) for row in rows]


class LockedGroups(NamedTuple):
    """Locked message groups, and how many `more` there are among the first `MESSAGE_GROUPS_MAX` with deliveries."""

    shown: list[LockedGroup]
    more: int


def locked_groups(conn: Connection, group_name: Resource, limit: int) -> LockedGroups:
    """Up to `limit` message groups whose first message is held or waits, those with the most attempts first.

    Raises `ConsumerGroupNotFound`.
    """
    group = catalog_facts.group(conn, group_name)
    first = (
        select(func.min(delivery.c.message_key).label("first_key"))
        .where(group_of(delivery) == group.group_id, delivery.c.message_group.is_not(None))
        .group_by(delivery.c.topic_id, delivery.c.message_group)
        # The order of the index, so that no more than the limit are read.
        .order_by(delivery.c.topic_id, delivery.c.message_group)
        .limit(MESSAGE_GROUPS_MAX)
        .subquery()
    )
    most_attempts_first = delivery.c.attempt.desc(), delivery.c.message_key
    locked = (
        select(delivery.c.message_key, func.count().over().label("locked_count"))
        .join(first, first.c.first_key == delivery.c.message_key)
        .where(delivery.c.group_id == group.group_id, WITH_TIME)
        .order_by(*most_attempts_first)
        .limit(limit)
        .subquery()
    )
    wanted = _HOLDS.add_columns(locked.c.locked_count).join(locked, locked.c.message_key == delivery.c.message_key)
    rows = conn.execute(wanted.where(delivery.c.group_id == group.group_id).order_by(*most_attempts_first)).all()
    shown = [LockedGroup(found, _behind(conn, found)) for found in map(_hold, rows)]
    return LockedGroups(shown, rows[0].locked_count - len(shown) if rows else 0)


def _hold(row: Any) -> Hold:
    return Hold(
        Resource(row.namespace, row.name),
        id_from_bytes(row.message_id),
        row.number,
        offset_of(row.message_key),
        State(row.state).shown,
        row.attempt,
        row.visible_at_ms,
        row.client_id,
        row.message_group,
        row.holder,
        row.stored_at_ms,
        row.message_key,
    )


def _behind(conn: Connection, first: Hold) -> int:
    end = message_key(queue_of(first.message_key) + 1, 0)
    return parts.count(conn, first.message_key + 1, end, first.message_group or "", BEHIND_MAX)


_HOLDS = (
    select(
        topic_table.c.namespace,
        topic_table.c.name,
        HEADS.c.message_id,
        HEADS.c.stored_at_ms,
        STORED.c.number,
        delivery.c.message_key,
        delivery.c.state,
        delivery.c.attempt,
        delivery.c.visible_at_ms,
        delivery.c.client_id,
        delivery.c.message_group,
        delivery.c.holder,
    )
    .select_from(delivery)
    .join(HEADS, HEADS.c.message_key == delivery.c.message_key)
    .join(topic_table, topic_table.c.topic_id == delivery.c.topic_id)
    .join(
        STORED,
        and_(
            STORED.c.topic_id == HEADS.c.topic_id,
            STORED.c.queue_id == HEADS.c.message_key.bitwise_rshift(KEY_SHIFT),
        ),
    )
)
