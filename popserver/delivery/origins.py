"""The topics that dead letters and retry messages were copied from (reads only).

A dead letter can die again in another group that reads it, and a retry message can be a copy of a dead letter. So this
module follows a message from copy to copy, back to the topic that its producer sent it to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from popserver.catalog.queues import queues_by_id
from popserver.catalog.topics import names_by_id
from popserver.delivery.retry_topic import RetryOrigin, properties_of, retry_origin_of
from popserver.messages import by_key, dead_letters
from popserver.model.names import RETRY_PREFIX, Resource, is_system_derived
from popserver.model.topic import queue_of

_Step = tuple[Resource | None, int]
_UNKNOWN: _Step = None, 0


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
        keys = [key for topic, key in steps if topic and is_system_derived(topic.name) and key not in seen]
    return found


def _steps(conn: Connection, keys: Sequence[int]) -> list[_Step]:
    """One step back from each message: the topic and its key there. A message of an ordinary topic has no step."""
    heads = by_key.heads(conn, keys)
    known = names_by_id(conn, {row.topic_id for row in heads.values()})
    topic_of = {key: known[row.topic_id] for key, row in heads.items() if row.topic_id in known}
    retries = {
        key: _retry_origin(heads[key].properties)
        for key, topic in topic_of.items()
        if topic.name.startswith(RETRY_PREFIX)
    }
    topics = _topics_of(conn, (each.origin_key for each in retries.values() if each is not None))
    letters = dead_letters.of_copies(conn, topic_of.keys() - retries.keys())
    names = names_by_id(conn, {each.origin_topic_id for each in letters.values()})
    steps = [_UNKNOWN] * len(set(keys) - topic_of.keys())
    for key, topic in topic_of.items():
        if key in retries:
            lineage = retries[key]
            steps.append(_UNKNOWN if lineage is None else _first_topic_and_key(topic, lineage, topics))
        elif is_system_derived(topic.name):
            letter = letters.get(key)
            steps.append(_UNKNOWN if letter is None else (names.get(letter.origin_topic_id), letter.origin_key))
    return steps


def _retry_origin(properties: str | None) -> RetryOrigin | None:
    try:
        return retry_origin_of(properties_of(properties))
    except (KeyError, ValueError):
        return None


def _first_topic_and_key(own: Resource, lineage: RetryOrigin, topics: dict[int, Resource]) -> tuple[Resource, int]:
    # If the topic was deleted, its queue was removed; the copy has the topic's name.
    named = topics.get(queue_of(lineage.origin_key), Resource(own.namespace, lineage.topic_name))
    return named, lineage.origin_key


def _topics_of(conn: Connection, keys: Iterable[int]) -> dict[int, Resource]:
    queues = queues_by_id(conn, map(queue_of, keys))
    names = names_by_id(conn, {each.topic_id for each in queues.values()})
    return {each.queue_id: names[each.topic_id] for each in queues.values() if each.topic_id in names}
