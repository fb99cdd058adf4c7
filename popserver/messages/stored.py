"""All changes of the table `message`: messages are appended, copied and removed. No other module writes it.

A message never changes, with three exceptions: a redrive repairs a message before others can see it, a newer retry
message replaces an older one, and a reset of the clock changes times. Other modules find messages: `messages.by_key` by
key and by id, `messages.parts` and `messages.ranges` in a part of a queue, and `messages.seek` by time.

A new message gets a key that no other transaction has, because its transaction has taken the offset from the queue's
row. The primary key finds the messages that are changed or removed. A transaction that removes messages has locked the
queue's row before (`lock_queue`), except for deleted topics, which get no message any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Insert,
    Subquery,
    bindparam,
    case,
    delete,
    insert,
    literal_column,
    null,
    select,
    update,
)

from popserver.catalog import progress, queue_offsets, topics
from popserver.catalog.queue_offsets import SentTo, TakeToSend
from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.rows import encode_column, encode_rows, rows_parameter
from popserver.database.schema import message
from popserver.engine.transaction import Phase, RepeatedId, Request, Transaction, carries_out, in_steps
from popserver.filters import tag_hash
from popserver.messages import pending_messages, repeats
from popserver.messages.keyed import KeyedMessages
from popserver.messages.lite_topics import NewLiteTopics
from popserver.messages.pending_messages import ANY_OF_IDS, ANY_OF_TOPIC
from popserver.messages.spread import by_queue
from popserver.model.errors import PopError
from popserver.model.message import WINDOW_MS, BodyEncoding, Message, SendResult, id_to_bytes
from popserver.model.states import CopyKind
from popserver.model.topic import OFFSET_BITS, MessageQueue, MessageType, Topic


@dataclass(frozen=True, slots=True)
class Append(Request[list[SendResult]]):
    """Messages of one topic, already checked. Their idempotency keys are stored for `key_window_ms`; 0 ignores them."""

    phase: ClassVar = Phase.APPEND
    topic: Topic
    messages: Sequence[Message]
    key_window_ms: int = WINDOW_MS


class _Placed(NamedTuple):
    """Messages of one queue, and the offsets and keys that they get, from the first ones on."""

    chosen: MessageQueue
    taken: SentTo
    first_offset: int
    first_key: int
    messages: Sequence[Message]


@carries_out(Append)
def append(tx: Transaction, requests: Sequence[Append]) -> list[list[SendResult] | PopError]:
    """Store the messages. The results are their queues and offsets, in order.

    A message with a repeated id or idempotency key gets the first one's result.
    """
    answers: dict[int, list[SendResult] | PopError] = {}
    order = sorted(range(len(requests)), key=lambda index: requests[index].topic.topic_id)
    for _, indexes in groupby(order, key=lambda index: requests[index].topic.topic_id):
        several = list(indexes)
        is_lite = MessageType.LITE in requests[several[0]].topic.accepts
        append_all = _append_to_lite_topics if is_lite else _append_to_topic
        answers |= zip(several, append_all(tx, [requests[index] for index in several]), strict=True)
    return [answers[index] for index in range(len(requests))]


def _append_to_lite_topics(tx: Transaction, requests: Sequence[Append]) -> list[list[SendResult] | PopError]:
    """Append to a bind topic: a request whose new lite topics are too many is refused."""
    lite_topics = NewLiteTopics(tx, requests[0].topic, [request.messages for request in requests])
    refusals = [lite_topics.refusal(request.messages) for request in requests]
    allowed = [request for request, refusal in zip(requests, refusals, strict=True) if refusal is None]
    done = iter(_append_to_topic(tx, allowed, lite_topics) if allowed else ())
    return [next(done) if refusal is None else refusal for refusal in refusals]


def _append_to_topic(
    tx: Transaction, requests: Sequence[Append], lite_topics: NewLiteTopics | None = None
) -> list[list[SendResult] | PopError]:
    topic = requests[0].topic
    if topic.closed_because is not None:
        closed = topics.topic_closed(topic.name, topic.closed_because)
        return repeats.answers(tx, topic, [request.messages for request in requests], closed)
    batch = [each for request in requests for each in request.messages]
    known = repeats.known(tx, topic, batch) if tx.careful else {}
    new = [each for each in batch if each.message_id not in known] if known else batch
    new, alike = repeats.firsts(new) if tx.careful else (new, {})
    chosen = by_queue(tx, topic, new)
    placed = _take_offsets(tx, topic, chosen) if chosen else []
    if len(placed) < len(chosen):
        # All queues are closed and opened together, so none is taken if one is not.
        refusal = topics.refusal_of_sends(tx.conn, topic) or topics.topic_closed(
            topic.name, "it is being opened; send again"
        )
        return repeats.answers(tx, topic, [request.messages for request in requests], refusal)
    if any(each.properties for each in new):
        repeats.claim(tx, topic, new, requests[0].key_window_ms)
    has_pending = any(each.taken.has_pending for each in placed)
    if has_pending and not tx.careful and repeats.pending(tx.conn, topic, [each.message_id for each in new]):
        raise RepeatedId
    if placed:
        _store(tx, topic, placed, lite_topics)
    for run in placed:
        number = run.chosen.number
        for offset, each in enumerate(run.messages, start=run.first_offset):
            known[each.message_id] = SendResult(each.message_id, number, offset, "", each.deliver_at_ms)
    if alike:
        known |= {repeat: known[first] for repeat, first in alike.items()}
    return [[known[each.message_id] for each in request.messages] for request in requests]


def _store(tx: Transaction, topic: Topic, placed: Sequence[_Placed], lite_topics: NewLiteTopics | None) -> None:
    """Insert the messages with their keys, and wake receives that may get them."""
    rows = [_rows(each.taken.stored_at_ms, topic, each.first_key, each.messages) for each in placed]
    dialect_of(tx.conn).insert(tx.conn, message, rows[0] if len(rows) == 1 else list(chain.from_iterable(rows)))
    tx.has_written = True
    for run in placed:
        if any(each.keys for each in run.messages):
            _store_keys(tx, run.first_key, run.messages)
    if lite_topics is None:
        tx.ready_topics.add(topic.topic_id)
    else:
        _store_lite_topics(tx, topic, lite_topics, placed)


def _store_keys(tx: Transaction, first_key: int, batch: Sequence[Message]) -> None:
    keyed = tx.at_end(KeyedMessages)
    for key, each in enumerate(batch, start=first_key):
        keyed.add(key, each.keys)


def _store_lite_topics(tx: Transaction, topic: Topic, lite_topics: NewLiteTopics, placed: Sequence[_Placed]) -> None:
    first_keys: dict[str, int] = {}
    for run in placed:
        for key, each in enumerate(run.messages, start=run.first_key):
            if each.message_group is not None:
                first_keys.setdefault(each.message_group, key)
    lite_topics.store(first_keys, {each.chosen.queue_id: each.taken.lite_expired_offset for each in placed})
    tx.make_ready(topic.topic_id, first_keys)


def _take_offsets(tx: Transaction, topic: Topic, chosen: Mapping[MessageQueue, Sequence[Message]]) -> list[_Placed]:
    """Take offsets for the messages, with one statement for all queues. The result is empty if the topic is deleted.

    The statement also returns whether messages are pending: on Postgres any of these messages, on SQLite any message of
    the topic.
    """
    names: dict[str, Any] = {}
    if tx.has_other_writers:
        names["ids"] = [id_to_bytes(each.message_id) for messages in chosen.values() for each in messages]
    counts = {queue.queue_id: len(messages) for queue, messages in chosen.items()}
    by_id = {queue.queue_id: (queue, messages) for queue, messages in chosen.items()}
    placed: list[_Placed] = []
    for row in _TAKE.rows(tx, topic.topic_id, counts, names):
        queue, messages = by_id[row.queue_id]
        first_offset = row.next_offset - len(messages)
        placed.append(_Placed(queue, row, first_offset, row.queue_id << OFFSET_BITS | first_offset, messages))
    return placed


def _rows(stored_at_ms: int, topic: Topic, first_key: int, batch: Sequence[Message]) -> list[tuple[Any, ...]]:
    return [
        (
            key,
            topic.topic_id,
            id_to_bytes(each.message_id),
            stored_at_ms,
            each.born_at_ms,
            0 if each.tag is None else tag_hash(each.tag),
            *content(each),
        )
        for key, each in enumerate(batch, start=first_key)
    ]


def content(each: Message) -> tuple[Any, ...]:
    """The columns from `tag` on, which are the same in `message` and `pending`."""
    return (
        each.tag,
        f"[{', '.join(map(_quoted, each.keys))}]" if each.keys else None,
        _as_object(each.properties) if each.properties else None,
        each.message_group,
        each.priority,
        each.message_type._value_,
        each.body_encoding._value_,
        each.born_host,
        each.trace_context,
        each.deliver_at_ms,
        each.body,
    )


# The C function for texts inside json's encoder: an encoder costs several times as much for a short text.
_quoted: Callable[[str], str] = json.encoder.encode_basestring


def _as_object(properties: Mapping[str, str]) -> str:
    return f"{{{', '.join([f'{_quoted(name)}: {_quoted(value)}' for name, value in properties.items()])}}}"


_TAKE = TakeToSend(ANY_OF_TOPIC, ANY_OF_IDS)


def lock_queue(tx: Transaction, queue_id: int) -> Sequence[int] | None:
    """Lock the queue and the progress of its groups. Returns the groups, or None if another server has locked one.

    It never waits, so it may come last in a transaction. If it returns None, the caller tries again in a minute.
    """
    if not queue_offsets.lock_available(tx.conn, [queue_id]):
        return None
    return progress.lock_of_queue(tx.conn, queue_id)


# Other new messages, and changes of stored ones.


def add(tx: Transaction, topic: Topic, stored_at_ms: int, first_key: int, batch: Sequence[Message]) -> None:
    """Store originals in one queue of a topic of the server's own, whose offsets the caller has taken."""
    dialect_of(tx.conn).insert(tx.conn, message, _rows(stored_at_ms, topic, first_key, batch))
    tx.has_written = True
    _store_keys(tx, first_key, batch)


