"""Reads of dead letters: a page of selected ones, or one by the id of its message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from popserver.catalog import facts as catalog_facts
from popserver.catalog import topics
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import KEY_SHIFT, dead_letter, message, queue
from popserver.database.schema import topic as topic_table
from popserver.dead_letters import selecting
from popserver.dead_letters.rules import LetterSelection
from popserver.messages import read
from popserver.model.errors import MessageNotFound
from popserver.model.group import Group
from popserver.model.message import StoredMessage, id_to_bytes
from popserver.model.names import Resource, dead_letter_topic
from popserver.model.topic import offset_of


class _LetterRow(NamedTuple):
    dead_letter_id: int
    copy_key: int
    attempt: int
    reason: str
    dead_at_ms: int
    redrive_state: str | None
    origin_key: int
    plan_id: str | None
    namespace: str | None
    name: str | None
    number: int | None


class DeadLetter(NamedTuple):
    """A dead letter: its facts and its copy in the dead-letter topic.

    `topic`, `queue_number` and `queue_offset` are those of the original; the first two are None if the topic is
    deleted. `redrive_state` is empty while it is dead; `plan_id` is the plan that redrove it.
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


def list_dead_letters(
    conn: Connection, of: LetterSelection, after_id: int, limit: int, *, bodies: bool = True
) -> DeadLetters:
    """A page of selected dead letters with ids above `after_id`, as many as fit into an answer.

    Without `bodies` their bodies are empty.
    """
    group, page = selecting.page_of(conn, of, after_id, limit)
    rows = _OF_IDS.rows(conn, {"ids": encode_rows([(each,) for each in page.ids])})
    kept = _within_an_answer(conn, rows) if bodies else rows
    next_after_id = page.next_after_id if len(kept) == len(rows) else kept[-1].dead_letter_id
    return DeadLetters(_dead_letters(conn, group, kept, bodies=bodies), next_after_id)


def find_dead_letter(conn: Connection, group_name: Resource, message_id: str) -> DeadLetter:
    """A group's newest dead letter with this message id (several topics may have had it). Raises `MessageNotFound`."""
    group = catalog_facts.group(conn, group_name)
    copies = select(message.c.message_key).where(message.c.message_id == id_to_bytes(message_id))
    wanted = dead_letter.c.group_id == group.group_id, dead_letter.c.copy_key.in_(copies)
    newest = _FACTS.where(*wanted).order_by(dead_letter.c.dead_letter_id.desc()).limit(1)
    rows = [_LetterRow(*row) for row in conn.execute(newest)]
    if not rows:
        raise MessageNotFound(
            f"group '{group_name}' has no dead letter with message id '{read.short(message_id)}';"
            f" list them with: popmq dlq list --group {group_name.name}"
        )
    return _dead_letters(conn, group, rows)[0]


def _within_an_answer(conn: Connection, rows: Sequence[_LetterRow]) -> list[_LetterRow]:
    sizes = {
        row.message_key: row.size
        for row in conn.execute(_SIZES, {"keys": encode_rows([(row.copy_key,) for row in rows])})
    }
    kept = set(read.within_a_page((row.copy_key, sizes[row.copy_key]) for row in rows if row.copy_key in sizes))
    return list(takewhile(lambda row: row.copy_key in kept or row.copy_key not in sizes, rows))


def _dead_letters(
    conn: Connection, group: Group, rows: Sequence[_LetterRow], *, bodies: bool = True
) -> list[DeadLetter]:
    topic = topics.find_topic(conn, dead_letter_topic(group.name))
    copies = read.load(conn, topic, [row.copy_key for row in rows], bodies=bodies) if topic else []
    by_key = {each.message_key: each for each in copies}
    return [
        DeadLetter(
            row.dead_letter_id,
            group.name,
            None if row.name is None else Resource(row.namespace or "", row.name),
            by_key.get(row.copy_key),
            row.attempt,
            row.reason,
            row.dead_at_ms,
            row.redrive_state or "",
            row.number,
            offset_of(row.origin_key),
            row.plan_id or "",
        )
        for row in rows
    ]


# Outer joins: a dead letter stays after the topic that it came from is deleted.
_FACTS = (
    select(
        *(dead_letter.c[name] for name in _LetterRow._fields[:-3]),
        topic_table.c.namespace,
        topic_table.c.name,
        queue.c.number,
    )
    .outerjoin(topic_table, topic_table.c.topic_id == dead_letter.c.origin_topic_id)
    .outerjoin(queue, queue.c.queue_id == dead_letter.c.origin_key.op(">>")(KEY_SHIFT))
)
_IDS = rows_parameter("ids", "dead_letter_id")
_OF_IDS = RowStatement(
    _LetterRow,
    _FACTS.where(dead_letter.c.dead_letter_id.in_(select(_IDS.c.dead_letter_id))).order_by(
        dead_letter.c.dead_letter_id
    ),
)
_KEYS = rows_parameter("keys", "message_key")
_SIZES = select(message.c.message_key, func.length(message.c.body).label("size")).where(
    message.c.message_key.in_(select(_KEYS.c.message_key))
)
