"""Messages by key and by id: whole, without their bodies, or only the sizes of the bodies; and rows as messages.

The primary key finds messages by key. The index `message_id_once` finds them by id, and originals by topic and id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, LargeBinary, Select, bindparam, case, func, literal, select

from popserver.catalog import topics
from popserver.catalog.queues import queue_rows, queues_by_id
from popserver.database.rows import Row, RowQuery, RowStatement, encode_column, rows_parameter
from popserver.database.schema import IS_ORIGINAL, IS_RETRY, message
from popserver.engine.transaction import in_steps
from popserver.messages import dead_letters, redrives
from popserver.messages.redrives import RedriveOrigin
from popserver.model.message import REDRIVE_PLAN, BodyEncoding, Message, StoredMessage
from popserver.model.names import DEAD_LETTER_PREFIX
from popserver.model.topic import OFFSET_BITS, MessageType, Topic


class MessageSize(NamedTuple):
    """The size of a message's body, in bytes."""

    message_key: int
    size: int


class MessageRow(NamedTuple):
    """One row of the table `message`; `keys` and `properties` are JSON texts."""

    message_key: int
    message_id: bytes
    stored_at_ms: int
    born_at_ms: int
    tag: str | None
    keys: str | None
    properties: str | None
    message_group: str | None
    priority: int | None
    message_type: str
    body_encoding: str
    born_host: str
    trace_context: str | None
    deliver_at_ms: int | None
    body: bytes


class Bodies(Enum):
    """Which bodies a query fetches."""

    ALL = "all"
    SMALL = "small"  # larger bodies are `DEFERRED`
    NONE = "none"  # all bodies are empty


class _DeferredBody(bytes):
    """In place of a body that was not fetched."""


DEFERRED = _DeferredBody()
# A body up to this size costs little compared with the rest of its message.
SMALL_BODY_BYTES = 16 * 1024
_COLUMNS = tuple(message.c[name] for name in MessageRow._fields)
_BODIES: dict[Bodies, ColumnElement[Any]] = {
    Bodies.ALL: message.c.body,
    Bodies.SMALL: case((func.length(message.c.body) <= SMALL_BODY_BYTES, message.c.body)).label("body"),
    Bodies.NONE: literal(b"", LargeBinary).label("body"),
}


# A function that adds conditions, order and limit to a query for messages.
Narrowing = Callable[[Select[Any]], Select[Any]]


class MessageQuery:
    """A query for messages: `narrow` adds conditions, order and limit to a select of the columns of `MessageRow`."""

    def __init__(self, narrow: Narrowing) -> None:
        self._queries = {
            bodies: RowQuery(MessageRow, narrow(select(*_COLUMNS[:-1], body))) for bodies, body in _BODIES.items()
        }

    def rows(self, conn: Connection, names: Mapping[str, Any], *, bodies: Bodies = Bodies.ALL) -> list[MessageRow]:
        """The messages that it finds, in its order."""
        rows = self._queries[bodies].rows(conn, names)
        if bodies is not Bodies.SMALL:
            return rows
        return [row if row.body is not None else row._replace(body=DEFERRED) for row in rows]


def by_keys(conn: Connection, keys: Collection[int], bodies: Bodies = Bodies.ALL) -> dict[int, MessageRow]:
    """The messages with these keys, by key and in that order, without those that are not stored."""
    return {row.message_key: row for row in _BY_KEY.rows(conn, _named(keys), bodies=bodies)} if keys else {}


def sizes(conn: Connection, keys: Collection[int]) -> dict[int, int]:
    """The sizes of the bodies of these messages in bytes, by key. The database has them without reading the bodies."""
    return {row.message_key: row.size for row in _SIZES_BY_KEY.rows(conn, _named(keys))} if keys else {}


class HeadRow(NamedTuple):
    """A message without its body; `keys` and `properties` are JSON texts."""

    message_key: int
    topic_id: int
    copy_of: int | None
    message_id: bytes
    stored_at_ms: int
    tag: str | None
    keys: str | None
    properties: str | None
    message_group: str | None
    message_type: str


