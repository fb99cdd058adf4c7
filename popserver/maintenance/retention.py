"""Retention: removes messages that are too old, in steps, from the beginning of each queue.

A message that is held or waits for a retry stays, with all messages after it in its queue; also if it waits for a group
that owns whole queues and has no progress in this queue yet. A redriven message stays until its delivery has ended. A
message that is READY again is removed with its delivery. Dead letters stay until they are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sqlalchemy import bindparam, func, select

from popserver.catalog import groups, lookup, queue_offsets, topics
from popserver.catalog.progress import REACHED
from popserver.catalog.queues import STORED, end_key, first_key
from popserver.database.rows import RowStatement
from popserver.delivery import delivered, deliveries, history
from popserver.delivery.advance import advance_after_removal
from popserver.engine.transaction import STEP_ROWS_MAX, Phase, Request, Transaction, carries_out
from popserver.fifo.positions import MessageGroupKey
from popserver.messages import keyed, parts, stored
from popserver.messages.seek import stored_at
from popserver.messages.stored import lock_queue
from popserver.model.errors import PopError
from popserver.model.group import Mode
from popserver.model.names import DEAD_LETTER_PREFIX, Resource
from popserver.model.topic import message_key, offset_of, queue_of

# A step stops after so many statements, about 10 ms on SQLite and 60 ms on Postgres. One queue may need more, because a
# queue is trimmed for all its groups at once.
STEP_STATEMENTS_MAX = 400
_OF_A_QUEUE, _OF_A_BUSY_GROUP = 13, 4  # statements


class Retained(NamedTuple):
    """The number of removed messages, and when the oldest message that the step has read was stored (None: no message).

    `queues`: the removed messages by queue. `forgotten`: the number of removed rows of the history. The next step
    continues at `next_queue`; 0: this was the last step of a round over all queues.
    """

    removed: int
    oldest_ms: int | None
    queues: tuple[Removed, ...] = ()
    next_queue: int = 0
    forgotten: int = 0


@dataclass(frozen=True, slots=True)
class Retain(Request[Retained]):
    """Remove one step of messages and history stored before `cutoff_ms`; of the queues from `from_queue` on."""

    phase: ClassVar = Phase.RETAIN
    cutoff_ms: int
    from_queue: int = 0


class Removed(NamedTuple):
    """How many messages of a topic's queue were removed, when the first and the last of them were stored, and how many
    groups had not read all of them."""

    topic: Resource
    messages: int
    oldest_ms: int
    newest_ms: int
    unread_by: int


class _QueueRow(NamedTuple):
    queue_id: int
    min_offset: int
    namespace: str
    name: str
    oldest_ms: int | None


@dataclass(slots=True)
class _Left:
    """What one step may still do."""

    rows: int
    statements: int


@carries_out(Retain)
def retain(tx: Transaction, requests: Sequence[Retain]) -> list[Retained | PopError]:
    """One step for all requests: of messages, and after the last queue of history."""
    cutoff_ms = max(request.cutoff_ms for request in requests)
    from_queue = min(request.from_queue for request in requests)
    if not lookup.lock_if_free(tx):
        return [Retained(0, cutoff_ms, next_queue=from_queue)] * len(requests)
    queues = _OLDEST.rows(tx.conn, {"from_queue": from_queue, "looks": STEP_ROWS_MAX})
    trimmed, next_queue = _trim_several(tx, queues, cutoff_ms)
    count, forgotten = sum(each.messages for each in trimmed), 0
    if not next_queue:
        rows = STEP_ROWS_MAX - count
        forgotten = history.expire(tx.conn, cutoff_ms, rows)
        # Continue also if some rows stay: rows with the time of a wrong clock may be among them.
        if forgotten > rows // 2:
            next_queue = queues[-1].queue_id + 1 if queues else max(from_queue, 1)
    oldest_ms = min((each.oldest_ms for each in queues if each.oldest_ms is not None), default=None)
    return [Retained(count, oldest_ms, trimmed, next_queue, forgotten)] * len(requests)


def _trim_several(tx: Transaction, queues: Sequence[_QueueRow], cutoff_ms: int) -> tuple[tuple[Removed, ...], int]:
    """Remove the oldest messages of queues until a step is full. Also returns the first queue of the next step, or 0.

    With many queues and few old messages in each, a transaction for each queue would cost more than its removals. A
    queue without a removal costs statements too, so statements are counted as well.
    """
    trimmed: list[Removed] = []
    left = _Left(STEP_ROWS_MAX, STEP_STATEMENTS_MAX)
    for each in queues:
        if each.oldest_ms is None or each.oldest_ms >= cutoff_ms:
            continue
        removed = _trim(tx, each, cutoff_ms, left)
        if removed:
            trimmed.append(removed)
        if not left.rows:
            return tuple(trimmed), each.queue_id
        if left.statements <= 0:
            return tuple(trimmed), each.queue_id + 1
    return tuple(trimmed), queues[-1].queue_id + 1 if len(queues) == STEP_ROWS_MAX else 0


def _trim(tx: Transaction, queue: _QueueRow, cutoff_ms: int, left: _Left) -> Removed | None:
    """Remove the queue's oldest messages, up to one that must stay. None if none was removed."""
    left.statements -= _OF_A_QUEUE
    if lock_queue(tx, queue.queue_id) is None:
        return None
    first, end = message_key(queue.queue_id, queue.min_offset), message_key(queue.queue_id + 1, 0)
    keys = parts.keys(tx.conn, first, end, left.rows, before_ms=cutoff_ms)
    if not keys:
        return None
    bounds = {"first": first, "end": keys[-1] + 1}
    busy = tx.conn.execute(_BUSY, bounds | {"of_queue": queue.queue_id}).scalars().all()
    left.statements -= _OF_A_BUSY_GROUP * len(busy)
    needed = [delivered.first_needed(tx, group_id, first, bounds["end"]) for group_id in busy]
    needed.append(tx.conn.execute(_FIRST_HANDED_BACK, bounds).scalar())
    needed.append(delivered.first_redriven(tx.conn, first, bounds["end"]))
    end = min([bounds["end"], *(key for key in needed if key is not None)])
    rest = keyed.remove(tx, first, end)
    if rest is not None:
        end = rest  # the messages from there on have too many keys for one transaction
    for group_id in busy:
        _remove_ready(tx, group_id, first, end)
    newest = parts.page(tx.conn, first, end, 1, newest_first=True)
    unread_by = tx.conn.execute(_UNREAD, {"of_queue": queue.queue_id, "end_offset": offset_of(end)}).scalar_one()
    removed = stored.remove_range(tx, first, end)
    queue_offsets.begin_at(tx.conn, queue.queue_id, offset_of(end))
    left.rows = 0 if rest is not None else left.rows - removed
    if not removed:
        return None
    oldest_ms = queue.oldest_ms or 0
    return Removed(Resource(queue.namespace, queue.name), removed, oldest_ms, newest[0].stored_at_ms, unread_by)


