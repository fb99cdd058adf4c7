"""Removing what is older than the retention: a prefix of each queue, in steps.

A message that somebody holds or that waits for its retry stays, and what stands behind it in its queue; one that is
ready again goes with its delivery. Dead letters stay until they are deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import bindparam, delete, func, select, update

from popserver.domain.delivery import State
from popserver.domain.errors import PopError
from popserver.domain.names import DLQ_PREFIX
from popserver.domain.topic import message_key, offset_of
from popserver.store.schema import KEY_SHIFT, AnyRow, delivery, history, in_states, message, progress, queue
from popserver.store.schema import topic as topic_table
from popserver.store.transaction import STEP_ROWS_MAX, Transaction


class Retain(NamedTuple):
    """Remove one step of what was stored before `cutoff_ms`."""

    cutoff_ms: int


class Retained(NamedTuple):
    """Rows removed (0: nothing left to remove now), and when the oldest message left was stored (None: none)."""

    removed: int
    oldest_ms: int | None


def retain(tx: Transaction, requests: Sequence[Retain]) -> list[Retained | PopError]:
    """One step for all requests: of messages while there are any to remove, then of history."""
    cutoff_ms = max(request.cutoff_ms for request in requests)
    queues = tx.conn.execute(_OLDEST).all()
    removed = next((n for each in queues if _is_older(each, cutoff_ms) and (n := _trim(tx, each, cutoff_ms))), 0)
    removed = removed or tx.conn.execute(_FORGET, {"cutoff_ms": cutoff_ms}).rowcount
    oldest_ms = min((each.oldest_ms for each in queues if each.oldest_ms is not None), default=None)
    return [Retained(removed, oldest_ms)] * len(requests)


def _is_older(place: AnyRow, cutoff_ms: int) -> bool:
    return place.oldest_ms is not None and place.oldest_ms < cutoff_ms


def _trim(tx: Transaction, place: AnyRow, cutoff_ms: int) -> int:
    """Remove the queue's oldest messages, up to one that must stay; the number removed."""
    # Nobody may be granted one of them meanwhile.
    groups = tx.conn.execute(_LOCK_PROGRESS, {"of_queue": place.queue_id}).scalars().all()
    bounds = {"first": message_key(place.queue_id, place.min_offset), "end": message_key(place.queue_id + 1, 0)}
    keys = tx.conn.execute(_OLD, bounds | {"cutoff_ms": cutoff_ms}).scalars().all()
    if not keys:
        return 0
    bounds["end"] = keys[-1] + 1
    needed = [tx.conn.execute(_NEEDED, bounds | {"for_group": group_id}).scalar() for group_id in groups]
    bounds["end"] = min([bounds["end"], *(key for key in needed if key is not None)])
    for group_id in groups:
        tx.conn.execute(_READY_AGAIN_TOO, bounds | {"for_group": group_id})
    removed = tx.conn.execute(_REMOVE, bounds).rowcount
    tx.conn.execute(_MOVE_MIN, {"of_queue": place.queue_id, "to_offset": offset_of(bounds["end"])})
    return removed


_FIRST_KEY = queue.c.queue_id.op("<<")(KEY_SHIFT).op("|")(queue.c.min_offset)
_END_KEY = (queue.c.queue_id + 1).op("<<")(KEY_SHIFT)
_OLDEST = (
    select(
        queue.c.queue_id,
        queue.c.min_offset,
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
    )
)
_LOCK_PROGRESS = (
    select(progress.c.group_id)
    .where(progress.c.queue_id == bindparam("of_queue"))
    .order_by(progress.c.group_id)
    .with_for_update()
)
_INSIDE = (message.c.message_key >= bindparam("first"), message.c.message_key < bindparam("end"))
_OLD = (
    select(message.c.message_key)
    .where(*_INSIDE, message.c.stored_at_ms < bindparam("cutoff_ms"))
    .order_by(message.c.message_key)
    .limit(STEP_ROWS_MAX)
)
_OF_GROUP = (
    delivery.c.group_id == bindparam("for_group"),
    delivery.c.message_key >= bindparam("first"),
    delivery.c.message_key < bindparam("end"),
)
_NEEDED = select(func.min(delivery.c.message_key)).where(
    *_OF_GROUP, in_states(delivery.c.state, State.INFLIGHT, State.WAITING_RETRY)
)
_READY_AGAIN_TOO = delete(delivery).where(*_OF_GROUP, in_states(delivery.c.state, State.READY))
_REMOVE = delete(message).where(*_INSIDE)
_MOVE_MIN = update(queue).where(queue.c.queue_id == bindparam("of_queue")).values(min_offset=bindparam("to_offset"))
_FIRST_HISTORY = (
    select(history.c.history_id, history.c.at_ms).order_by(history.c.history_id).limit(STEP_ROWS_MAX).subquery()
)
_FORGET = delete(history).where(
    history.c.history_id.in_(select(_FIRST_HISTORY.c.history_id).where(_FIRST_HISTORY.c.at_ms < bindparam("cutoff_ms")))
)
