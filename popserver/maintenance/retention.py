"""Retention: remove messages that are too old, in steps, from the beginning of each queue.

A message that is held or waits for a retry stays, and so do all messages after it in its queue. That holds too if it
waits for a group that owns whole queues and has no progress in this queue yet, and for a redriven message whose
delivery has not ended. A message that is READY again is removed with its delivery. Dead letters stay until they are
deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sqlalchemy import and_, bindparam, delete, func, select, update

from popserver.catalog import groups, lookup
from popserver.database.rows import RowStatement
from popserver.database.schema import KEY_SHIFT, consumer_group, delivery, in_states, message, progress, queue
from popserver.database.schema import topic as topic_table
from popserver.delivery import history, message_groups
from popserver.delivery.message_groups import MessageGroupKey
from popserver.engine.transaction import STEP_ROWS_MAX, Phase, Request, Transaction, carries_out
from popserver.messages import keyed
from popserver.messages.append import lock_queue
from popserver.messages.redrives import REDRIVEN_TO
from popserver.model.errors import PopError
from popserver.model.group import Mode
from popserver.model.names import DLQ_PREFIX, Resource
from popserver.model.states import State, shown_as
from popserver.model.topic import message_key, offset_of, queue_of

# A step stops after so many statements, about 10 ms on SQLite and 60 ms on Postgres. One queue may need more, because a
# queue is trimmed for all its groups at once.
STEP_STATEMENTS_MAX = 400
_OF_A_QUEUE, _OF_A_BUSY_GROUP = 12, 4  # statements


class Retained(NamedTuple):
    """Messages removed, and when the oldest one was stored that the step has seen (None: no message).

    The messages are of these `queues`; `forgotten` rows of the history are removed too. The next step goes on at
    `next_queue`; 0: this was the last step of a round over all queues, and what stays is not old or is needed.
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
    """How many messages of a topic's queue were removed, and when the first and the last of them were stored."""

    topic: Resource
    messages: int
    oldest_ms: int
    newest_ms: int


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
        # Not only if all are old: rows with the time of a wrong clock may be among them.
        if forgotten > rows // 2:
            next_queue = queues[-1].queue_id + 1 if queues else max(from_queue, 1)
    oldest_ms = min((each.oldest_ms for each in queues if each.oldest_ms is not None), default=None)
    return [Retained(count, oldest_ms, trimmed, next_queue, forgotten)] * len(requests)


def _trim_several(tx: Transaction, queues: Sequence[_QueueRow], cutoff_ms: int) -> tuple[tuple[Removed, ...], int]:
    """Remove the oldest messages of queues until a step is full. Also returns where the next step goes on; 0: nowhere.

    Where queues are many, and few messages of each become old at a time, a transaction for each queue would cost more
    than its removals. A queue of which nothing can be removed costs statements too, so these are counted as well.
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


def _trim(tx: Transaction, place: _QueueRow, cutoff_ms: int, left: _Left) -> Removed | None:
    """Remove the queue's oldest messages, up to one that must stay. None if none was removed."""
    left.statements -= _OF_A_QUEUE
    if lock_queue(tx, place.queue_id) is None:
        return None
    bounds = {"first": message_key(place.queue_id, place.min_offset), "end": message_key(place.queue_id + 1, 0)}
    keys = tx.conn.execute(_OLD, bounds | {"cutoff_ms": cutoff_ms, "rows": left.rows}).scalars().all()
    if not keys:
        return None
    bounds["end"] = keys[-1] + 1
    busy = tx.conn.execute(_BUSY, bounds | {"of_queue": place.queue_id}).scalars().all()
    left.statements -= _OF_A_BUSY_GROUP * len(busy)
    needed = [_first_needed(tx, bounds | {"for_group": group_id}) for group_id in busy]
    needed.append(tx.conn.execute(_FIRST_HANDED_BACK, bounds).scalar())
    needed.append(tx.conn.execute(_FIRST_REDRIVEN, bounds).scalar())
    bounds["end"] = min([bounds["end"], *(key for key in needed if key is not None)])
    rest = keyed.remove(tx, *_INSIDE, names=bounds)
    if rest is not None:
        bounds["end"] = rest  # the others have too many keys for one transaction
    for group_id in busy:
        _remove_ready(tx, group_id, bounds)
    newest_ms = tx.conn.execute(_NEWEST, bounds).scalar()
    removed = tx.conn.execute(_REMOVE, bounds).rowcount
    tx.conn.execute(_MOVE_MIN, {"of_queue": place.queue_id, "to_offset": offset_of(bounds["end"])})
    left.rows = 0 if rest is not None else left.rows - removed
    if not removed:
        return None
    oldest_ms = place.oldest_ms or 0
    return Removed(Resource(place.namespace, place.name), removed, oldest_ms, newest_ms or oldest_ms)


def _first_needed(tx: Transaction, bounds: dict[str, int]) -> int | None:
    """The key of the first message that must stay for the group: held, waiting for a retry, or being granted now."""
    ready_again = set(tx.conn.execute(_LOCK_READY_AGAIN, bounds).scalars())
    return next((key for key in tx.conn.execute(_ALL, bounds).scalars() if key not in ready_again), None)


