"""Moves pending messages into their queues. The server reads only ids and keys; the bodies stay in the database.

A step never waits for a queue's counter. If another server has locked a counter, the messages for this queue stay
pending until a later step, which chooses another queue for messages without a message group.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sqlalchemy import and_, select

from popserver.catalog import queue_offsets
from popserver.catalog.topics import topics_by_id
from popserver.database.rows import encode_column
from popserver.engine.searches import SearchedFrom
from popserver.engine.transaction import STEP_ROWS_MAX, Phase, Request, Transaction, carries_out
from popserver.filters import tag_hash
from popserver.messages import pending_messages, repeats, stored
from popserver.messages.by_key import ORIGINALS
from popserver.messages.keyed import KeyedMessages
from popserver.messages.pending_messages import PENDING_BY_ID, PendingRow
from popserver.messages.read import within_a_page
from popserver.messages.spread import by_queue
from popserver.model.errors import PopError
from popserver.model.message import WINDOW_MS
from popserver.model.topic import Topic, message_key

# Bytes of bodies that one step moves.
STEP_BYTES_MAX = 32 * 1024 * 1024
# A search with `looks_back` begins so long before now, to find messages that were stored after their time.
LATE_MS = 5_000


class EnqueuedDue(NamedTuple):
    """How many messages are no longer pending, and when the next one is due: now, if some due messages stay pending."""

    entered: int
    next_due_ms: int | None
    next_topic_id: int | None = None  # of the next message, if it is due later than now
    placed: Sequence[PendingRow] = ()  # the messages that are in their queues now


class EnqueuedRows(NamedTuple):
    """The messages that are in their queues now, and those that stay pending."""

    placed: Sequence[PendingRow]
    left: Sequence[PendingRow]


@dataclass(frozen=True, slots=True)
class EnqueueDue(Request[EnqueuedDue]):
    """A step of at most 1,000 due messages.

    Idempotency keys of messages from users' transactions are stored for `key_window_ms` from now. `looks_back`: such a
    transaction may have stored a message after its time.
    """

    phase: ClassVar = Phase.ENQUEUE_DUE
    key_window_ms: int = WINDOW_MS
    looks_back: bool = False


@carries_out(EnqueueDue)
def enqueue_due(tx: Transaction, requests: Sequence[EnqueueDue]) -> list[EnqueuedDue | PopError]:
    """Move due messages into their queues. Several requests in one transaction share one step; only the first answer
    has the messages."""
    from_ms = _due_from(tx, looks_back=any(each.looks_back for each in requests))
    due = pending_messages.due(tx.conn, from_ms, tx.calendar_ms)
    first_ms = due[0].due_at_ms if due else None
    tx.after_commit.append(tx.remembered(DelayedFrom).saw(None, first_ms, tx.calendar_ms))
    rows = _in_order(tx, within_a_page(((row, row.size) for row in due), STEP_BYTES_MAX))
    done = enqueue(tx, rows, requests[0].key_window_ms) if rows else EnqueuedRows((), ())
    entered = len(rows) - len(done.left)
    answer = EnqueuedDue(entered, *_next_due(tx, entered, len(due)))
    return [answer._replace(placed=done.placed), *[answer] * (len(requests) - 1)]


class DelayedFrom(SearchedFrom[None]):
    """The lower time bound of the search for due messages, for all topics. Servers store a message before its time."""

    slack_ms: ClassVar = 100


def _due_from(tx: Transaction, *, looks_back: bool) -> int:
    """The time at which the search begins. Most messages of users' transactions are due at 0."""
    from_ms = tx.search_from(DelayedFrom, None, tx.calendar_ms)
    if looks_back:
        from_ms = min(from_ms, tx.calendar_ms - LATE_MS)
    return 0 if from_ms and pending_messages.is_any_due_at_once(tx.conn) else from_ms


def _next_due(tx: Transaction, entered: int, due: int) -> tuple[int | None, int | None]:
    """When the next message is due, and its topic id if it is due later than now."""
    if entered < due or due == STEP_ROWS_MAX:
        return tx.calendar_ms, None
    # Other servers have locked all messages that are still due. So the query begins after now, and Postgres does not
    # read the index entries of the rows that this step removed.
    return pending_messages.next_due(tx.conn, tx.calendar_ms) or (None, None)


