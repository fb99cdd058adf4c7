"""Messages: appending them to their queues, and reading them back as they were."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, case, exists, func, select, update

from popserver.domain.errors import PopError, TopicNotFound
from popserver.domain.filtering import tag_hash
from popserver.domain.idempotency import WINDOW_MS
from popserver.domain.message import (
    BodyEncoding,
    Message,
    MessageType,
    SendResult,
    StoredMessage,
    id_from_bytes,
    id_to_bytes,
)
from popserver.domain.redrive import REDRIVE_PLAN
from popserver.domain.topic import MessageQueue, Topic, message_key, offset_of, queue_for, queue_of
from popserver.store import idempotency, redriven, repeats
from popserver.store.given import encode_rows, rows_parameter
from popserver.store.inserting import insert_rows
from popserver.store.message_look import MessageRow
from popserver.store.redriven import Redriven
from popserver.store.schema import KEY_SHIFT, dead_letter, message, pending, queue
from popserver.store.schema import topic as topic_table
from popserver.store.transaction import Phase, RepeatedId, Request, Transaction, carries_out


@dataclass(frozen=True, slots=True)
class Append(Request[list[SendResult]]):
    """Messages of one topic, all legal. `rotation` chooses the queue of those that are free to go to any: one per topic
    and transaction. Their idempotency keys hold for `key_window_ms`; 0 heeds none."""

    phase: ClassVar = Phase.APPEND
    topic: Topic
    messages: Sequence[Message]
    rotation: int
    key_window_ms: int = WINDOW_MS


class Offsets(NamedTuple):
    """Offsets of a queue that were taken, from `first` on, and the time of storing of what goes there."""

    first: int
    stored_at_ms: int


@carries_out(Append)
def append(tx: Transaction, requests: Sequence[Append]) -> list[list[SendResult] | PopError]:
    """Store the messages; each result is its message's place. A repeated message id gets the first one's, and so does
    a repeated idempotency key."""
    answers: dict[int, list[SendResult] | PopError] = {}
    order = sorted(range(len(requests)), key=lambda index: requests[index].topic.topic_id)
    for _, indexes in groupby(order, key=lambda index: requests[index].topic.topic_id):
        several = list(indexes)
        answers |= zip(several, _append_to_topic(tx, [requests[index] for index in several]), strict=True)
    return [answers[index] for index in range(len(requests))]


def stored_message(row: MessageRow, topic: Topic, number_of: dict[int, int]) -> StoredMessage:
    """A row as the message it was; `number_of` maps queue ids to the wire's queue ids."""
    (
        key,
        _origin_key,
        message_id,
        stored_at_ms,
        born_at_ms,
        tag,
        keys,
        properties,
        message_group,
        priority,
        message_type,
        body_encoding,
        born_host,
        trace_context,
        digest,
        deliver_at_ms,
        body,
    ) = row
    sent = Message(
        topic.name,
        id_from_bytes(message_id),
        body,
        tag,
        tuple(_from_json(keys, 0)[0]) if keys else (),
        _from_json(properties, 0)[0] if properties else {},
        _TYPES[message_type],
        message_group,
        _ENCODINGS[body_encoding],
        born_at_ms,
        born_host,
        trace_context,
        deliver_at_ms,
        priority,
    )
    return StoredMessage(sent, key, number_of[queue_of(key)], offset_of(key), stored_at_ms, digest)


def stored_messages(conn: Connection, rows: Iterable[MessageRow], topic: Topic) -> list[StoredMessage]:
    """Rows as messages, dead copies with the message they are of."""
    listed = list(rows)
    number_of = repeats.queue_numbers(conn, topic, {queue_of(row.message_key) for row in listed})
    elsewhere = [row.message_key for row in listed if queue_of(row.message_key) not in number_of]
    if elsewhere:
        return _with_redriven(listed, topic, number_of, redriven.of_places(conn, elsewhere))
    found = [stored_message(row, topic, number_of) for row in listed]
    copies = [row.message_key for row in listed if row.origin_key]
    if not copies:
        return found
    names = {
        row.copy_key: row.name for row in conn.execute(_ORIGINS, {"copies": encode_rows((key,) for key in copies)})
    }
    return [
        each._replace(dead_letter_of=(names[each.message_key], each.message.message_id))
        if each.message_key in names
        else each
        for each in found
    ]


