"""Clone: a group gets the progress of another group.

In each queue it begins at the lowest offset that the other group has not finished. So it gets all messages that the
other group holds, that wait for a retry, that members sent back, or that are behind the scan in a message group. It
also gets messages after that offset that the other group has acked. Only the other group's dead letters are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from sqlalchemy import Connection, bindparam, select

from popserver.catalog import groups, lookup, progress, topics
from popserver.catalog.progress import CONSUMED, REACHED, GroupQueueKey, locks_of
from popserver.catalog.queues import STORED
from popserver.catalog.topics import EXISTING
from popserver.delivery import delivered
from popserver.delivery.retry_topic import properties_of, retry_origin_of
from popserver.engine.transaction import STEP_ROWS_MAX, Locks, Phase, Request, Transaction, carries_out_each
from popserver.fifo import positions
from popserver.members import sql as members_sql
from popserver.messages import parts
from popserver.model.errors import BadRequest, PopError
from popserver.model.group import Group, Mode
from popserver.model.names import retry_topic
from popserver.model.topic import Topic, message_key, offset_of, queue_of
from popserver.progress.rules import MovedOffset
from popserver.pulling.rules import NO_OFFSET


@dataclass(frozen=True, slots=True)
class Clone(Request[list[MovedOffset]]):
    """Give `group` the progress of `source` in these topics."""

    phase: ClassVar = Phase.CLONE
    source: Group
    group: Group
    topics: Sequence[Topic]

    def locks(self) -> Iterable[Locks]:
        return locks_of(
            GroupQueueKey(each.group_id, queue.queue_id)
            for each in (self.source, self.group)
            for topic in self.topics
            for queue in topic.queues
        )


def topic_ids(conn: Connection, group: Group) -> set[int]:
    """The topics in which the group has progress."""
    return set(conn.execute(_TOPICS, {"for_group": group.group_id}).scalars())


@carries_out_each(Clone)
def clone(tx: Transaction, request: Clone) -> list[MovedOffset] | PopError:
    """Make the progress rows. A request is done as a whole, or refused."""
    known = groups.groups_by_id(tx.conn, [request.source.group_id, request.group.group_id])
    for group in (request.source, request.group):
        if group.group_id not in known or known[group.group_id].is_deleted:
            return lookup.group_not_found(group.name)
    stored = _stored(tx.conn, request.group)
    for topic in request.topics:
        if any(queue.queue_id in stored for queue in topic.queues):
            return BadRequest(
                f"consumer group '{request.group.name}' has progress in topic '{topic.name}' already; move it with:"
                f" popmq group reset {request.group.name.name} {topic.name.name}"
            )
    begins = _begins(tx.conn, request.source)
    moved = [
        MovedOffset(topic.name, queue.number, NO_OFFSET, begins[queue.queue_id])
        for topic in request.topics
        for queue in topic.queues
        if queue.queue_id in begins
    ]
    _write(tx, request, begins)
    return moved


def _write(tx: Transaction, request: Clone, begins: dict[int, int]) -> None:
    rows = [
        (request.group.group_id, queue.queue_id, begins[queue.queue_id], 1)
        for topic in request.topics
        for queue in topic.queues
        if queue.queue_id in begins
    ]
    # It counts as a reset, so that a member that has begun at another offset meanwhile cannot overwrite it.
    progress.begin(tx.conn, rows)
    groups.begin_elsewhere(tx, request.group, {each.topic_id for each in request.topics})
    for topic in request.topics:
        tx.ready_topics.add(topic.topic_id)
    members_sql.notify_reset(tx, request.group.name)


def _stored(conn: Connection, group: Group) -> Collection[int]:
    return _lowest(conn, group).keys()


def _lowest(conn: Connection, group: Group) -> dict[int, int]:
    """The group's progress by queue id, or the queue's first offset if that is later."""
    rows = conn.execute(_PROGRESS, {"for_group": group.group_id})
    return {row.queue_id: max(row.next_offset, row.min_offset) for row in rows}


def _begins(conn: Connection, source: Group) -> dict[int, int]:
    """By queue id, the lowest offset that the group has not finished."""
    begins = _lowest(conn, source)
    held = {row.queue_id: offset_of(row.first_key) for row in delivered.firsts(conn, source.group_id)}
    _lower(begins, held)
    _lower(begins, positions.first_offsets(conn, source.group_id))
    _lower(begins, {row.queue_id: offset_of(row.first_key) for row in delivered.redriven_firsts(conn, source.group_id)})
    _lower(begins, _handed_back(conn, source, begins))
    return begins


def _lower(begins: dict[int, int], first: dict[int, int]) -> None:
    for queue_id in first.keys() & begins.keys():
        begins[queue_id] = min(begins[queue_id], first[queue_id])


def _handed_back(conn: Connection, source: Group, begins: dict[int, int]) -> dict[int, int]:
    """By queue id, the first message that members sent back and that waits in the retry topic."""
    # In mode POP the messages of the retry topic have deliveries, or are done.
    topic = None if source.mode is Mode.POP else topics.find_topic(conn, retry_topic(source.name))
    first: dict[int, int] = {}
    for queue in topic.queues if topic else ():
        # Messages of the retry topic that wait for their next retry are in `begins`.
        start, end = message_key(queue.queue_id, begins.get(queue.queue_id, 0)), message_key(queue.queue_id + 1, 0)
        while page := parts.page(conn, start, end, STEP_ROWS_MAX):
            for row in page:
                origin_key = retry_origin_of(properties_of(row.properties)).origin_key
                queue_id, offset = queue_of(origin_key), offset_of(origin_key)
                first[queue_id] = min(offset, first.get(queue_id, offset))
            start = page[-1].message_key + 1
    return first


_PROGRESS = (
    select(REACHED.c.queue_id, REACHED.c.next_offset, STORED.c.min_offset)
    .join(STORED, STORED.c.queue_id == REACHED.c.queue_id)
    .where(REACHED.c.group_id == bindparam("for_group"))
)
_TOPICS = (
    select(CONSUMED.c.topic_id)
    .join(EXISTING, EXISTING.c.topic_id == CONSUMED.c.topic_id)
    .where(CONSUMED.c.group_id == bindparam("for_group"))
    .distinct()
)
