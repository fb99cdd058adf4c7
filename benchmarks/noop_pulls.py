"""Pulls without a database: every queue seems to have a million messages, and each read finds a batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache

from sqlalchemy import Connection

from benchmarks.filling import new_messages
from popserver.catalog.queue_offsets import Ends
from popserver.model.message import StoredMessage
from popserver.model.topic import MessageQueue, Topic, message_key
from popserver.pulling.commit import Commit
from popserver.pulling.read import QueueRead
from popserver.pulling.rules import BATCH_SIZE_MAX, Committed, Pulled, PullStatus, QueueProgress

END_OFFSET = 1_000_000


def ends_of(_: Connection, __: Topic, place: MessageQueue) -> Ends:
    """In place of `pulling.read.ends_of`."""
    return Ends(place.queue_id, place.number, 0, END_OFFSET)


def read_queues(_: Connection, pulls: Sequence[QueueRead]) -> list[Pulled]:
    """In place of `pulling.read.read_queues`."""
    return [_pulled(each) for each in pulls]


def _pulled(pull: QueueRead) -> Pulled:
    found = _batch(pull.topic, pull.queue)[: pull.batch_size]
    return Pulled(PullStatus.FOUND, found, pull.offset + len(found), 0, END_OFFSET)


def commit(wish: Commit) -> list[Committed]:
    """In place of `pulling.commit.commit`, of one wish."""
    return [Committed(None, QueueProgress(each.offset, each.resets or 0)) for each in wish.offsets]


@cache
def _batch(topic: Topic, place: MessageQueue) -> list[StoredMessage]:
    now_ms = time.time_ns() // 1_000_000
    return [
        StoredMessage(each, message_key(place.queue_id, offset), place.number, offset, now_ms)
        for offset, each in enumerate(new_messages(topic.name.name, BATCH_SIZE_MAX, 1_024))
    ]
