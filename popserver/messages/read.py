"""Pages of messages for readers: the oldest messages of a queue, or messages by key; and the key of a message by id.

No query costs more with a larger backlog. Lists are pages, and one answer has at most `PAGE_BYTES_MAX` of bodies, but
at least one message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from sqlalchemy import Connection

from popserver.catalog import facts as catalog_facts
from popserver.catalog import topics
from popserver.messages import by_key, dead_letters, parts
from popserver.messages.by_key import Bodies, HeadRow, by_keys, stored_messages
from popserver.messages.dead_letters import DeadLetterRow
from popserver.model.errors import BadRequest, MessageNotFound
from popserver.model.message import StoredMessage, id_to_bytes
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue, Topic, message_key

PAGE_BYTES_MAX = 16 * 1024 * 1024
T = TypeVar("T")


def peek(
    conn: Connection, name: Resource, queue_number: int | None, from_offset: int | None, limit: int
) -> list[StoredMessage]:
    """The oldest `limit` messages of a topic, or of one of its queues, by `stored_at_ms`.

    Raises `TopicNotFound`, and `BadRequest` for a queue the topic does not have.
    """
    topic = catalog_facts.topic(conn, name)
    queues = topic.queues if queue_number is None else (_queue(topic, queue_number),)
    bounds = ((message_key(each.queue_id, from_offset or 0), message_key(each.queue_id + 1, 0)) for each in queues)
    oldest = sorted((row for first, end in bounds for row in parts.page(conn, first, end, limit)), key=_age)[:limit]
    sizes = by_key.sizes(conn, [row.message_key for row in oldest])
    return load(conn, topic, within_a_page((row.message_key, sizes.get(row.message_key, 0)) for row in oldest))


def _queue(topic: Topic, number: int) -> MessageQueue:
    for each in topic.queues:
        if each.number == number:
            return each
    raise BadRequest(f"topic '{topic.name}' has the queues 0 to {len(topic.queues) - 1}, not {number}")


def within_a_page(sized: Iterable[tuple[T, int]], bytes_max: int | None = None) -> list[T]:
    """The first items, given with their sizes, that fit into one answer; at least one. `bytes_max` None:
    `PAGE_BYTES_MAX`."""
    room = PAGE_BYTES_MAX if bytes_max is None else bytes_max
    found: list[T] = []
    for each, size in sized:
        room -= size
        if found and room < 0:
            break
        found.append(each)
    return found


def load(conn: Connection, topic: Topic, keys: Sequence[int], *, bodies: bool = True) -> list[StoredMessage]:
    """Messages of one topic, in the order of `keys`, without those that are not stored."""
    rows = by_keys(conn, keys, Bodies.ALL if bodies else Bodies.NONE).values()
    found = {each.message_key: each for each in stored_messages(conn, rows, topic)}
    return [found[key] for key in keys if key in found]


def locate(conn: Connection, topic_name: Resource | None, message_id: str) -> tuple[Topic, int]:
    """The topic and the key of a message. Raises `MessageNotFound`, and `BadRequest` if several topics have its id."""
    wanted = None if topic_name is None else catalog_facts.topic(conn, topic_name).topic_id
    found = _stored(conn, message_id)
    there = [(row, topic) for row, topic in found if wanted in (None, row.topic_id)]
    if not there:
        where = "any topic" if topic_name is None else f"topic '{topic_name}'"
        raise MessageNotFound(
            f"message '{short(message_id)}' is not in {where}: it was never stored there; was recalled, cancelled or"
            " rolled back before its delivery; or was removed by its age or with its topic"
        )
    originals = [(row, topic) for row, topic in there if row.copy_of is None]
    if len(originals) > 1:
        names = ", ".join(f"'{topic.name}'" for _, topic in originals)
        raise BadRequest(f"message id '{short(message_id)}' is in the topics {names}; name one of them")
    # The newest copy, because a group that owns whole queues stores a new copy for each retry.
    row, topic = originals[0] if originals else max(there, key=lambda each: _age(each[0]))
    return topic, row.message_key


def letters_of_removed(conn: Connection, message_id: str) -> list[DeadLetterRow]:
    """The dead letters of a removed message. Empty if the message itself is still in a topic."""
    found = _stored(conn, message_id)
    if any(row.copy_of is None for row, _ in found):
        return []
    return [*dead_letters.of_copies(conn, [row.message_key for row, _ in found]).values()]


def _stored(conn: Connection, message_id: str) -> list[tuple[HeadRow, Topic]]:
    """The message and its copies, in existing topics."""
    rows = by_key.with_id(conn, id_to_bytes(message_id))
    existing = topics.topics_by_id(conn, {row.topic_id for row in rows})
    return [(row, existing[row.topic_id]) for row in rows if row.topic_id in existing]


def _age(row: HeadRow) -> tuple[int, int]:
    return row.stored_at_ms, row.message_key


def short(message_id: str) -> str:
    return message_id if len(message_id) <= 64 else f"{message_id[:64]}…"