def heads(conn: Connection, keys: Collection[int]) -> dict[int, HeadRow]:
    """The messages with these keys without their bodies, by key."""
    return {row.message_key: row for row in _HEADS.rows(conn, _named(keys))} if keys else {}


def head(conn: Connection, key: int) -> HeadRow | None:
    return heads(conn, [key]).get(key)


class OriginalRow(NamedTuple):
    """A message that a producer sent."""

    message_key: int
    message_id: bytes
    stored_at_ms: int
    deliver_at_ms: int | None


def originals(conn: Connection, topic_id: int, ids: Sequence[bytes]) -> list[OriginalRow]:
    """The messages of the topic with these message ids that producers sent, without copies."""
    return [row for step in in_steps(ids) for row in _ORIGINALS.rows(conn, {"topic_id": topic_id, "ids": step})]


def original(conn: Connection, topic_id: int, message_id: bytes) -> OriginalRow | None:
    return next(iter(originals(conn, topic_id, [message_id])), None)


def with_id(conn: Connection, message_id: bytes) -> list[HeadRow]:
    """All messages with this id, by key: originals and copies, in any topic."""
    return _WITH_ID.rows(conn, {"of_id": message_id})


def namesakes(conn: Connection, key: int, topic_id: int) -> list[HeadRow]:
    """The messages in this topic that have the message id of the message with this key, by key."""
    return _NAMESAKES.rows(conn, {"of_key": key, "in_topic": topic_id})


def _named(keys: Iterable[int]) -> dict[str, str]:
    return {"keys": encode_column(keys)}


def row_query(kind: type[Row], narrow: Narrowing) -> RowQuery[Row]:
    """A query for columns of messages, which are the fields of `kind`; for `narrow` see `MessageQuery`."""
    return RowQuery(kind, narrow(select(*(message.c[name] for name in kind._fields))))


def size_query(narrow: Narrowing) -> RowQuery[MessageSize]:
    """A query for the sizes of bodies; for `narrow` see `MessageQuery`."""
    return RowQuery(MessageSize, narrow(select(message.c.message_key, func.length(message.c.body).label("size"))))


_KEYS = rows_parameter("keys", "message_key")
_HAS_KEY = message.c.message_key.in_(select(_KEYS.c.message_key))


def in_order(found: Select[Any]) -> Select[Any]:
    """Narrow a query to the messages with the keys `keys`, in the order of keys."""
    return found.where(_HAS_KEY).order_by(message.c.message_key)


_BY_KEY = MessageQuery(in_order)
_SIZES_BY_KEY = size_query(lambda found: found.where(_HAS_KEY))
_SELECT_HEADS = select(*(message.c[name] for name in HeadRow._fields))
_HEADS = RowStatement(HeadRow, _SELECT_HEADS.where(_HAS_KEY))
# The heads of all messages, to be joined by key.
HEADS = _SELECT_HEADS.subquery("head")
# The retry messages, for joins by topic and by the message that each replaced (`copy_of`): the index
# `message_retry_once` finds them.
RETRIES = _SELECT_HEADS.where(IS_RETRY).subquery("retry")
# The originals of all topics, to be joined by topic and message id.
_original_columns = (message.c[name] for name in (*OriginalRow._fields, "topic_id"))
ORIGINALS = select(*_original_columns).where(IS_ORIGINAL).subquery("original")
_ORIGINALS = RowStatement(
    OriginalRow,
    select(*(ORIGINALS.c[name] for name in OriginalRow._fields)).where(
        ORIGINALS.c.topic_id == bindparam("topic_id"), ORIGINALS.c.message_id.in_(bindparam("ids", expanding=True))
    ),
)
_WITH_ID = RowStatement(
    HeadRow, _SELECT_HEADS.where(message.c.message_id == bindparam("of_id")).order_by(message.c.message_key)
)
_its_id = select(message.c.message_id).where(message.c.message_key == bindparam("of_key")).correlate(None)
_NAMESAKES = RowStatement(
    HeadRow,
    _SELECT_HEADS.where(
        message.c.message_id == _its_id.scalar_subquery(), message.c.topic_id == bindparam("in_topic")
    ).order_by(message.c.message_key),
)