def enqueue(tx: Transaction, placed: Sequence[tuple[int, int, int, int]]) -> None:
    """Store pending messages: (pending id, message key, stored-at time, tag hash) of each. Their bodies stay in the
    database."""
    tx.conn.execute(_ENQUEUE.of(tx.conn), {"entering": encode_rows(placed)})


def copy_to_retry_topic(
    tx: Transaction, topic_id: int, stored_at_ms: int, copies: Sequence[tuple[int, int, str | None]]
) -> None:
    """Copy messages: (key, key of the copy, properties of the copy). All other columns are those of the message."""
    tx.conn.execute(_RETRY, _copies(topic_id, stored_at_ms, copies))


def copy_to_dead_letter_topic(
    tx: Transaction, topic_id: int, stored_at_ms: int, copies: Sequence[tuple[int, int, int, str | None]]
) -> None:
    """The same: (key, key of the copy, 1 for these properties or 0 for those of the message, properties)."""
    tx.conn.execute(_DEAD_LETTER, _copies(topic_id, stored_at_ms, copies))


def copy_redriven(
    tx: Transaction, topic_id: int, stored_at_ms: int, copies: Sequence[tuple[int | str | None, ...]], *, anew: bool
) -> None:
    """The same: (key, key of the copy, tag hash, tag, keys, properties). `anew`: as an ordinary message of another
    topic, which `make_original` turns into an original. If two plans redrive a dead letter, both copies have one id."""
    tx.conn.execute(_REDRIVEN_ANEW if anew else _REDRIVEN, _copies(topic_id, stored_at_ms, copies))