def enqueue(tx: Transaction, rows: Sequence[PendingRow], key_window_ms: int = WINDOW_MS) -> EnqueuedRows:
    """Give the messages offsets in their queues.

    Two kinds of messages are only removed: those whose id or idempotency key is in a queue already, because they were
    sent again, and those of deleted topics.
    """
    topics = topics_by_id(tx.conn, {row.topic_id for row in rows})
    known = _in_a_queue_already(tx, rows) if tx.careful else set()
    enqueued = [
        repeats.Enqueued(row.pending_id, row.topic_id, bytes(row.message_id))
        for row in rows
        if row.enqueued and row.topic_id in topics and row.pending_id not in known
    ]
    known |= repeats.enter(tx, topics, enqueued, key_window_ms) if enqueued else set()
    dropped = [row for row in rows if row.topic_id not in topics or row.pending_id in known]
    pending_messages.remove(tx.conn, (row.pending_id for row in dropped))
    live = [row for row in rows if row.topic_id in topics and row.pending_id not in known]
    placed = list(_placed(tx, topics, live))
    if placed:
        stored.enqueue(tx, placed)
        _index_keys(tx, live, placed)
        pending_messages.remove(tx.conn, (pending_id for pending_id, *_ in placed))
    ids = {pending_id for pending_id, *_ in placed}
    return EnqueuedRows(
        [row for row in live if row.pending_id in ids], [row for row in live if row.pending_id not in ids]
    )


def _index_keys(tx: Transaction, rows: Sequence[PendingRow], placed: Iterable[tuple[int, int, int, int]]) -> None:
    keys_of = {row.pending_id: json.loads(row.keys) for row in rows if row.keys}
    if keys_of:
        keyed = tx.at_end(KeyedMessages)
        for pending_id, key, *_ in placed:
            keyed.add(key, keys_of.get(pending_id, ()))


def _placed(
    tx: Transaction, topics: dict[int, Topic], rows: Sequence[PendingRow]
) -> Iterator[tuple[int, int, int, int]]:
    """(pending id, message key, stored-at time, tag hash) of each message whose queue could be locked."""
    by_topic: dict[int, list[PendingRow]] = defaultdict(list)
    for row in rows:
        by_topic[row.topic_id].append(row)
    chosen = {
        queue.queue_id: several
        for topic_id, of_topic in by_topic.items()
        for queue, several in by_queue(tx, topics[topic_id], of_topic).items()
    }
    counts = {queue_id: len(several) for queue_id, several in chosen.items()}
    for queue_id, taken in queue_offsets.take_available(tx, counts).items():
        several = chosen[queue_id]
        tx.ready_topics.add(several[0].topic_id)
        for key, row in enumerate(several, start=message_key(queue_id, taken.first)):
            yield row.pending_id, key, taken.stored_at_ms, tag_hash(row.tag)


def _in_order(tx: Transaction, rows: Sequence[PendingRow]) -> list[PendingRow]:
    """The rows without those after a message of their message group that another server has locked."""
    # The messages of a group are all due at once, so they come in the order of their ids.
    last = {(row.topic_id, row.message_group): row.pending_id for row in rows if row.message_group is not None}
    if not last:
        return list(rows)
    missing = pending_messages.first_missing(tx.conn, last, (row.pending_id for row in rows))
    return list(_before_missing(rows, missing))


def _before_missing(rows: Sequence[PendingRow], missing: dict[tuple[int, str], int]) -> Iterator[PendingRow]:
    """The rows without those after the first missing message of their message group."""
    blocked: set[tuple[int, str]] = set()
    for row in rows:
        if row.message_group is None:
            yield row
            continue
        member = row.topic_id, row.message_group
        if row.pending_id > missing.get(member, row.pending_id):
            blocked.add(member)
        if member not in blocked:
            yield row


def _in_a_queue_already(tx: Transaction, rows: Sequence[PendingRow]) -> set[int]:
    """The pending ids of repeats: of messages that are in a queue, or of an earlier row of this step."""
    first: dict[tuple[int, bytes], int] = {}
    for row in rows:
        first.setdefault((row.topic_id, bytes(row.message_id)), row.pending_id)
    repeats = {row.pending_id for row in rows} - set(first.values())
    return repeats | set(tx.conn.execute(_KNOWN, {"ids": encode_column(row.pending_id for row in rows)}).scalars())


_is_of = and_(*(ORIGINALS.c[name] == PENDING_BY_ID.c[name] for name in ("message_id", "topic_id")))
_KNOWN = select(PENDING_BY_ID.c.pending_id).join(ORIGINALS, _is_of)
