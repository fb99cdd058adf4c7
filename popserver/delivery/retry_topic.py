"""Retry messages, copies of messages that members sent back: WAITING_RETRY → READY, in topic `%RETRY%<group>`.

When the retry interval of a message is over, an ordinary, new message of that topic replaces it, without a message
group. This copy names its parent (`copy_of`); its properties name the first topic and key.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import ClassVar, NamedTuple

from sqlalchemy import Connection, and_, bindparam, func, select

from popserver.catalog import queue_offsets, topics
from popserver.catalog.progress import REACHED
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import KEY_SHIFT
from popserver.delivery import deliveries
from popserver.delivery.deliveries import DeliveryRow, Ending
from popserver.delivery.history import as_moved, record
from popserver.engine.transaction import FinishOrder, Transaction
from popserver.messages import by_key, stored
from popserver.messages.by_key import HEADS
from popserver.model.group import Group
from popserver.model.message import RECONSUME_TIME
from popserver.model.names import retry_topic
from popserver.model.states import Event
from popserver.model.topic import SYSTEM_QUEUES, NewTopic, Topic, message_key


class _ParentRow(NamedTuple):
    message_key: int
    properties: str | None
    topic_name: str
    resets: int


def requeue(tx: Transaction, group: Group, rows: Sequence[DeliveryRow]) -> None:
    """Replace at most one step of deliveries by retry messages. The caller has locked the deliveries.

    The deliveries end at once; the retry messages are written at the end of the transaction (`NewRetries`).
    """
    deliveries.end(tx, Ending.RETRY_TOPIC, ((group.group_id, each.message_key) for each in rows))
    tx.at_end(NewRetries).returns += [(group, each) for each in rows]


class NewRetries:
    """The retry messages of a transaction. They are written by group, in one order."""

    order: ClassVar = FinishOrder.RETRIES

    def __init__(self) -> None:
        self.returns: list[tuple[Group, DeliveryRow]] = []

    def finish(self, tx: Transaction) -> None:
        self.returns.sort(key=lambda each: (each[0].group_id, each[1].visible_at_ms, each[1].message_key))
        for _, several in groupby(self.returns, key=lambda each: each[0].group_id):
            groups, rows = zip(*several, strict=True)
            _write(tx, groups[0], rows)


def _write(tx: Transaction, group: Group, rows: Sequence[DeliveryRow]) -> None:
    names = {"for_group": group.group_id, "keys": encode_column(each.message_key for each in rows)}
    parents = {row.message_key: row for row in _PARENTS.rows(tx.conn, names)}
    # The others are of a deleted topic, and are removed with it.
    kept = [row for row in rows if row.message_key in parents]
    if kept:
        _copy(tx, group, kept, parents)
    record(tx, group, Event.BACKOFF_ELAPSED, map(as_moved, kept))


class RetryMessage(NamedTuple):
    """A retry message that was made when a message failed."""

    message_key: int
    topic_name: str
    lineage: RetryOrigin


def copies_of(conn: Connection, group: Group, key: int) -> list[RetryMessage]:
    """The retry messages that replaced this message in the group, oldest first."""
    own_id = _topic_id(conn, group)
    if own_id is None:
        return []
    origin_key = _first_key(conn, own_id, key)
    stored_with = [(row.message_key, properties_of(row.properties)) for row in by_key.namesakes(conn, key, own_id)]
    found = [(copy_key, retry_origin_of(each)) for copy_key, each in stored_with if ORIGIN_KEY in each]
    is_copy = key != origin_key
    return [
        RetryMessage(copy_key, retry_topic(group.name).name, lineage)
        for copy_key, lineage in found
        if lineage.origin_key == origin_key and not (is_copy and copy_key <= key)
    ]


def first_key_of(conn: Connection, group: Group, key: int) -> int:
    """A message's first key: in the group's own retry topic the key of its origin, else its own key."""
    own_id = _topic_id(conn, group)
    return key if own_id is None else _first_key(conn, own_id, key)


def _first_key(conn: Connection, own_id: int, key: int) -> int:
    head = by_key.head(conn, key)
    if head is None or head.topic_id != own_id:
        return key
    properties = properties_of(head.properties)
    # A message that was imported for the group has no lineage: it is in its first place.
    return retry_origin_of(properties).origin_key if ORIGIN_KEY in properties else key


def _topic_id(conn: Connection, group: Group) -> int | None:
    name = retry_topic(group.name)
    return topics.topic_ids_of(conn, [name]).get(name)


def properties_of(stored: str | None) -> dict[str, str]:
    return dict(json.loads(stored)) if stored else {}


def without_lineage(stored: str | None) -> str | None:
    """The stored properties of a copy, without those that its retries added."""
    return as_stored(unmarked(properties_of(stored)))


def as_stored(value: Sequence[str] | Mapping[str, str]) -> str | None:
    """Keys or properties as a row of `message` has them."""
    return json.dumps(value, ensure_ascii=False) if value else None


def _copy(tx: Transaction, group: Group, rows: Sequence[DeliveryRow], parents: dict[int, _ParentRow]) -> None:
    name = retry_topic(group.name)
    topic = topics.ensure_topic(tx, NewTopic(name, SYSTEM_QUEUES))
    queue = topic.queues[0]
    taken = queue_offsets.take(tx, queue.queue_id, len(rows))
    assert taken is not None, "the topic was found or made in this transaction"
    first_copy = message_key(queue.queue_id, taken.first)
    copies = [
        (row.message_key, key, _properties(row, parents[row.message_key], topic))
        for key, row in enumerate(rows, start=first_copy)
    ]
    stored.copy_to_retry_topic(tx, topic.topic_id, taken.stored_at_ms, copies)
    tx.ready_topics.add(topic.topic_id)


def _properties(row: DeliveryRow, parent: _ParentRow, topic: Topic) -> str | None:
    properties = properties_of(parent.properties)
    if row.topic_id == topic.topic_id:
        before = retry_origin_of(properties)
        return as_stored(marked(properties, before._replace(failures=row.attempt, resets=parent.resets)))
    return as_stored(marked(properties, RetryOrigin(parent.topic_name, row.attempt, row.message_key, parent.resets)))


_KEYS = rows_parameter("keys", "message_key")
_PARENTS = RowStatement(
    _ParentRow,
    select(
        HEADS.c.message_key,
        HEADS.c.properties,
        topics.EXISTING.c.name.label("topic_name"),
        func.coalesce(REACHED.c.resets, 0).label("resets"),
    )
    .select_from(_KEYS)
    .join(HEADS, HEADS.c.message_key == _KEYS.c.message_key)
    .join(topics.EXISTING, topics.EXISTING.c.topic_id == HEADS.c.topic_id)
    .outerjoin(
        REACHED,
        and_(
            REACHED.c.group_id == bindparam("for_group"),
            REACHED.c.queue_id == _KEYS.c.message_key.op(">>")(KEY_SHIFT),
        ),
    ),
)


# The lineage of a retry message.
#
# A message that a member sent back is delivered again as a copy in topic `%RETRY%<group>`. The copy's properties have
# the topic that the message was sent to, how often it failed, its first key, and the count of resets.

RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_KEY = "popmq.origin-key"
PARENT_RESETS = "popmq.parent-resets"


class RetryOrigin(NamedTuple):
    """The origin of a retry message.

    `failures`: how often the message has failed. `resets`: how often an operator had moved the group's progress in the
    queue of the failed message. After a later move back, the message itself is delivered again.
    """

    topic_name: str
    failures: int
    origin_key: int
    resets: int


def marked(properties: Mapping[str, str], lineage: RetryOrigin) -> dict[str, str]:
    """The properties of a copy: the message's own, and its lineage."""
    return {
        **properties,
        RETRY_TOPIC: lineage.topic_name,
        RECONSUME_TIME: str(lineage.failures),
        ORIGIN_KEY: str(lineage.origin_key),
        PARENT_RESETS: str(lineage.resets),
    }


def unmarked(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties without a lineage. Those that a redrive added stay."""
    return {name: value for name, value in properties.items() if name not in _MARKS}


def retry_origin_of(properties: Mapping[str, str]) -> RetryOrigin:
    """The lineage of a message in a retry topic. Only the server writes there, so its properties are trusted."""
    return RetryOrigin(
        properties[RETRY_TOPIC],
        int(properties[RECONSUME_TIME]),
        int(properties[ORIGIN_KEY]),
        int(properties[PARENT_RESETS]),
    )


_MARKS = frozenset({RETRY_TOPIC, RECONSUME_TIME, ORIGIN_KEY, PARENT_RESETS})
