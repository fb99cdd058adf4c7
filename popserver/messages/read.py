"""Queries for messages: by key, by id, and the oldest ones of a queue.

No query costs more with a larger backlog. Lists are pages, and one answer has at most `PAGE_BYTES_MAX` of bodies, but
at least one message.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, LargeBinary, Select, case, func, literal, select

from popserver.catalog import topics
from popserver.catalog.facts import _queue, _topic
from popserver.database.rows import RowQuery, encode_column, rows_parameter
from popserver.database.schema import message
from popserver.database.schema import topic as topic_table
from popserver.messages import dead_letters, duplicates, redrives
from popserver.messages.redrives import RedriveOrigin
from popserver.model.errors import BadRequest, MessageNotFound
from popserver.model.message import REDRIVE_PLAN, BodyEncoding, Message, StoredMessage, id_to_bytes
from popserver.model.names import DLQ_PREFIX, Resource
from popserver.model.topic import OFFSET_BITS, MessageQueue, MessageType, Topic, message_key, queue_of

PAGE_BYTES_MAX = 16 * 1024 * 1024


class MessagePlaceRow(NamedTuple):
    """The place of a message, and the name of its topic."""

    message_key: int
    copy_of: int | None
    stored_at_ms: int
    namespace: str
    name: str


class MessageSize(NamedTuple):
    """The size of a message's body, in bytes."""

    message_key: int
    size: int


class _SizeRow(NamedTuple):
    message_key: int
    stored_at_ms: int
    size: int


def peek(
    conn: Connection, name: Resource, queue_number: int | None, from_offset: int | None, limit: int
) -> list[StoredMessage]:
    """The oldest `limit` messages of a topic, or of one of its queues, by `stored_at_ms`.

    Raises `TopicNotFound`, and `BadRequest` for a queue the topic does not have.
    """
    topic = _topic(conn, name)
    queues = topic.queues if queue_number is None else (_queue(topic, queue_number),)
    oldest = [row for each in queues for row in _head(conn, each, from_offset or 0, limit)]
    oldest.sort(key=lambda row: (row.stored_at_ms, row.message_key))
    return load(conn, topic, within_a_page((row.message_key, row.size) for row in oldest[:limit]))


def _head(conn: Connection, place: MessageQueue, from_offset: int, limit: int) -> list[_SizeRow]:
    first, end = message_key(place.queue_id, from_offset), message_key(place.queue_id + 1, 0)
    inside = message.c.message_key >= first, message.c.message_key < end
    rows = conn.execute(_SIZES.where(*inside).order_by(message.c.message_key).limit(limit))
    return [_SizeRow(*row) for row in rows]


def within_a_page(sizes: Iterable[tuple[int, int]], bytes_max: int | None = None) -> list[int]:
    """The keys of the first messages that fit into one answer; `sizes`: key and size of each message.

    `bytes_max`: None for `PAGE_BYTES_MAX`.
    """
    limit = PAGE_BYTES_MAX if bytes_max is None else bytes_max
    keys: list[int] = []
    total = 0
    for key, size in sizes:
        total += size
        if keys and total > limit:
            break
        keys.append(key)
    return keys


def load(conn: Connection, topic: Topic, keys: Sequence[int], *, bodies: bool = True) -> list[StoredMessage]:
    """Messages of one topic, in the order of `keys`, without those that are not stored."""
    rows = BY_KEY.rows(conn, {"keys": encode_column(keys)}, bodies=Bodies.ALL if bodies else Bodies.NONE)
    by_key = {each.message_key: each for each in stored_messages(conn, rows, topic)}
    return [by_key[key] for key in keys if key in by_key]


def find_place(conn: Connection, topic_name: Resource | None, message_id: str) -> MessagePlaceRow:
    """The place of a message. Raises `MessageNotFound`, and `BadRequest` if several topics have this message id."""
    query = _PLACES.where(message.c.message_id == id_to_bytes(message_id))
    if topic_name is not None:
        query = query.where(message.c.topic_id == _topic(conn, topic_name).topic_id)
    places = [MessagePlaceRow(*row) for row in conn.execute(query)]
    if not places:
        where = "any topic" if topic_name is None else f"topic '{topic_name}'"
        raise MessageNotFound(f"message '{short(message_id)}' is not in {where}")
    originals = [each for each in places if each.copy_of is None]
    if len(originals) > 1:
        names = ", ".join(f"'{Resource(each.namespace, each.name)}'" for each in originals)
        raise BadRequest(f"message id '{short(message_id)}' is in the topics {names}; name one of them")
    # The newest copy, because a group that owns whole queues stores a new copy for each retry.
    return originals[0] if originals else max(places, key=lambda each: (each.stored_at_ms, each.message_key))


