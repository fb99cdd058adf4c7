"""What a group holds now, and which of its message groups are locked (reads only)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.catalog import facts as catalog_facts
from popserver.catalog.queues import queues_by_id
from popserver.catalog.topics import names_by_id
from popserver.delivery.deliveries import DeliveryRow
from popserver.delivery.holds import blocking_heads, last_to_end
from popserver.messages import parts
from popserver.messages.by_key import heads
from popserver.model.message import id_from_bytes
from popserver.model.names import Resource
from popserver.model.states import State
from popserver.model.topic import message_key, offset_of, queue_of

BEHIND_MAX = 1_000
# At most this many message groups are searched for locked ones.
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
    topic_id = None if topic_name is None else catalog_facts.topic(conn, topic_name).topic_id
    return _shown(conn, last_to_end(conn, group.group_id, topic_id, limit))


class LockedGroups(NamedTuple):
    """Locked message groups, and how many `more` there are among the first `MESSAGE_GROUPS_MAX` with deliveries."""

    shown: list[LockedGroup]
    more: int


def locked_groups(conn: Connection, group_name: Resource, limit: int) -> LockedGroups:
    """Up to `limit` message groups whose first message is held or waits, those with the most attempts first.

    Raises `ConsumerGroupNotFound`.
    """
    group = catalog_facts.group(conn, group_name)
    first, count = blocking_heads(conn, group.group_id, MESSAGE_GROUPS_MAX, limit)
    shown = [LockedGroup(found, _behind(conn, found)) for found in _shown(conn, first)]
    return LockedGroups(shown, count - len(shown))


def _shown(conn: Connection, rows: Sequence[DeliveryRow]) -> list[Hold]:
    stored = heads(conn, {row.message_key for row in rows})
    names = names_by_id(conn, {row.topic_id for row in rows})
    queues = queues_by_id(conn, {queue_of(key) for key in stored})
    return [
        Hold(
            names[row.topic_id],
            id_from_bytes(stored[row.message_key].message_id),
            queues[queue_of(row.message_key)].number,
            offset_of(row.message_key),
            State(row.state).shown,
            row.attempt,
            row.visible_at_ms,
            row.client_id,
            row.message_group,
            row.holder,
            stored[row.message_key].stored_at_ms,
            row.message_key,
        )
        for row in rows
        if row.message_key in stored
    ]


def _behind(conn: Connection, first: Hold) -> int:
    end = message_key(queue_of(first.message_key) + 1, 0)
    return parts.count(conn, first.message_key + 1, end, first.message_group or "", BEHIND_MAX)
