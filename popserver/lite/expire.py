"""Expiry: a lite topic ends a while after its last message, or when retention has removed its last one.

Then its messages count as consumed, in every group. A lite topic stays while a message of it is held or waits for a
retry, and while an operator has paused it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from popserver.catalog import pauses, queue_offsets, topics
from popserver.delivery import delivered, deliveries
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each
from popserver.fifo import moving_positions
from popserver.messages import lite_topics
from popserver.messages.lite_topics import ExpiringLiteTopic
from popserver.messages.stored import lock_queue
from popserver.model.topic import queue_of


@dataclass(frozen=True, slots=True)
class ExpireLite(Request[int]):
    """Remove the expired ones of these lite topics. The result is their number."""

    phase: ClassVar = Phase.EXPIRE_LITE
    lite_topics: Sequence[ExpiringLiteTopic]


@carries_out_each(ExpireLite)
def expire(tx: Transaction, request: ExpireLite) -> int:
    """One step; lite topics in queues that another server uses stay until the next step."""
    by_queue: dict[int, list[ExpiringLiteTopic]] = {}
    for each in request.lite_topics:
        by_queue.setdefault(queue_of(each.first_key), []).append(each)
    return sum(_expire_in_queue(tx, queue_id, of_queue) for queue_id, of_queue in sorted(by_queue.items()))


def _expire_in_queue(tx: Transaction, queue_id: int, found: Sequence[ExpiringLiteTopic]) -> int:
    topic_id = found[0].topic_id
    # Both locks without waiting: a send that creates lite topics locks the topic, and then waits for the queue. To wait
    # in the other order would be a deadlock.
    if not topics.lock_lite_topics_available(tx.conn, topic_id):
        return 0
    groups = lock_queue(tx, queue_id)
    if groups is None:
        return 0
    # Again under the locks: a producer may have sent to some since the search.
    expired = lite_topics.expired_among(tx.conn, topic_id, {each.name for each in found}, tx.now_ms)
    expired -= pauses.paused_among(tx.conn, topic_id, expired)
    names = sorted(expired)
    rows_of = {group_id: delivered.of_lite_topics(tx.conn, group_id, topic_id, names) for group_id in groups}
    for group_id, rows in rows_of.items():
        expired -= delivered.timed_lite_topics(tx.conn, group_id, rows) if rows else set()
    if not expired:
        return 0
    for group_id, rows in rows_of.items():
        deliveries.remove(tx.conn, [(group_id, row.message_key) for row in rows if row.message_group in expired])
    ended = sorted(expired)
    moving_positions.end(tx.conn, [(group_id, queue_id, name) for group_id in groups for name in ended])
    queue_offsets.expire_lite_topics(tx.conn, queue_id)
    return lite_topics.end(tx.conn, topic_id, expired)
