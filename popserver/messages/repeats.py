"""Repeated messages: one whose id, or idempotency key, is stored already gets the first one's result (protocol 1.5).

A key belongs to the first message that has it, during the key's window. It is claimed in the transaction that stores
that message. A repeated key causes a conflict, like a repeated message id, and is read only then. All claims of a
transaction are written at its end and in one order, so that servers do not deadlock.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, select, tuple_
from sqlalchemy.exc import IntegrityError

from popserver.database.dialect import dialect_of
from popserver.database.rows import encode_column, rows_parameter
from popserver.database.schema import idempotency
from popserver.engine.transaction import (
    STEP_ROWS_MAX,
    FinishOrder,
    Phase,
    RepeatedId,
    Request,
    Transaction,
    carries_out,
    in_steps,
)
from popserver.engine.upkeep import remove_step
from popserver.messages import by_key, pending_messages
from popserver.model.errors import PopError, TopicClosed
from popserver.model.handles import transaction_id_of
from popserver.model.message import PROPERTY, Message, SendResult, id_from_bytes, id_to_bytes
from popserver.model.topic import MessageType, Topic, offset_of, queue_of

_COMMITTED = bytes(8)  # in place of the random bytes, because a committed transaction's id is no longer stored


class Claim(NamedTuple):
    """The message that claims an idempotency key, and when the key's window ends."""

    message_id: bytes
    expires_at_ms: int


class Expired(NamedTuple):
    """The number of removed rows, and when the next window ends (None: there are no keys)."""

    removed: int
    next_ms: int | None


@dataclass(frozen=True, slots=True)
class Expire(Request[Expired]):
    """Remove keys whose window has ended, at most `STEP_ROWS_MAX`."""

    phase: ClassVar = Phase.EXPIRE_KEYS


class Enqueued(NamedTuple):
    """A pending message that a user's own transaction has enqueued."""

    pending_id: int
    topic_id: int
    message_id: bytes


def known(tx: Transaction, topic: Topic, batch: Sequence[Message]) -> dict[str, SendResult]:
    """The first results of the messages whose ids or idempotency keys are stored, by their own ids."""
    # A half message that is committed already needs a transaction id too; any id can commit it again.
    half_ids = {each.message_id for each in batch if each.message_type is MessageType.TRANSACTION}
    results = _of_ids(tx.conn, topic, [each.message_id for each in batch], half_ids)
    keyed = [(each, key) for each in batch if each.message_id not in results and (key := key_of(each)) is not None]
    if not keyed:
        return results
    halves = {key for each, key in keyed if each.message_type is MessageType.TRANSACTION}
    firsts = _firsts(tx, topic, {key for _, key in keyed}, halves)
    return results | {each.message_id: firsts[key] for each, key in keyed if key in firsts}


def answers(
    tx: Transaction, topic: Topic, batches: Sequence[Sequence[Message]], refusal: PopError
) -> list[list[SendResult] | PopError]:
    """The answers of a topic that takes no messages.

    A closed one answers a repeated send as the first one, because its producer would send the message elsewhere too.
    """
    if not isinstance(refusal, TopicClosed):
        return [refusal] * len(batches)
    results = known(tx, topic, [each for batch in batches for each in batch])
    return [
        [results[each.message_id] for each in batch] if all(each.message_id in results for each in batch) else refusal
        for batch in batches
    ]


def pending(conn: Connection, topic: Topic, ids: Sequence[str]) -> dict[str, SendResult]:
    """The first results of the messages with these ids that are pending."""
    rows = pending_messages.named(conn, topic.topic_id, [id_to_bytes(each) for each in ids])
    found = ((id_from_bytes(row.message_id), row) for row in rows)
    return {known: SendResult(known, None, 0, row.transaction_id or "", row.deliver_at_ms) for known, row in found}