def _with_redriven(
    rows: Sequence[MessageRow], topic: Topic, number_of: dict[int, int], places: dict[int, Redriven]
) -> list[StoredMessage]:
    """The same where some have come back to their group, and stand elsewhere: as messages of their first places.

    Such a one names the dead letter that it was, and the plan by which it came back.
    """
    return [
        _as_redriven(row, topic, number_of, places[row.message_key])
        if row.message_key in places
        else stored_message(row, topic, number_of)
        for row in rows
    ]


def _as_redriven(row: MessageRow, topic: Topic, number_of: dict[int, int], now: Redriven) -> StoredMessage:
    found = stored_message(row._replace(message_key=now.origin_key), topic, number_of)
    properties = {**found.message.properties, REDRIVE_PLAN: now.plan_id}
    return found._replace(
        message=found.message._replace(properties=properties),
        message_key=row.message_key,
        dead_letter_of=(topic.name.name, found.message.message_id),
    )


def newest_stored_at_ms(conn: Connection) -> int:
    """The latest time of storing; 0 for an empty store. A server's clock never starts behind it."""
    newest: int | None = conn.execute(_NEWEST).scalar()
    return newest or 0


def _append_to_topic(tx: Transaction, requests: Sequence[Append]) -> list[list[SendResult] | PopError]:
    topic = requests[0].topic
    batch = [each for request in requests for each in request.messages]
    known = idempotency.known(tx, topic, batch) if tx.careful else {}
    new = [each for each in batch if each.message_id not in known] if known else batch
    new, alike = idempotency.firsts(new) if tx.careful else (new, {})
    idempotency.claim(tx, topic, new, requests[0].key_window_ms)
    for chosen, several in _by_queue(topic, new, requests[0].rotation):
        taken, has_pending = _take_offsets_looking(tx, topic, chosen, len(several))
        if has_pending and not tx.careful and repeats.known_pending(tx.conn, topic, several):
            raise RepeatedId
        if taken is None:
            gone = TopicNotFound(
                f"topic '{topic.name}' was deleted; create it with: popmq topic create {topic.name.name}"
            )
            return [gone] * len(requests)
        first_key = message_key(chosen.queue_id, taken.first)
        insert_rows(tx.conn, message, _rows(taken.stored_at_ms, topic, first_key, several))
        tx.ring(topic.topic_id)
        places = enumerate(several, start=taken.first)
        known |= {
            each.message_id: SendResult(each.message_id, chosen.number, offset, "", each.deliver_at_ms)
            for offset, each in places
        }
    known |= {repeat: known[first] for repeat, first in alike.items()}
    return [[known[each.message_id] for each in request.messages] for request in requests]


def _by_queue(topic: Topic, batch: Sequence[Message], rotation: int) -> Iterator[tuple[MessageQueue, list[Message]]]:
    """The messages by the queue they go to, in the queues' one order: two servers must not wait in a circle."""
    by_queue: dict[MessageQueue, list[Message]] = {}
    for each in batch:
        by_queue.setdefault(queue_for(topic, each.message_group, each.priority, rotation), []).append(each)
    yield from sorted(by_queue.items())


def take_offsets(tx: Transaction, chosen: MessageQueue, count: int) -> Offsets | None:
    """`count` offsets, taken in one statement; None when the queue is gone."""
    names = {"chosen": chosen.queue_id, "count": count, "now_ms": tx.now_ms}
    row = tx.conn.execute(_TAKE_OFFSETS, names).first()
    return None if row is None else Offsets(row.next_offset - count, row.newest_stored_at_ms)


