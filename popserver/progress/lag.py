"""A group's lag in messages, for each queue and both modes; counted as in the view `group_lag`.

The cost depends on the messages in flight and behind the scan in message groups, not on the backlog.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, case, func, select

from popserver.catalog.progress import REACHED
from popserver.catalog.queues import STORED
from popserver.catalog.topics import EXISTING
from popserver.database.rows import RowStatement
from popserver.database.schema import KEY_SHIFT
from popserver.delivery.delivered import DELIVERED
from popserver.fifo.positions import LEFT_BEHIND
from popserver.members import locks
from popserver.messages import parts
from popserver.messages.by_key import heads
from popserver.messages.parts import IN_GROUPS
from popserver.messages.redrives import REDRIVEN
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.states import State


class QueueLag(NamedTuple):
    """A group's lag in one queue, which stores min_offset <= offset < end_offset.

    `offset` is the group's progress. `client_id` is the member that has the queue's lock, empty if there is none.
    """

    topic: Resource
    number: int
    min_offset: int
    end_offset: int
    offset: int
    ready: int
    inflight: int
    waiting_retry: int
    client_id: str
    oldest_ready_ms: int | None


class _LagRow(NamedTuple):
    queue_id: int
    topic_id: int
    namespace: str
    name: str
    number: int
    min_offset: int
    end_offset: int
    next_offset: int
    first_key: int | None  # of the first message that is not read


def queue_lag(
    conn: Connection, group: Group, topic_id: int | None, now_ms: int, limit: int
) -> tuple[list[QueueLag], int]:
    """The first `limit` queues with progress of the group, in one topic or (None) in all, by topic and number; and how
    many there are.

    Messages of an expired lite topic count as READY until a receive of the group passes them: to leave them out, the
    query would have to read each unread message.
    """
    names = {"for_group": group.group_id, "now_ms": now_ms, "of_topic": topic_id, "limit": limit}
    queues = (_PAGE if topic_id is None else _PAGE_OF_TOPIC).rows(conn, names)
    count = len(queues)
    if count == limit and topic_id is None:
        count = conn.execute(_COUNT, names).scalar_one()
    states: dict[int, Counter[State]] = defaultdict(Counter)
    ahead: Counter[int] = Counter()
    firsts: dict[int, list[int]] = {each.queue_id: [each.first_key] if each.first_key else [] for each in queues}
    for row in conn.execute(_STATES, names):
        states[row.queue_id][State(row.state).shown] += row.deliveries
        ahead[row.queue_id] += int(row.beyond)
        if State(row.state).shown is State.READY:
            firsts.setdefault(row.queue_id, []).append(row.first_key)
    for row in conn.execute(_STATES_ELSEWHERE, names):
        states[row.queue_id][State(row.state).shown] += row.deliveries
        if State(row.state).shown is State.READY:
            firsts.setdefault(row.queue_id, []).append(row.first_key)
    left: dict[int, int] = {}
    for row in conn.execute(_LEFT, names):
        left[row.queue_id] = row.messages
        firsts.setdefault(row.queue_id, []).append(row.first_key)
    stored = heads(conn, {key for keys in firsts.values() for key in keys})
    holders = locks.holders(conn, group.group_id, now_ms)
    return [
        _lag(
            each,
            states[each.queue_id],
            left.get(each.queue_id, 0) - ahead[each.queue_id],
            holders.get(each.queue_id, ""),
            min((stored[key].stored_at_ms for key in firsts[each.queue_id] if key in stored), default=None),
        )
        for each in queues
    ], count


def _lag(queue: _LagRow, states: Counter[State], more: int, holder: str, oldest_ready_ms: int | None) -> QueueLag:
    beyond = queue.end_offset - max(queue.next_offset, queue.min_offset)
    ready = beyond + states[State.READY] + more
    return QueueLag(
        Resource(queue.namespace, queue.name),
        queue.number,
        queue.min_offset,
        queue.end_offset,
        queue.next_offset,
        ready,
        states[State.INFLIGHT],
        states[State.WAITING_RETRY],
        holder,
        oldest_ready_ms if ready else None,
    )


_OWN = (
    select(
        STORED.c.queue_id,
        STORED.c.topic_id,
        EXISTING.c.namespace,
        EXISTING.c.name,
        STORED.c.number,
        STORED.c.min_offset,
        STORED.c.next_offset.label("end_offset"),
        REACHED.c.next_offset,
    )
    .select_from(REACHED)
    .join(STORED, STORED.c.queue_id == REACHED.c.queue_id)
    .join(EXISTING, EXISTING.c.topic_id == STORED.c.topic_id)
    .where(REACHED.c.group_id == bindparam("for_group"))
)
_COUNT = select(func.count()).select_from(_OWN.subquery("own"))


def _page_of(own: Select[Any]) -> RowStatement[_LagRow]:
    # First the page, so that the query searches for messages only in its queues.
    order = EXISTING.c.namespace, EXISTING.c.name, STORED.c.number
    page = own.order_by(*order).limit(bindparam("limit")).subquery("page")
    # A search only in queues with unread messages: most queues of most groups are read to their ends.
    first_unread = case(
        (
            and_(page.c.next_offset < page.c.end_offset, page.c.min_offset < page.c.end_offset),
            parts.first_key_in(
                page.c.queue_id.op("<<")(KEY_SHIFT).op("|")(page.c.next_offset),
                (page.c.queue_id + 1).op("<<")(KEY_SHIFT),
            ),
        )
    )
    found = select(*page.c, first_unread.label("first_key"))
    return RowStatement(_LagRow, found.order_by(page.c.namespace, page.c.name, page.c.number))


_PAGE = _page_of(_OWN)
_PAGE_OF_TOPIC = _page_of(_OWN.where(STORED.c.topic_id == bindparam("of_topic")))
_REACHED = REACHED.c.queue_id.op("<<")(KEY_SHIFT).op("|")(REACHED.c.next_offset)
_STATES = (
    select(
        DELIVERED.c.queue_id,
        DELIVERED.c.state,
        func.count().label("deliveries"),
        # A message that was sent back after the committed offset waits for its retry, so it is not counted as READY.
        func.sum(case((DELIVERED.c.message_key >= _REACHED, 1), else_=0)).label("beyond"),
        func.min(DELIVERED.c.message_key).label("first_key"),
    )
    .select_from(DELIVERED)
    .outerjoin(REACHED, and_(REACHED.c.group_id == DELIVERED.c.group_id, REACHED.c.queue_id == DELIVERED.c.queue_id))
    .where(DELIVERED.c.group_id == bindparam("for_group"))
    .group_by(DELIVERED.c.queue_id, DELIVERED.c.state)
)
# Redriven messages count by their first key: their deliveries have keys in another topic.
_ELSEWHERE = (
    select(DELIVERED.c.message_key, DELIVERED.c.state, REDRIVEN.c.origin_key)
    .select_from(DELIVERED)
    .join(STORED, and_(STORED.c.queue_id == DELIVERED.c.queue_id, STORED.c.topic_id != DELIVERED.c.topic_id))
    .join(
        REDRIVEN,
        and_(REDRIVEN.c.redriven_key == DELIVERED.c.message_key, REDRIVEN.c.group_id == DELIVERED.c.group_id),
    )
    .where(DELIVERED.c.group_id == bindparam("for_group"))
    .distinct()
    .subquery()
)
_ORIGIN_QUEUE_ID = _ELSEWHERE.c.origin_key.op(">>")(KEY_SHIFT)
_STATES_ELSEWHERE = select(
    _ORIGIN_QUEUE_ID.label("queue_id"),
    _ELSEWHERE.c.state,
    func.count().label("deliveries"),
    func.min(_ELSEWHERE.c.message_key).label("first_key"),
).group_by(_ORIGIN_QUEUE_ID, _ELSEWHERE.c.state)
# Messages of message groups that are behind the scan.
_LEFT: Select[tuple[int, int, int]] = (
    select(LEFT_BEHIND.c.queue_id, func.count().label("messages"), func.min(IN_GROUPS.c.message_key).label("first_key"))
    .join(
        IN_GROUPS,
        and_(
            IN_GROUPS.c.message_group == LEFT_BEHIND.c.message_group,
            IN_GROUPS.c.message_key >= LEFT_BEHIND.c.from_key,
            IN_GROUPS.c.message_key < LEFT_BEHIND.c.to_key,
        ),
    )
    .group_by(LEFT_BEHIND.c.queue_id)
)
