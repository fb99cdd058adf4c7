"""Pulls from nothing: every queue seems to hold a million messages, and a look finds a batch wherever it begins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache

from sqlalchemy import Connection

from benchmarks.filling import new_messages
from popserver.domain.message import StoredMessage
from popserver.domain.offsets import Committed, Progress
from popserver.domain.pulling import BATCH_SIZE_MAX, Pulled, PullStatus
from popserver.domain.topic import MessageQueue, Topic, message_key
from popserver.store.offsets import Commit
from popserver.store.pulling import Ends, Pull

END_OFFSET = 1_000_000


def ends_of(_: Connection, __: Topic, place: MessageQueue) -> Ends:
    """In place of `store.pulling.ends_of`."""
    return Ends(place.queue_id, place.number, 0, END_OFFSET)


def look(_: Connection, pulls: Sequence[Pull]) -> list[Pulled]:
    """In place of `store.pulling.look`."""
    return [_pulled(each) for each in pulls]


def _pulled(pull: Pull) -> Pulled:
    found = _batch(pull.topic, pull.queue)[: pull.batch_size]
    return Pulled(PullStatus.FOUND, found, pull.offset + len(found), 0, END_OFFSET)


def commit(wish: Commit) -> list[Committed]:
    """In place of `store.offsets.commit`, of one wish."""
    return [Committed(None, Progress(each.offset, each.resets or 0)) for each in wish.offsets]


@cache
def _batch(topic: Topic, place: MessageQueue) -> list[StoredMessage]:
    now_ms = time.time_ns() // 1_000_000
    return [
        StoredMessage(each, message_key(place.queue_id, offset), place.number, offset, now_ms, bytes(16))
        for offset, each in enumerate(new_messages(topic.name.name, BATCH_SIZE_MAX, 1_024))
    ]
