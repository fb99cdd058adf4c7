"""Where dead letters and retry messages come from (reads only).

A dead letter can die again in another group that reads it, and a retry message can be a copy of a dead letter. So this
follows a message from copy to copy, back to the topic that its producer sent it to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from popserver.catalog.queues import queues_by_id
from popserver.catalog.topics import names_by_id
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import message
from popserver.database.schema import topic as topic_table
from popserver.delivery.retry_topic import RetryOrigin, properties_of, retry_origin_of
from popserver.engine.reader import Reader
from popserver.messages import dead_letters
from popserver.model.names import RETRY_PREFIX, Resource, is_system_derived
from popserver.model.topic import queue_of
from popserver.transport.calls import Caller


class _MessageOfTopicRow(NamedTuple):
    message_key: int
    properties: str | None
    namespace: str
    name: str


def topics_behind(conn: Connection, keys: Sequence[int]) -> set[Resource | None]:
    """All topics that these messages were in before their current one.

    The set contains None if a topic is unknown because a copy in between was removed.
    """
    found: set[Resource | None] = set()
    seen: set[int] = set()
    while keys:
        seen.update(keys)
        steps = _steps(conn, keys)
        found.update(topic for topic, _ in steps)
        # A topic that producers send to is the first one.
        keys = [key for topic, key in steps if key and topic and is_system_derived(topic.name) and key not in seen]
    return found


def _steps(conn: Connection, keys: Sequence[int]) -> list[tuple[Resource | None, int]]:
    """One step back from each message: the topic and its key there. A message of an ordinary topic has none."""
    rows = _COPIES.rows(conn, {"keys": encode_column(keys)})
    retries = {row.message_key: _retry_origin(row) for row in rows if row.name.startswith(RETRY_PREFIX)}
    topics = _topics_of(conn, (each.origin_key for each in retries.values() if each is not None))
    letters = dead_letters.of_copies(conn, {row.message_key for row in rows} - retries.keys())
    names = names_by_id(conn, {each.origin_topic_id for each in letters.values()})
    steps: list[tuple[Resource | None, int]] = [(None, 0)] * (len(set(keys)) - len({row.message_key for row in rows}))
    for row in rows:
        if row.message_key in retries:
            lineage = retries[row.message_key]
            steps.append((None, 0) if lineage is None else _first_place(row, lineage, topics))
        elif is_system_derived(row.name):
            letter = letters.get(row.message_key)
            steps.append((None, 0) if letter is None else (names.get(letter.origin_topic_id), letter.origin_key))
    return steps


def _retry_origin(row: _MessageOfTopicRow) -> RetryOrigin | None:
    try:
        return retry_origin_of(properties_of(row.properties))
    except (KeyError, ValueError):
        return None


def _first_place(row: _MessageOfTopicRow, lineage: RetryOrigin, topics: dict[int, Resource]) -> tuple[Resource, int]:
    # If the topic was deleted, its queue is gone; the copy has its name.
    named = topics.get(queue_of(lineage.origin_key), Resource(row.namespace, lineage.topic_name))
    return named, lineage.origin_key


def _topics_of(conn: Connection, keys: Iterable[int]) -> dict[int, Resource]:
    queues = queues_by_id(conn, map(queue_of, keys))
    names = names_by_id(conn, {each.topic_id for each in queues.values()})
    return {each.queue_id: names[each.topic_id] for each in queues.values() if each.topic_id in names}


_KEYS = rows_parameter("keys", "message_key")
_COPIES = RowStatement(
    _MessageOfTopicRow,
    select(
        message.c.message_key,
        message.c.properties,
        topic_table.c.namespace,
        topic_table.c.name,
    )
    .select_from(_KEYS)
    .join(message, message.c.message_key == _KEYS.c.message_key)
    .join(topic_table, topic_table.c.topic_id == message.c.topic_id),
)


# A user who may not read a topic may not read its messages as dead letters or retry messages of a group either.


async def check(reader: Reader, topic_name: str, keys: Sequence[int], caller: Caller) -> None:
    """Raise `Forbidden` if one of these messages comes from a topic that the caller may not read.

    Called before found messages are sent. It costs a query for callers that read a `%DLQ%` or `%RETRY%` topic and have
    a DENY policy, and nothing for all others.
    """
    if keys and is_system_derived(topic_name) and caller.denies_reading():
        caller.require_origins(await reader.read(lambda conn: topics_behind(conn, keys)))