# Rows as messages.


def stored_message(row: MessageRow, topic: Topic, number_of: dict[int, int]) -> StoredMessage:
    """The message of a row; `number_of` maps queue ids to queue numbers."""
    (
        key,
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
        deliver_at_ms,
        body,
    ) = row
    sent = Message(
        topic.name,
        # This is `id_from_bytes`, without a call for each message.
        message_id.hex().upper() if message_id[0] else message_id[1:].decode(),
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
    queue_id, offset = divmod(key, 1 << OFFSET_BITS)
    return StoredMessage(sent, key, number_of[queue_id], offset, stored_at_ms)


def queue_numbers(conn: Connection, topic: Topic, needed: set[int]) -> dict[int, int]:
    """Queue numbers by queue id. Reads the store if the caller's topic does not have all needed queues."""
    at_hand = {each.queue_id: each.number for each in topic.queues}
    if needed <= at_hand.keys():
        return at_hand
    return {row.queue_id: row.number for row in queue_rows(conn, topic.topic_id)}


def stored_messages(conn: Connection, rows: Iterable[MessageRow], topic: Topic) -> list[StoredMessage]:
    """The messages of these rows. Dead letters have `dead_letter_of`."""
    listed = list(rows)
    number_of = queue_numbers(conn, topic, {row.message_key >> OFFSET_BITS for row in listed})
    elsewhere = [row.message_key for row in listed if row.message_key >> OFFSET_BITS not in number_of]
    if elsewhere:
        redriven = redrives.origins_of(conn, elsewhere)
        shown = {(redriven[key].origin_key if key in redriven else key) >> OFFSET_BITS for key in elsewhere}
        if more := shown - number_of.keys():
            number_of = number_of | {row.queue_id: row.number for row in queues_by_id(conn, more).values()}
        return _with_redriven(listed, topic, number_of, redriven)
    found = [stored_message(row, topic, number_of) for row in listed]
    if not topic.name.name.startswith(DEAD_LETTER_PREFIX):
        return found
    letters = dead_letters.of_copies(conn, [row.message_key for row in listed])
    names = topics.names_by_id(conn, {each.origin_topic_id for each in letters.values()})
    origins = {key: names[each.origin_topic_id].name for key, each in letters.items() if each.origin_topic_id in names}
    return [
        each._replace(dead_letter_of=(origins[each.message_key], each.message.message_id))
        if each.message_key in origins
        else each
        for each in found
    ]


def _with_redriven(
    rows: Sequence[MessageRow], topic: Topic, number_of: dict[int, int], origins: dict[int, RedriveOrigin]
) -> list[StoredMessage]:
    """The same, if some messages are outside of the topic: redriven to their group, or imported for it.

    A redriven message shows its first key. It has `dead_letter_of`, and a property with the redrive plan.
    """
    return [
        _as_redriven(row, topic, number_of, origins[row.message_key])
        if row.message_key in origins
        else stored_message(row, topic, number_of)
        for row in rows
    ]


def _as_redriven(row: MessageRow, topic: Topic, number_of: dict[int, int], now: RedriveOrigin) -> StoredMessage:
    found = stored_message(row._replace(message_key=now.origin_key), topic, number_of)
    properties = {**found.message.properties, REDRIVE_PLAN: now.plan_id}
    return found._replace(
        message=found.message._replace(properties=properties),
        message_key=row.message_key,
        dead_letter_of=(topic.name.name, found.message.message_id),
    )


# The scanner inside json.loads, without the checks for encodings and blanks: the server's own texts do not need them.
_from_json: Callable[[str, int], tuple[Any, int]] = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]
_TYPES = {kind.value: kind for kind in MessageType}
_ENCODINGS = {encoding.value: encoding for encoding in BodyEncoding}