def short(message_id: str) -> str:
    return message_id if len(message_id) <= 64 else f"{message_id[:64]}…"


_SIZES = select(message.c.message_key, message.c.stored_at_ms, func.length(message.c.body).label("size"))
_PLACES = (
    select(
        message.c.message_key, message.c.copy_of, message.c.stored_at_ms, topic_table.c.namespace, topic_table.c.name
    )
    .join(topic_table, topic_table.c.topic_id == message.c.topic_id)
    .where(topic_table.c.deleted_at_ms.is_(None))
    .order_by(message.c.message_key)
)


# Queries for whole messages.


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


class DeferredBody(bytes):
    """In place of a body that was not fetched."""


DEFERRED = DeferredBody()
# A body up to this size costs little compared with the rest of its message.
SMALL_BODY_BYTES = 16 * 1024
COLUMNS = tuple(message.c[name] for name in MessageRow._fields)
_BODIES: dict[Bodies, ColumnElement[Any]] = {
    Bodies.ALL: message.c.body,
    Bodies.SMALL: case((func.length(message.c.body) <= SMALL_BODY_BYTES, message.c.body)).label("body"),
    Bodies.NONE: literal(b"", LargeBinary).label("body"),
}


class MessageQuery:
    """A query for messages: `narrow` adds conditions, order and limit to a select of `COLUMNS`."""

    def __init__(self, narrow: Callable[[Select[Any]], Select[Any]]) -> None:
        self._queries = {
            bodies: RowQuery(MessageRow, narrow(select(*COLUMNS[:-1], body))) for bodies, body in _BODIES.items()
        }

    def rows(self, conn: Connection, names: Mapping[str, Any], *, bodies: Bodies = Bodies.ALL) -> list[MessageRow]:
        """The messages that it finds, in its order."""
        rows = self._queries[bodies].rows(conn, names)
        if bodies is not Bodies.SMALL:
            return rows
        return [row if row.body is not None else row._replace(body=DEFERRED) for row in rows]


_KEYS = rows_parameter("keys", "message_key")
# The messages with these `keys`, by key.
BY_KEY = MessageQuery(
    lambda every: every.where(message.c.message_key.in_(select(_KEYS.c.message_key))).order_by(message.c.message_key)
)


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


def stored_messages(conn: Connection, rows: Iterable[MessageRow], topic: Topic) -> list[StoredMessage]:
    """The messages of these rows. Dead letters have `dead_letter_of`."""
    listed = list(rows)
    number_of = {each.queue_id: each.number for each in topic.queues}
    if any(row.message_key >> OFFSET_BITS not in number_of for row in listed):
        number_of = duplicates.queue_numbers(conn, topic, {queue_of(row.message_key) for row in listed})
    elsewhere = [row.message_key for row in listed if row.message_key >> OFFSET_BITS not in number_of]
    if elsewhere:
        return _with_redriven(listed, topic, number_of, redrives.of_places(conn, elsewhere))
    found = [stored_message(row, topic, number_of) for row in listed]
    if not topic.name.name.startswith(DLQ_PREFIX):
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
    rows: Sequence[MessageRow], topic: Topic, number_of: dict[int, int], places: dict[int, RedriveOrigin]
) -> list[StoredMessage]:
    """The same, if some messages were redriven to their group: these show their first places.

    A redriven message has `dead_letter_of`, and a property with the redrive plan.
    """
    return [
        _as_redriven(row, topic, number_of, places[row.message_key])
        if row.message_key in places
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


# The scanner inside json.loads, without its checks for encodings and blanks, which the server's own texts do not need.
_from_json: Callable[[str, int], tuple[Any, int]] = json.scanner.make_scanner(json.JSONDecoder())  # type: ignore[attr-defined]
_TYPES = {kind.value: kind for kind in MessageType}
_ENCODINGS = {encoding.value: encoding for encoding in BodyEncoding}
