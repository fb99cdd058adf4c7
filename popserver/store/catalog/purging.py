"""What deleted topics and groups have left, removed step by step behind everybody's back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, bindparam, delete, func, select, tuple_

from popserver.domain.errors import PopError, TooManyRequests
from popserver.domain.topic import message_key
from popserver.store.catalog.queues import queue_rows
from popserver.store.schema import (
    consumer_group,
    dead_letter,
    delivery,
    history,
    idempotency,
    member,
    message,
    message_group_progress,
    pending,
    progress,
    queue,
    queue_lock,
    redrive,
    redrive_plan,
)
from popserver.store.schema import topic as topic_table
from popserver.store.transaction import STEP_ROWS_MAX, Transaction


class Purge(NamedTuple):
    """One step of removing what deleted topics and groups have left."""


def purge(tx: Transaction, requests: Sequence[Purge]) -> list[int | PopError]:
    """Remove one step of what is deleted; the number of rows removed, 0 when nothing is left.

    Refused, to be asked again, while somebody's own transaction has the last of the deliveries under its hands.
    """
    try:
        return [_purge_groups(tx) or _purge_topics(tx)] * len(requests)
    except TooManyRequests as refusal:
        return [refusal] * len(requests)


def _purge_groups(tx: Transaction) -> int:
    group_id = tx.conn.execute(_A_DELETED_GROUP).scalar()
    if group_id is None:
        return 0
    # Progress first, as with a queue: on another server the group may still be granted something.
    tx.conn.execute(_END_PROGRESS_OF_GROUP, {"of_group": group_id})
    if left := tx.conn.execute(_COUNT_PROGRESS_OF_GROUP, {"of_group": group_id}).scalar_one():
        return int(left)  # in use on another server, for as long as a transaction takes
    removed = _purge_deliveries(tx, delivery.c.group_id == group_id)
    if removed:
        return removed
    for table, key in (
        (dead_letter, dead_letter.c.dead_letter_id),
        (redrive, redrive.c.dead_letter_id),
        (redrive_plan, redrive_plan.c.plan_id),
        (message_group_progress, message_group_progress.c.message_group),
        (member, member.c.client_id),
        (queue_lock, queue_lock.c.queue_id),
    ):
        some = select(key).where(table.c.group_id == group_id).limit(STEP_ROWS_MAX)
        removed = tx.conn.execute(delete(table).where(table.c.group_id == group_id, key.in_(some))).rowcount
        if removed:
            return removed
    return tx.conn.execute(delete(consumer_group).where(consumer_group.c.group_id == group_id)).rowcount


def _purge_topics(tx: Transaction) -> int:
    topic_id = tx.conn.execute(_A_DELETED_TOPIC).scalar()
    if topic_id is None:
        return 0
    some = select(pending.c.pending_id).where(pending.c.topic_id == topic_id).limit(STEP_ROWS_MAX)
    removed = tx.conn.execute(delete(pending).where(pending.c.pending_id.in_(some))).rowcount
    removed = removed or _purge_keys(tx, topic_id)
    if removed:
        return removed
    for each in queue_rows(tx.conn, topic_id):
        removed = _purge_queue(tx, each.queue_id)
        if removed:
            return removed
        return tx.conn.execute(delete(queue).where(queue.c.queue_id == each.queue_id)).rowcount
    # What was redriven to a group has its delivery at a place in another topic; looked for once, at the end.
    if removed := _purge_deliveries(tx, delivery.c.topic_id == topic_id):
        return removed
    return tx.conn.execute(delete(topic_table).where(topic_table.c.topic_id == topic_id)).rowcount


def _purge_keys(tx: Transaction, topic_id: int) -> int:
    some = select(idempotency.c.idempotency_key).where(idempotency.c.topic_id == topic_id).limit(STEP_ROWS_MAX)
    of_topic = idempotency.c.topic_id == topic_id, idempotency.c.idempotency_key.in_(some)
    return tx.conn.execute(delete(idempotency).where(*of_topic)).rowcount


def _purge_queue(tx: Transaction, queue_id: int) -> int:
    """Progress first: nobody is granted anything any more. What falls due or is looked up goes before its message."""
    tx.conn.execute(_END_PROGRESS, {"of_queue": queue_id})
    if left := tx.conn.execute(_COUNT_PROGRESS, {"of_queue": queue_id}).scalar_one():
        return int(left)  # in use on another server, for as long as a transaction takes
    names = message_group_progress.c.message_group
    some = select(names).where(message_group_progress.c.queue_id == queue_id).limit(STEP_ROWS_MAX)
    of_queue = message_group_progress.c.queue_id == queue_id, names.in_(some)
    removed = tx.conn.execute(delete(message_group_progress).where(*of_queue)).rowcount
    if removed:
        return removed
    tx.conn.execute(_END_LOCKS, {"of_queue": queue_id})
    first, end = message_key(queue_id, 0), message_key(queue_id + 1, 0)
    removed = _purge_deliveries(tx, delivery.c.message_key >= first, delivery.c.message_key < end)
    if removed:
        return removed
    for key in (dead_letter.c.copy_key, message.c.message_key, history.c.message_key):
        some = select(key).where(key >= first, key < end).limit(STEP_ROWS_MAX)
        removed = tx.conn.execute(delete(key.table).where(key.in_(some))).rowcount
        if removed:
            return removed
    return 0


def _purge_deliveries(tx: Transaction, *of_what_is_gone: ColumnElement[bool]) -> int:
    """A step of them, waiting for none that is locked: it may be so for as long as its holder likes."""
    key = tuple_(delivery.c.group_id, delivery.c.message_key)
    these = select(delivery.c.group_id, delivery.c.message_key).where(*of_what_is_gone).limit(STEP_ROWS_MAX)
    removed = tx.conn.execute(delete(delivery).where(key.in_(these.with_for_update(skip_locked=True)))).rowcount
    if not removed and tx.conn.execute(these.limit(1)).first() is not None:
        raise TooManyRequests("a delivery of what is deleted is locked by another transaction; ask again")
    return removed


# Each is one server's to remove.
_A_DELETED_GROUP = (
    select(consumer_group.c.group_id)
    .where(consumer_group.c.deleted_at_ms.is_not(None))
    .limit(1)
    .with_for_update(skip_locked=True)
)
_A_DELETED_TOPIC = (
    select(topic_table.c.topic_id)
    .where(topic_table.c.deleted_at_ms.is_not(None))
    .limit(1)
    .with_for_update(skip_locked=True)
)
# Without waiting: whoever uses one may be waiting for what this transaction has.
_IN_QUEUE = progress.c.queue_id == bindparam("of_queue")
_FREE = select(progress.c.group_id).where(_IN_QUEUE).with_for_update(skip_locked=True).correlate(None)
_END_PROGRESS = delete(progress).where(_IN_QUEUE, progress.c.group_id.in_(_FREE))
_END_LOCKS = delete(queue_lock).where(queue_lock.c.queue_id == bindparam("of_queue"))
_COUNT_PROGRESS = select(func.count()).select_from(progress).where(_IN_QUEUE)
_OF_GROUP = progress.c.group_id == bindparam("of_group")
_FREE_OF_GROUP = select(progress.c.queue_id).where(_OF_GROUP).with_for_update(skip_locked=True).correlate(None)
_END_PROGRESS_OF_GROUP = delete(progress).where(_OF_GROUP, progress.c.queue_id.in_(_FREE_OF_GROUP))
_COUNT_PROGRESS_OF_GROUP = select(func.count()).select_from(progress).where(_OF_GROUP)
