"""Reads of dead letters: a page of selected ones, or one by the id of its message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.catalog import facts as catalog_facts
from popserver.catalog import topics
from popserver.catalog.queues import queues_by_id
from popserver.dead_letters import selecting
from popserver.dead_letters.rules import LetterSelection
from popserver.messages import by_key, dead_letters, read
from popserver.messages.dead_letters import DeadLetterRow
from popserver.model.errors import MessageNotFound
from popserver.model.group import Group
from popserver.model.message import StoredMessage, id_to_bytes
from popserver.model.names import Resource, dead_letter_topic
from popserver.model.topic import offset_of, queue_of


class DeadLetter(NamedTuple):
    """A dead letter: its facts and its copy in the dead-letter topic.

    `topic`, `queue_number` and `queue_offset` are those of the original; the first two are None if the topic is
    deleted. `redrive_state` is empty while the message is a dead letter; `plan_id`: the plan that redrove it.
    """

    dead_letter_id: int
    group: Resource
    topic: Resource | None
    stored: StoredMessage | None
    attempt: int
    reason: str
    dead_at_ms: int
    redrive_state: str
    queue_number: int | None
    queue_offset: int
    plan_id: str


class DeadLetters(NamedTuple):
    """A page of dead letters, oldest first, and the id after which to continue (None: no more)."""

    letters: list[DeadLetter]
    next_after_id: int | None


def list_dead_letters(conn: Connection, of: LetterSelection, after_id: int, limit: int, *, bodies: bool) -> DeadLetters:
    """A page of selected dead letters with ids above `after_id`, as many as fit into an answer.

    `bodies` false: all bodies are empty.
    """
    group, page = selecting.page_of(conn, of, after_id, limit)
    kept = _within_an_answer(conn, page.rows) if bodies else page.rows
    next_after_id = page.next_after_id if len(kept) == len(page.rows) else kept[-1].dead_letter_id
    return DeadLetters(_dead_letters(conn, group, kept, bodies=bodies), next_after_id)


def find_dead_letter(conn: Connection, group_name: Resource, message_id: str) -> DeadLetter:
    """A group's newest dead letter with this message id (several topics may have had it). Raises `MessageNotFound`."""
    group = catalog_facts.group(conn, group_name)
    copies = by_key.with_id(conn, id_to_bytes(message_id))
    found = dead_letters.of_copies(conn, [row.message_key for row in copies]).values()
    newest = max((each for each in found if each.group_id == group.group_id), default=None)
    if newest is None:
        raise MessageNotFound(
            f"group '{group_name}' has no dead letter with message id '{read.short(message_id)}';"
            f" list them with: popmq dlq list --group {group_name.name}"
        )
    return _dead_letters(conn, group, [newest])[0]


def _within_an_answer(conn: Connection, rows: Sequence[DeadLetterRow]) -> list[DeadLetterRow]:
    sizes = by_key.sizes(conn, [row.copy_key for row in rows])
    return read.within_a_page((row, sizes[row.copy_key]) for row in rows)


def _dead_letters(
    conn: Connection, group: Group, rows: Sequence[DeadLetterRow], *, bodies: bool = True
) -> list[DeadLetter]:
    topic = topics.find_topic(conn, dead_letter_topic(group.name))
    copies = read.load(conn, topic, [row.copy_key for row in rows], bodies=bodies) if topic else []
    copy_of = {each.message_key: each for each in copies}
    # A dead letter stays after the topic that it came from is deleted.
    names = topics.names_by_id(conn, {row.origin_topic_id for row in rows})
    origins = queues_by_id(conn, (queue_of(row.origin_key) for row in rows))
    numbers = {each.queue_id: each.number for each in origins.values()}
    return [
        DeadLetter(
            row.dead_letter_id,
            group.name,
            names.get(row.origin_topic_id),
            copy_of.get(row.copy_key),
            row.attempt,
            row.reason,
            row.dead_at_ms,
            row.redrive_state or "",
            numbers.get(queue_of(row.origin_key)),
            offset_of(row.origin_key),
            row.plan_id or "",
        )
        for row in rows
    ]
