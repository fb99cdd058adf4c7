"""Repeated message ids: a message whose id is stored already gets the first one's result (protocol 1.5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from popserver.catalog.queues import queue_rows
from popserver.messages import by_key, pending_messages
from popserver.model.handles import transaction_id_of
from popserver.model.message import Message, SendResult, id_from_bytes, id_to_bytes
from popserver.model.topic import MessageType, Topic, offset_of, queue_of

_COMMITTED = bytes(8)  # in place of the random bytes, because a committed transaction's id is no longer stored


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

    return {row.queue_id: row.number for row in queue_rows(conn, topic.topic_id)}


def _in_a_queue_of_ids(
    conn: Connection, topic: Topic, ids: Sequence[str], halves: Collection[str]
) -> dict[str, SendResult]:
    rows = by_key.originals(conn, topic.topic_id, [id_to_bytes(each) for each in ids])
    number_of = by_key.queue_numbers(conn, topic, {queue_of(row.message_key) for row in rows})
    found = ((id_from_bytes(row.message_id), row) for row in rows)
    return {
        known: SendResult(
            known,
            number_of[queue_of(row.message_key)],
            offset_of(row.message_key),
            transaction_id_of(topic.topic_id, id_to_bytes(known), _COMMITTED) if known in halves else "",
            row.deliver_at_ms,
        )
        for known, row in found
    }
