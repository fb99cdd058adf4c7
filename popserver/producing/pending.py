"""Requests that store pending messages and take them back.

A transaction that locks a pending message has locked no delivery and waits for no queue's counter
(`producing.enqueue`). So these phases come after `messages.stored` and before all phases that lock deliveries, and
servers cannot deadlock.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from popserver.catalog import topics
from popserver.database.notifications import CHECKS, PENDING
from popserver.engine.transaction import Phase, Request, Transaction, carries_out, carries_out_each
from popserver.messages import by_key, pending_messages, repeats
from popserver.messages.stored import content
from popserver.model.errors import MessageNotFound, MessagePropertyConflictWithType, PopError, TooLate
from popserver.model.handles import transaction_id_of
from popserver.model.message import WINDOW_MS, Message, SendResult, id_to_bytes
from popserver.model.states import PendingKind
from popserver.model.times import apart
from popserver.model.topic import MessageType, Topic
from popserver.producing.rules import CheckPolicy, first_check_at_ms


@dataclass(frozen=True, slots=True)
class StorePending(Request[list[SendResult]]):
    """Store delayed and half messages of one topic, which have passed the checks of messages.

    `client_id` is their producer. Their idempotency keys are stored for `key_window_ms`; 0 ignores them.
    """

    phase: ClassVar = Phase.STORE_PENDING
    topic: Topic
    messages: Sequence[Message]
    client_id: str
    policy: CheckPolicy
    key_window_ms: int = WINDOW_MS


@dataclass(frozen=True, slots=True)
class RecallPending(Request[None]):
    """Take a delayed message back; `deliver_at_ms` comes from its recall handle."""

    phase: ClassVar = Phase.RECALL
    topic: Topic
    message_id: str
    deliver_at_ms: int


@dataclass(frozen=True, slots=True)
class CancelPending(Request[list[str]]):
    """Take back pending messages of any kind, for an operator."""

    phase: ClassVar = Phase.CANCEL_PENDING
    topic: Topic
    message_ids: Sequence[str]


@carries_out(StorePending)
def store_pending(tx: Transaction, requests: Sequence[StorePending]) -> list[list[SendResult] | PopError]:
    """Store the messages in no queue. A repeated message id gets the result of the first message."""
    return topics.topic_by_topic(requests, partial(_store_in_topic, tx))


def _store_in_topic(tx: Transaction, requests: Sequence[StorePending]) -> list[list[SendResult] | PopError]:
    topic = requests[0].topic
    if refusal := topics.refusal_of_sends(tx.conn, topic):
        return repeats.answers(tx, topic, [request.messages for request in requests], refusal)
    batch = [each for request in requests for each in request.messages]
    results = repeats.known(tx, topic, batch)
    new, alike = repeats.firsts([each for each in batch if each.message_id not in results])
    repeats.claim(tx, topic, new, requests[0].key_window_ms)
    rows = []
    for request in requests:
        for each in request.messages:
            if each.message_id not in results and each.message_id not in alike:
                row = _row(tx, request, each)
                rows.append(row)
                results[each.message_id] = SendResult(each.message_id, None, 0, row[5] or "", each.deliver_at_ms)
    pending_messages.store(tx.conn, rows)
    results |= {repeat: results[first] for repeat, first in alike.items()}
    return [[results[each.message_id] for each in request.messages] for request in requests]


def _row(tx: Transaction, request: StorePending, each: Message) -> tuple[Any, ...]:
    kind, transaction_id = PendingKind.HALF, None
    if each.message_type is MessageType.TRANSACTION:
        due_at_ms = first_check_at_ms(request.policy, each.recovery_ms, tx.now_ms)
        transaction_id = transaction_id_of(request.topic.topic_id, id_to_bytes(each.message_id), os.urandom(8))
        tx.expect(CHECKS, due_at_ms)
    else:
        assert each.deliver_at_ms is not None
        kind, due_at_ms = PendingKind.DELAY, each.deliver_at_ms
        tx.expect(PENDING, due_at_ms)
    return (
        request.topic.topic_id,
        id_to_bytes(each.message_id),
        kind.value,
        due_at_ms,
        tx.now_ms,
        transaction_id,
        0,
        request.client_id,
        0,
        each.born_at_ms,
        *content(each),
    )


@carries_out_each(RecallPending)
def recall_pending(tx: Transaction, request: RecallPending) -> PopError | None:
    """Take delayed messages back, each by its handle. A refused request changes nothing."""
    message_id = id_to_bytes(request.message_id)
    rows = pending_messages.lock(tx.conn, request.topic.topic_id, [message_id]).get(message_id, [])
    delayed = [row for row in rows if row.kind != PendingKind.HALF]
    if rows and not delayed:
        return _not_delayed(request)
    if any(row.deliver_at_ms == request.deliver_at_ms for row in delayed):
        pending_messages.remove(tx.conn, (row.pending_id for row in delayed))
        return None
    entered = by_key.original(tx.conn, request.topic.topic_id, message_id)
    if entered is None:
        return MessageNotFound(
            f"topic '{request.topic.name}' has no delayed message '{request.message_id[:64]}' with the handle's time,"
            f" {apart(request.deliver_at_ms, tx.calendar_ms)}: it was recalled already, or never sent"
        )
    if entered.deliver_at_ms is None:
        return _not_delayed(request)
    return TooLate(
        f"message '{request.message_id[:64]}' was due {apart(entered.deliver_at_ms, tx.calendar_ms)} and entered its"
        f" queue {apart(entered.stored_at_ms, tx.now_ms)}; only a message that is not due yet can be recalled"
    )


def _not_delayed(request: RecallPending) -> PopError:
    return MessagePropertyConflictWithType(
        f"message '{request.message_id[:64]}' of topic '{request.topic.name}' is not a delayed message;"
        " only delayed messages can be recalled"
    )


@carries_out_each(CancelPending)
def cancel_pending(tx: Transaction, request: CancelPending) -> list[str]:
    """Remove pending messages, at most 1,000 per request. Returns the ids of those that were pending."""
    rows = pending_messages.lock(tx.conn, request.topic.topic_id, set(map(id_to_bytes, request.message_ids)))
    pending_messages.remove(tx.conn, (row.pending_id for several in rows.values() for row in several))
    return [each for each in dict.fromkeys(request.message_ids) if id_to_bytes(each) in rows]