def _remove_ready(tx: Transaction, group_id: int, first: int, end: int) -> None:
    """Remove the deliveries of messages that are READY again, and advance their message groups."""
    in_order = delivered.ready_in_order(tx.conn, group_id, first, end)
    deliveries.remove_ready(tx.conn, group_id, first, end)
    members = {MessageGroupKey(row.topic_id, queue_of(first), row.message_group) for row in in_order}
    found = groups.groups_by_id(tx.conn, [group_id]) if members else {}
    if group_id in found:
        advance_after_removal(tx, found[group_id].group, members)


_OLDEST = RowStatement(
    _QueueRow,
    select(
        STORED.c.queue_id,
        STORED.c.min_offset,
        topics.EXISTING.c.namespace,
        topics.EXISTING.c.name,
        stored_at(first_key(STORED), end_key(STORED)).label("oldest_ms"),
    )
    .join(topics.EXISTING, topics.EXISTING.c.topic_id == STORED.c.topic_id)
    .where(
        func.substr(topics.EXISTING.c.name, 1, len(DEAD_LETTER_PREFIX)) != DEAD_LETTER_PREFIX,
        STORED.c.min_offset < STORED.c.next_offset,
        STORED.c.queue_id >= bindparam("from_queue"),
    )
    .order_by(STORED.c.queue_id)
    .limit(bindparam("looks")),
)
# The groups with a delivery in the range. Most groups have none, because they have acked all of it.
_BUSY = (
    select(REACHED.c.group_id)
    .where(REACHED.c.queue_id == bindparam("of_queue"), delivered.first_inside(REACHED.c.group_id).is_not(None))
    .order_by(REACHED.c.group_id)
)
# One row for each group: the index finds no rows by their queue alone.
_reached_at = (
    select(REACHED.c.next_offset)
    .where(REACHED.c.group_id == groups.EXISTING.c.group_id, REACHED.c.queue_id == bindparam("of_queue"))
    .scalar_subquery()
)
_UNREAD = select(func.count()).select_from(groups.EXISTING).where(_reached_at < bindparam("end_offset"))
_FIRST_HANDED_BACK = select(func.min(delivered.first_inside(groups.EXISTING.c.group_id))).where(
    groups.EXISTING.c.mode == Mode.PULL.value
)