def _remove_ready(tx: Transaction, group_id: int, bounds: dict[str, int]) -> None:
    """Remove the deliveries of messages that are READY again; for their message groups these have ended."""
    names = bounds | {"for_group": group_id}
    in_order = tx.conn.execute(_READY_IN_ORDER, names).all()
    tx.conn.execute(_READY_AGAIN_TOO, names)
    members = {MessageGroupKey(row.topic_id, queue_of(bounds["first"]), row.message_group) for row in in_order}
    found = groups.groups_by_id(tx.conn, [group_id]) if members else {}
    if group_id in found:
        message_groups.advance_after_removal(tx, found[group_id].group, members)


_FIRST_KEY = queue.c.queue_id.op("<<")(KEY_SHIFT).op("|")(queue.c.min_offset)
_END_KEY = (queue.c.queue_id + 1).op("<<")(KEY_SHIFT)
_OLDEST = RowStatement(
    _QueueRow,
    select(
        queue.c.queue_id,
        queue.c.min_offset,
        topic_table.c.namespace,
        topic_table.c.name,
        select(message.c.stored_at_ms)
        .where(message.c.message_key >= _FIRST_KEY, message.c.message_key < _END_KEY)
        .order_by(message.c.message_key)
        .limit(1)
        .scalar_subquery()
        .label("oldest_ms"),
    )
    .join(topic_table, topic_table.c.topic_id == queue.c.topic_id)
    .where(
        topic_table.c.deleted_at_ms.is_(None),
        func.substr(topic_table.c.name, 1, len(DLQ_PREFIX)) != DLQ_PREFIX,
        queue.c.min_offset < queue.c.next_offset,
        queue.c.queue_id >= bindparam("from_queue"),
    )
    .order_by(queue.c.queue_id)
    .limit(bindparam("looks")),
)
_INSIDE = (message.c.message_key >= bindparam("first"), message.c.message_key < bindparam("end"))
_OLD = (
    select(message.c.message_key)
    .where(*_INSIDE, message.c.stored_at_ms < bindparam("cutoff_ms"))
    .order_by(message.c.message_key)
    .limit(bindparam("rows"))
)
_DELIVERED_INSIDE = (delivery.c.message_key >= bindparam("first"), delivery.c.message_key < bindparam("end"))
_OF_GROUP = (delivery.c.group_id == bindparam("for_group"), *_DELIVERED_INSIDE)
# Most groups have no delivery there, because they have acked all. A scalar: Postgres may read a table for an EXISTS.
_BUSY = (
    select(progress.c.group_id)
    .where(
        progress.c.queue_id == bindparam("of_queue"),
        select(delivery.c.message_key)
        .where(delivery.c.group_id == progress.c.group_id, *_DELIVERED_INSIDE)
        .order_by(delivery.c.message_key)
        .limit(1)
        .scalar_subquery()
        .is_not(None),
    )
    .order_by(progress.c.group_id)
)
_ALL = select(delivery.c.message_key).where(*_OF_GROUP).order_by(delivery.c.message_key)
_FIRST_HANDED_BACK = (
    select(func.min(delivery.c.message_key))
    .select_from(consumer_group)
    .join(
        delivery,
        and_(delivery.c.group_id == consumer_group.c.group_id, *_DELIVERED_INSIDE),
    )
    .where(consumer_group.c.mode == Mode.PULL.value, consumer_group.c.deleted_at_ms.is_(None))
)
_FIRST_REDRIVEN = (
    select(func.min(REDRIVEN_TO.c.redriven_key))
    .join(
        delivery,
        and_(delivery.c.group_id == REDRIVEN_TO.c.group_id, delivery.c.message_key == REDRIVEN_TO.c.redriven_key),
    )
    .where(REDRIVEN_TO.c.redriven_key >= bindparam("first"), REDRIVEN_TO.c.redriven_key < bindparam("end"))
)
_LOCK_READY_AGAIN = (
    select(delivery.c.message_key)
    .where(*_OF_GROUP, in_states(delivery.c.state, *shown_as(State.READY)))
    .with_for_update(skip_locked=True)
)
_READY_IN_ORDER = (
    select(delivery.c.topic_id, delivery.c.message_group)
    .where(*_OF_GROUP, delivery.c.message_group.is_not(None), in_states(delivery.c.state, *shown_as(State.READY)))
    .distinct()
)
_READY_AGAIN_TOO = delete(delivery).where(*_OF_GROUP, in_states(delivery.c.state, *shown_as(State.READY)))
_NEWEST = select(message.c.stored_at_ms).where(*_INSIDE).order_by(message.c.message_key.desc()).limit(1)
_REMOVE = delete(message).where(*_INSIDE)
_MOVE_MIN = update(queue).where(queue.c.queue_id == bindparam("of_queue")).values(min_offset=bindparam("to_offset"))