def firsts(batch: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
    """The messages without repetitions of an id or a key; and for each repeated id, the id whose result it gets."""
    first_of: dict[tuple[str, str], Message] = {}
    alike: dict[str, str] = {}
    found = []
    for each in batch:
        names = [("id", each.message_id)] + [("key", key) for key in [key_of(each)] if key is not None]
        first = next((first_of[name] for name in names if name in first_of), None)
        if first is None:
            found.append(each)
            first_of |= dict.fromkeys(names, each)
        elif first.message_id != each.message_id:
            alike[each.message_id] = first.message_id
    return found, alike


def claim(tx: Transaction, topic: Topic, stored: Iterable[Message], window_ms: int) -> None:
    """Claim the keys of messages that are stored now. Raises `RepeatedId` for a repetition in this transaction."""
    for each in stored:
        # In this order, because many messages have no properties, and most have no key.
        if each.properties and (key := key_of(each)) is not None and window_ms:
            name = topic.topic_id, key
            claims = tx.at_end(KeyClaims).claims
            if name in claims:
                raise RepeatedId
            claims[name] = Claim(id_to_bytes(each.message_id), tx.now_ms + window_ms)


def enter(tx: Transaction, topics: Mapping[int, Topic], enqueued: Sequence[Enqueued], window_ms: int) -> set[int]:
    """Claim the keys of pending messages that users' own transactions have enqueued: these cannot wait for claims.

    Returns the pending ids of the messages whose keys belong to other messages.
    """
    properties = pending_messages.properties_of(tx.conn, (row.pending_id for row in enqueued))
    keys = {pending_id: json.loads(each)[PROPERTY] for pending_id, each in properties.items() if PROPERTY in each}
    repeated: set[int] = set()
    claims = tx.at_end(KeyClaims).claims
    for topic_id, several in groupby(sorted(enqueued, key=lambda row: row.topic_id), key=lambda row: row.topic_id):
        keyed = [row for row in several if row.pending_id in keys]
        firsts = _firsts(tx, topics[topic_id], {keys[row.pending_id] for row in keyed}, set()) if keyed else {}
        for row in keyed:
            key, message_id = keys[row.pending_id], row.message_id
            claimed = id_to_bytes(firsts[key].message_id) if key in firsts else None
            if (claimed or message_id) != message_id or (topic_id, key) in claims:
                repeated.add(row.pending_id)
            elif claimed is None and window_ms:
                claims[topic_id, key] = Claim(message_id, tx.now_ms + window_ms)
    return repeated


class KeyClaims:
    """The claims of a transaction, by topic and key. `stale`: the message ids of old claims, to be removed first."""

    order: ClassVar = FinishOrder.IDEMPOTENCY_KEYS

    def __init__(self) -> None:
        self.claims: dict[tuple[int, str], Claim] = {}
        self.stale: dict[tuple[int, str], bytes] = {}

    def finish(self, tx: Transaction) -> None:
        """Write the claims. Raises `RepeatedId` if another transaction has claimed a key first."""
        if not self.claims:
            return
        for topic_id, several in groupby(sorted(self.stale), key=lambda name: name[0]):
            keys = [key for _, key in several]
            stale = {
                "of_topic": topic_id,
                "keys": encode_column(keys),
                "ids": [self.stale[topic_id, key] for key in keys],
            }
            tx.conn.execute(_REMOVE_STALE, stale)
        rows = [(topic_id, key, *claimed) for (topic_id, key), claimed in sorted(self.claims.items())]
        try:
            dialect_of(tx.conn).insert(tx.conn, idempotency, rows)
        except IntegrityError as error:
            raise RepeatedId from error


@carries_out(Expire)
def expire(tx: Transaction, requests: Sequence[Expire]) -> list[Expired | PopError]:
    """Remove keys whose window has ended. Several requests need only one step."""
    removed = tx.conn.execute(_EXPIRE, {"now_ms": tx.aged_ms, "limit": STEP_ROWS_MAX}).rowcount
    next_ms: int | None = tx.conn.execute(_NEXT).scalar()
    return [Expired(removed, next_ms)] * len(requests)


def forget_topic(conn: Connection, topic_id: int) -> int:
    """Remove a step of the keys of a deleted topic; returns how many."""
    return remove_step(conn, idempotency.c.idempotency_key, idempotency.c.topic_id == topic_id)


def key_of(each: Message) -> str | None:
    return each.properties.get(PROPERTY)


def _firsts(tx: Transaction, topic: Topic, keys: Collection[str], halves: Collection[str]) -> dict[str, SendResult]:
    """The results of the messages that have claimed the keys. Those in `halves` always have a transaction id."""
    claimed = _claimed(tx, topic, sorted(keys))
    ids = sorted(set(claimed.values()))
    results = _of_ids(tx.conn, topic, ids, {claimed[key] for key in halves if key in claimed})
    for key, first in claimed.items():
        if first not in results:
            # The message was recalled or rolled back before it was delivered, so its key is free again.
            tx.at_end(KeyClaims).stale[topic.topic_id, key] = id_to_bytes(first)
    return {key: results[first] for key, first in claimed.items() if first in results}


def _of_ids(conn: Connection, topic: Topic, ids: Sequence[str], halves: Collection[str]) -> dict[str, SendResult]:
    """The first results of the messages with these ids. Those in `halves` always have a transaction id."""
    found = pending(conn, topic, ids)
    rows = by_key.originals(conn, topic.topic_id, [id_to_bytes(each) for each in ids])
    number_of = by_key.queue_numbers(conn, topic, {queue_of(row.message_key) for row in rows})
    for row in rows:
        known, number = id_from_bytes(row.message_id), number_of[queue_of(row.message_key)]
        transaction_id = transaction_id_of(topic.topic_id, row.message_id, _COMMITTED) if known in halves else ""
        found[known] = SendResult(known, number, offset_of(row.message_key), transaction_id, row.deliver_at_ms)
    return found


def _claimed(tx: Transaction, topic: Topic, keys: Sequence[str]) -> dict[str, str]:
    """The message ids that have claimed the keys. Rows whose window has ended become `stale`."""
    found: dict[str, str] = {}
    ours = tx.at_end(KeyClaims)
    for step in in_steps(keys):
        for row in tx.conn.execute(_CLAIMED, {"of_topic": topic.topic_id, "keys": encode_column(step)}):
            if row.expires_at_ms > tx.aged_ms:
                found[row.idempotency_key] = id_from_bytes(bytes(row.message_id))
            else:
                ours.stale[topic.topic_id, row.idempotency_key] = bytes(row.message_id)
    for key in keys:
        if (topic.topic_id, key) in ours.claims:
            found[key] = id_from_bytes(ours.claims[topic.topic_id, key].message_id)
    return found


_KEYS = rows_parameter("keys", text=("idempotency_key",))
_OF_KEYS = (
    idempotency.c.topic_id == bindparam("of_topic"),
    idempotency.c.idempotency_key.in_(select(_KEYS.c.idempotency_key)),
)
_CLAIMED = select(idempotency.c.idempotency_key, idempotency.c.message_id, idempotency.c.expires_at_ms).where(*_OF_KEYS)
_REMOVE_STALE = delete(idempotency).where(*_OF_KEYS, idempotency.c.message_id.in_(bindparam("ids", expanding=True)))
_over = (
    select(idempotency.c.topic_id, idempotency.c.idempotency_key)
    .where(idempotency.c.expires_at_ms <= bindparam("now_ms"))
    .order_by(idempotency.c.expires_at_ms)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
_EXPIRE = delete(idempotency).where(tuple_(idempotency.c.topic_id, idempotency.c.idempotency_key).in_(_over))
_NEXT = select(func.min(idempotency.c.expires_at_ms))