def set_bodies(tx: Transaction, bodies: Iterable[tuple[int, bytes]]) -> None:
    """Set other bodies, which are not packed, for messages that this transaction has stored."""
    plain = BodyEncoding.IDENTITY.value
    rows = [{"of_key": key, "new_body": body, "plain": plain} for key, body in bodies]
    if rows:
        tx.conn.execute(_SET_BODY, rows)


def make_original(tx: Transaction, ids: Iterable[tuple[int, bytes]]) -> None:
    """Turn copies that this transaction has stored into originals with these message ids."""
    tx.conn.execute(_MAKE_ORIGINAL, [{"of_key": key, "new_id": new_id} for key, new_id in ids])


def lock(tx: Transaction, keys: Collection[int]) -> None:
    """Lock messages in one order: other transactions that lock or remove them wait."""
    for step in in_steps(sorted(keys)) if tx.has_other_writers else ():
        tx.conn.execute(_LOCK, {"these": encode_column(step)})


def replace_retries(tx: Transaction, keys: Collection[int]) -> None:
    """Mark retry messages as replaced: their parents get new ones now, and a parent has at most one."""
    tx.conn.execute(_REPLACE, {"these": encode_column(keys)})


def remove(tx: Transaction, keys: Collection[int]) -> None:
    tx.conn.execute(_REMOVE, {"these": encode_column(keys)})


def remove_range(tx: Transaction, first: int, end: int) -> int:
    """Remove the messages with first <= key < end; returns how many."""
    return tx.conn.execute(_REMOVE_RANGE, {"first": first, "end": end}).rowcount


