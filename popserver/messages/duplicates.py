"""Repeated message ids: a message whose id is stored already gets the first one's result (protocol 1.5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from popserver.catalog.queues import queue_rows
from popserver.database.rows import RowStatement
from popserver.database.schema import IS_ORIGINAL, message
from popserver.engine.transaction import STEP_ROWS_MAX
from popserver.messages import pending_messages
from popserver.model.handles import transaction_id_of
from popserver.model.message import Message, SendResult, id_from_bytes, id_to_bytes
from popserver.model.topic import MessageType, Topic, offset_of, queue_of

_COMMITTED = bytes(8)  # in place of the random bytes, because a committed transaction's id is no longer stored


class _QueuedRow(NamedTuple):
    message_id: bytes
    message_key: int
    deliver_at_ms: int | None


def known(conn: Connection, topic: Topic, batch: Sequence[Message]) -> dict[str, SendResult]:
    """The first results of the messages in the batch whose ids are stored, by id."""
    # A half message that is committed already needs a transaction id too; any id can commit it again.
    halves = {each.message_id for each in batch if each.message_type is MessageType.TRANSACTION}
    return of_ids(conn, topic, [each.message_id for each in batch], halves)


def known_pending(conn: Connection, topic: Topic, batch: Sequence[Message]) -> dict[str, SendResult]:
    """The same, only for ids of pending messages."""
    return _pending_of_ids(conn, topic, [each.message_id for each in batch])


def of_ids(conn: Connection, topic: Topic, ids: Sequence[str], halves: Collection[str]) -> dict[str, SendResult]:
    """The first results of the messages with these ids. Those in `halves` always have a transaction id."""
    return _pending_of_ids(conn, topic, ids) | _in_a_queue_of_ids(conn, topic, ids, halves)


def _pending_of_ids(conn: Connection, topic: Topic, ids: Sequence[str]) -> dict[str, SendResult]:
    rows = pending_messages.first_results(conn, topic.topic_id, [id_to_bytes(each) for each in ids])
    found = ((id_from_bytes(row.message_id), row) for row in rows)
    return {known: SendResult(known, None, 0, row.transaction_id or "", row.deliver_at_ms) for known, row in found}


def queue_numbers(conn: Connection, topic: Topic, needed: set[int]) -> dict[int, int]:
    """Queue numbers by queue id. Reads the store if the caller's topic does not have all needed queues."""
    at_hand = {each.queue_id: each.number for each in topic.queues}
    if needed <= at_hand.keys():
        return at_hand
    return {row.queue_id: row.number for row in queue_rows(conn, topic.topic_id)}


def _in_a_queue_of_ids(
    conn: Connection, topic: Topic, ids: Sequence[str], halves: Collection[str]
) -> dict[str, SendResult]:
    kept = [id_to_bytes(each) for each in ids]
    rows = [
        row
        for start in range(0, len(kept), STEP_ROWS_MAX)
        for row in _IN_A_QUEUE.rows(conn, {"topic_id": topic.topic_id, "ids": kept[start : start + STEP_ROWS_MAX]})
    ]
    if not rows:
        return {}
    number_of = queue_numbers(conn, topic, {queue_of(row.message_key) for row in rows})
    found = ((id_from_bytes(row.message_id), row.message_key, row.deliver_at_ms) for row in rows)
    return {
        known: SendResult(
            known,
            number_of[queue_of(key)],
            offset_of(key),
            transaction_id_of(topic.topic_id, id_to_bytes(known), _COMMITTED) if known in halves else "",
            deliver_at,
        )
        for known, key, deliver_at in found
    }


_IN_A_QUEUE = RowStatement(
    _QueuedRow,
    select(message.c.message_id, message.c.message_key, message.c.deliver_at_ms).where(
        message.c.topic_id == bindparam("topic_id"),
        IS_ORIGINAL,
        message.c.message_id.in_(bindparam("ids", expanding=True)),
    ),
)
