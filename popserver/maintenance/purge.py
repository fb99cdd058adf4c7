"""Removes the rows of deleted topics and groups in the background, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from popserver.catalog import groups, pauses, progress, queues, topics
from popserver.delivery import deliveries, history
from popserver.engine.transaction import STEP_ROWS_MAX, Phase, Request, Transaction, carries_out
from popserver.fifo import moving_positions, moving_starts
from popserver.members import lite_subscriptions, locks
from popserver.members import sql as members
from popserver.messages import dead_letters, keyed, lite_topics, parts, pending_messages, redrives, repeats, stored
from popserver.model.errors import PopError, TooManyRequests
from popserver.model.topic import message_key


@dataclass(frozen=True, slots=True)
class PurgeDeleted(Request[int]):
    """One step of removing rows of deleted topics and groups."""

    phase: ClassVar = Phase.PURGE


@carries_out(PurgeDeleted)
def purge(tx: Transaction, requests: Sequence[PurgeDeleted]) -> list[int | PopError]:
    """Remove one step of rows. Returns how many were removed; 0 if none is left.

    Refused with `TooManyRequests` while a user's own transaction has locked the last deliveries; the caller repeats it.
    """
    try:
        return [_purge_groups(tx) or _purge_topics(tx)] * len(requests)
    except TooManyRequests as refusal:
        return [refusal] * len(requests)


def _purge_groups(tx: Transaction) -> int:
    group_id = groups.lock_a_deleted_one(tx.conn)
    if group_id is None:
        return 0
    # Progress first, as for a queue: another server may still grant messages to the group.
    if left := progress.forget_group(tx.conn, group_id):
        return left  # other transactions have locked these rows for a moment
    removed = _or_refuse(deliveries.forget_group(tx.conn, group_id))
    if removed:
        return removed
    if removed := dead_letters.forget_group(tx.conn, group_id) or redrives.forget_group(tx.conn, group_id):
        return removed
    removed = moving_positions.forget_group(tx.conn, group_id) or moving_starts.forget_group(tx.conn, group_id)
    removed = removed or members.forget_group(tx.conn, group_id) or locks.forget_group(tx.conn, group_id)
    if removed := removed or lite_subscriptions.forget_group(tx, group_id):
        return removed
    pauses.forget_group(tx.conn, group_id)
    return groups.forget(tx.conn, group_id)


def _purge_topics(tx: Transaction) -> int:
    topic_id = topics.lock_a_deleted_one(tx.conn)
    if topic_id is None:
        return 0
    removed = pending_messages.forget_topic(tx.conn, topic_id) or repeats.forget_topic(tx.conn, topic_id)
    removed = removed or lite_topics.forget_topic(tx.conn, topic_id)
    if removed:
        return removed
    for each in queues.queue_rows(tx.conn, topic_id):
        removed = _purge_queue(tx, each.queue_id)
        if removed:
            return removed
        return queues.forget(tx.conn, each.queue_id)
    # The delivery of a redriven message has a key of another topic, so one scan for the topic comes at the end.
    if removed := _or_refuse(deliveries.forget_topic(tx.conn, topic_id)):
        return removed
    if removed := lite_subscriptions.forget_topic(tx, topic_id):
        return removed
    pauses.forget_topic(tx.conn, topic_id)
    return topics.forget(tx.conn, topic_id)


def _purge_queue(tx: Transaction, queue_id: int) -> int:
    """Progress first, so that no message is granted any more. Rows that refer to a message are removed before it."""
    if left := progress.forget_queue(tx.conn, queue_id):
        return left  # other transactions have locked these rows for a moment
    if removed := moving_positions.forget_queue(tx.conn, queue_id) or moving_starts.forget_queue(tx.conn, queue_id):
        return removed
    locks.forget_queue(tx.conn, queue_id)
    first, end = message_key(queue_id, 0), message_key(queue_id + 1, 0)
    removed = _or_refuse(deliveries.forget_messages(tx.conn, first, end))
    if removed:
        return removed
    removed = dead_letters.forget_copies(tx.conn, first, end)
    return removed or _purge_messages(tx, first, end) or history.forget_messages(tx.conn, first, end)


def _purge_messages(tx: Transaction, first: int, end: int) -> int:
    """Remove a step of messages, and before them their rows in the index of keys, which may be too many for a step."""
    found = parts.keys(tx.conn, first, end, STEP_ROWS_MAX)
    if not found:
        return 0
    end = found[-1] + 1
    rest = keyed.remove(tx, first, end)
    return stored.remove_range(tx, first, end if rest is None else rest)


def _or_refuse(removed: int | None) -> int:
    """The number of removed deliveries. Raises if users' transactions have locked all others: the caller repeats it."""
    if removed is None:
        raise TooManyRequests(
            "a delivery of a deleted topic or group is locked by another transaction; repeat the request"
        )
    return removed