def _take_offsets_looking(
    tx: Transaction, topic: Topic, chosen: MessageQueue, count: int
) -> tuple[Offsets | None, bool]:
    """Likewise; and whether anything of the topic is pending, for which there is then no statement of its own."""
    wish = {"chosen": chosen.queue_id, "count": count, "now_ms": tx.now_ms, "of_topic": topic.topic_id}
    row = tx.conn.execute(_TAKE_OFFSETS_LOOKING, wish).first()
    if row is None:
        return None, False
    return Offsets(row.next_offset - count, row.newest_stored_at_ms), bool(row.has_pending)


def _rows(stored_at_ms: int, topic: Topic, first_key: int, batch: Sequence[Message]) -> list[tuple[Any, ...]]:
    return [
        (
            key,
            topic.topic_id,
            0,
            id_to_bytes(each.message_id),
            stored_at_ms,
            each.born_at_ms,
            tag_hash(each.tag),
            *content(each),
        )
        for key, each in enumerate(batch, start=first_key)
    ]


def content(each: Message) -> tuple[Any, ...]:
    """The columns from `tag` on, alike in `message` and `pending`."""
    return (
        each.tag,
        _as_json(each.keys) if each.keys else None,
        _as_json(dict(each.properties)) if each.properties else None,
        each.message_group,
        each.priority,
        each.message_type.value,
        each.body_encoding.value,
        each.born_host,
        each.trace_context,
        hashlib.md5(each.body, usedforsecurity=False).digest(),
        each.deliver_at_ms,
        each.body,
    )


# Made once: json.dumps makes an encoder per call as soon as one of its options is used.
_as_json = json.JSONEncoder(ensure_ascii=False).encode
# What json.loads ends in, without its looking for an encoding and for blanks: these texts are our own.
_from_json: Callable[[str, int], tuple[Any, int]] = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]
_TYPES = {kind.value: kind for kind in MessageType}
_ENCODINGS = {encoding.value: encoding for encoding in BodyEncoding}
_NOW = bindparam("now_ms", type_=BigInteger)
# When that is stored which takes offsets of a queue: now, but not before what is there already. Servers take their
# moments before they have the queue, and only the row that they have then knows who was sooner.
STORED_AT_MS = case((queue.c.newest_stored_at_ms > _NOW, queue.c.newest_stored_at_ms), else_=_NOW)
_TAKE_OFFSETS = (
    update(queue)
    .where(queue.c.queue_id == bindparam("chosen"))
    .values(next_offset=queue.c.next_offset + bindparam("count"), newest_stored_at_ms=STORED_AT_MS)
    .returning(queue.c.next_offset, queue.c.newest_stored_at_ms)
)
# Not of a topic that was deleted: another server may not have heard of it yet, and would store what is never read.
_TAKE_OFFSETS_LOOKING = _TAKE_OFFSETS.where(
    exists().where(topic_table.c.topic_id == bindparam("of_topic"), topic_table.c.deleted_at_ms.is_(None))
).returning(exists().where(pending.c.topic_id == bindparam("of_topic")).label("has_pending"))
_NEWEST = (
    select(func.max(message.c.stored_at_ms))
    .select_from(queue)
    .join(message, message.c.message_key == queue.c.queue_id.op("<<")(KEY_SHIFT).op("|")(queue.c.next_offset - 1))
    .where(queue.c.next_offset > 0)
)
_COPIES = rows_parameter("copies", "copy_key")
_ORIGINS = (
    select(dead_letter.c.copy_key, topic_table.c.name)
    .join(topic_table, topic_table.c.topic_id == dead_letter.c.origin_topic_id)
    .where(dead_letter.c.copy_key.in_(select(_COPIES.c.copy_key)))
)