def set_stored_at(conn: Connection, keys: Collection[int], stored_at_ms: int) -> int:
    """Set when these messages were stored, because the server time was wrong. Returns how many there are."""
    return conn.execute(_SET_STORED_AT, {"these": encode_column(keys), "now_ms": stored_at_ms}).rowcount


def _copies(topic_id: int, stored_at_ms: int, copies: Sequence[Sequence[int | str | None]]) -> dict[str, Any]:
    return {"copies": encode_rows(copies), "in_topic": topic_id, "copy_stored_at_ms": stored_at_ms}


def _copying(kind: CopyKind, copies: Subquery, **becomes: ColumnElement[Any]) -> Insert:
    """A statement that copies the messages of `copies`. A copy has the columns of its message, except the key, the
    topic, the time, the lineage, and the columns in `becomes`."""
    changed = {
        "message_key": copies.c.copy_key,
        "topic_id": bindparam("in_topic", type_=message.c.topic_id.type),
        "copy_of": copies.c.source_key,
        "copy_kind": literal_column(f"'{kind}'"),
        "stored_at_ms": bindparam("copy_stored_at_ms", type_=message.c.stored_at_ms.type),
        **becomes,
    }
    return insert(message).from_select(
        [column.name for column in message.columns],
        select(*(changed.get(column.name, column) for column in message.columns))
        .select_from(copies)
        .join(message, message.c.message_key == copies.c.source_key),
    )


def _enqueue(dialect: Dialect) -> Executable:
    becomes: dict[str, ColumnElement[Any]] = {
        "message_key": _ENTERING.c.message_key,
        "copy_of": null(),
        "copy_kind": null(),
        "stored_at_ms": _ENTERING.c.stored_at_ms,
        "tag_hash": _ENTERING.c.tag_hash,
    }
    names = [column.name for column in message.columns]
    stored = pending_messages.as_messages(dialect, _ENTERING, names, becomes)
    return insert(message).from_select(names, stored.order_by(_ENTERING.c.message_key))


_ENTERING = rows_parameter("entering", "pending_id", "message_key", "stored_at_ms", "tag_hash")
_ENQUEUE = PerDialect(_enqueue)
_retries = rows_parameter("copies", "source_key", "copy_key", text=("properties",))
_RETRY = _copying(CopyKind.RETRY, _retries, properties=_retries.c.properties)
_dead = rows_parameter("copies", "source_key", "copy_key", "is_retry", text=("properties",))
_DEAD_LETTER = _copying(
    CopyKind.DEAD_LETTER,
    _dead,
    properties=case((_dead.c.is_retry == literal_column("1"), _dead.c.properties), else_=message.c.properties),
)
_redriven = rows_parameter("copies", "source_key", "copy_key", "tag_hash", text=("tag", "keys", "properties"))
_repaired = {name: _redriven.c[name] for name in ("tag_hash", "tag", "keys", "properties")}
_REDRIVEN = _copying(CopyKind.REDRIVEN, _redriven, **_repaired)
_REDRIVEN_ANEW = _copying(
    CopyKind.REDRIVEN,
    _redriven,
    **_repaired,
    message_group=null(),
    priority=null(),
    deliver_at_ms=null(),
    message_type=literal_column(f"'{MessageType.NORMAL}'"),
)
_OF_KEY = update(message).where(message.c.message_key == bindparam("of_key"))
_SET_BODY = _OF_KEY.values(body=bindparam("new_body"), body_encoding=bindparam("plain"))
_MAKE_ORIGINAL = _OF_KEY.values(message_id=bindparam("new_id"), copy_of=null(), copy_kind=null())
# Not "keys": for an UPDATE that would be the column.
_NAMED = rows_parameter("these", "message_key")
_IS_NAMED = message.c.message_key.in_(select(_NAMED.c.message_key))
_LOCK = select(message.c.message_key).where(_IS_NAMED).order_by(message.c.message_key).with_for_update(key_share=True)
_REPLACE = update(message).where(_IS_NAMED).values(copy_kind=CopyKind.REPLACED_RETRY.value)
_REMOVE = delete(message).where(_IS_NAMED)
_REMOVE_RANGE = delete(message).where(
    message.c.message_key >= bindparam("first"), message.c.message_key < bindparam("end")
)
_SET_STORED_AT = update(message).where(_IS_NAMED).values(stored_at_ms=bindparam("now_ms"))
