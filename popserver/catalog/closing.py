"""Closes the queues of a topic for producers, and opens them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from popserver.catalog import queue_offsets
from popserver.catalog.lookup import topic_not_found
from popserver.catalog.topics import find_topic
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each
from popserver.model.errors import PopError, TooManyRequests
from popserver.model.names import Resource


@dataclass(frozen=True, slots=True)
class CloseQueues(Request[None]):
    """All queues of a topic together. Like an import it never waits for their locks."""

    phase: ClassVar = Phase.CLOSE_QUEUES
    topic: Resource
    is_closed: bool


@carries_out_each(CloseQueues)
def close_queues(tx: Transaction, request: CloseQueues) -> PopError | None:
    topic = find_topic(tx.conn, request.topic)
    if topic is None:
        return topic_not_found(request.topic)
    queue_ids = [each.queue_id for each in topic.queues]
    if len(queue_offsets.lock_available(tx.conn, queue_ids, len(queue_ids))) < len(queue_ids):
        return TooManyRequests(f"another transaction uses topic '{topic.name}'; repeat the request")
    queue_offsets.close(tx.conn, topic.topic_id, tx.now_ms if request.is_closed else None)
    return None
