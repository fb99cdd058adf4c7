"""Dead letters: INFLIGHT → DLQ.

A dead letter has two parts: a copy of the message in topic `%DLQ%<group>`, which clients, pulls and Spark read like any
other message, and one row of facts. Both are written in the caller's transaction, which also removes the delivery. The
delivery is removed at once. The two parts are written at the end (`NewDeadLetters`), because all servers lock the
queues of dead letters in one order. A message that dies again, after a redrive or a reset, gets a new row for the same
copy.

Ids of dead letters become visible in order: a reader that has read an id finds no smaller new id later. So on Postgres
a transaction that writes dead letters holds a lock until it commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar, NamedTuple

from sqlalchemy import text

from popserver.catalog import queue_offsets, topics
from popserver.database.dialect import dialect_of
from popserver.delivery import deliveries
from popserver.delivery.deliveries import Ending
from popserver.delivery.history import Moved, record
from popserver.delivery.retry_topic import without_lineage
from popserver.engine.transaction import FinishOrder, Transaction, in_steps
from popserver.messages import by_key, dead_letters, redrives, stored
from popserver.model.group import Group
from popserver.model.message import Message
from popserver.model.names import dead_letter_topic
from popserver.model.states import Event, State
from popserver.model.topic import SYSTEM_QUEUES, NewTopic, message_key

# An arbitrary number, the same for all servers.
_IN_ORDER_OF_IDS = text(f"SELECT pg_advisory_xact_lock({0x706F706D7102})")


class Origin(NamedTuple):
    """The first key of a retry message, the topic of this key, and the stored properties there."""

    message_key: int
    topic_id: int
    properties: str | None


class DeadLetterCandidate(NamedTuple):
    """A delivery that becomes a dead letter; `origin` is None if the message has its first key."""

    message_key: int
    topic_id: int
    attempt: int
    client_id: str
    origin: Origin | None = None

    @property
    def origin_key(self) -> int:
        return self.message_key if self.origin is None else self.origin.message_key

    @property
    def origin_topic_id(self) -> int:
        return self.topic_id if self.origin is None else self.origin.topic_id


class NewDeadLetter(NamedTuple):
    """A delivery that has become a dead letter, and why."""

    group: Group
    candidate: DeadLetterCandidate
    reason: str


class ImportedLetter(NamedTuple):
    """A dead letter of another broker: the message, the topic in which it died, and the facts."""

    message: Message
    topic_id: int
    attempt: int
    reason: str
    dead_at_ms: int


def move_to_dead_letters(
    tx: Transaction, group: Group, candidates: Sequence[DeadLetterCandidate], event: Event, reason: str
) -> None:
    """Turn at most one step of messages into dead letters. The caller has locked their deliveries, if they have any.

    The deliveries end at once; the dead-letter topic is written at the end of the transaction (`NewDeadLetters`).
    """
    candidates = _with_origins(tx, group, candidates)
    deliveries.end(tx, Ending.DEAD_LETTER, ((group.group_id, each.message_key) for each in candidates))
    moved = (Moved(each.message_key, State.INFLIGHT, each.attempt, each.client_id) for each in candidates)
    record(tx, group, event, moved, reason)
    letters = tx.at_end(NewDeadLetters).letters
    letters |= {(group.group_id, each.origin_key): NewDeadLetter(group, each, reason) for each in candidates}


class NewDeadLetters:
    """The new dead letters of a transaction, by group and first key. They are written by group, in one order."""

    order: ClassVar = FinishOrder.DEAD_LETTERS

    def __init__(self) -> None:
        self.letters: dict[tuple[int, int], NewDeadLetter] = {}
        self.imported: list[tuple[Group, Sequence[ImportedLetter]]] = []

    def finish(self, tx: Transaction) -> None:
        if self.letters or self.imported:
            dialect_of(tx.conn).lock(tx.conn, _IN_ORDER_OF_IDS)
        for _, several in groupby(sorted(self.letters), key=lambda each: each[0]):
            for step in in_steps([self.letters[each] for each in several]):
                _write(tx, step)
        for group, imported in self.imported:
            _import(tx, group, imported)


def _with_origins(
    tx: Transaction, group: Group, candidates: Sequence[DeadLetterCandidate]
) -> list[DeadLetterCandidate]:
    """The candidates with the origins of redriven messages, whose deliveries do not have their first keys."""
    keys = [each.message_key for each in candidates if each.origin is None]
    redriven = redrives.origins_in_group(tx.conn, group.group_id, keys)
    if not redriven:
        return list(candidates)
    sent_with = {key: without_lineage(row.properties) for key, row in by_key.heads(tx.conn, redriven).items()}
    origins = {
        key: Origin(each.origin_key, each.origin_topic_id, sent_with[key])
        for key, each in redriven.items()
        if key in sent_with
    }
    return [each._replace(origin=origins.get(each.message_key, each.origin)) for each in candidates]


def _write(tx: Transaction, letters: Sequence[NewDeadLetter]) -> None:
    group = letters[0].group
    before = dead_letters.lock_of_messages(tx, group.group_id, [each.candidate.origin_key for each in letters])
    new = [each for each in letters if each.candidate.origin_key not in before]
    copies = _copy_messages(tx, group, [each.candidate for each in new]) if new else []
    copy_of = dict(zip((each.candidate.origin_key for each in new), copies, strict=True))
    if before:
        dead_letters.remove(tx, [row.dead_letter_id for row in before.values()])
        copy_of |= {origin_key: row.copy_key for origin_key, row in before.items()}
    dead_letters.add(tx, [_facts(tx, each, copy_of[each.candidate.origin_key]) for each in letters])


def _import(tx: Transaction, group: Group, letters: Sequence[ImportedLetter]) -> None:
    """Store the messages in the dead-letter topic as originals: each is the origin and the copy of its dead letter."""
    topic = topics.ensure_topic(tx, NewTopic(dead_letter_topic(group.name), SYSTEM_QUEUES))
    queue = topic.queues[0]
    taken = queue_offsets.take(tx, queue.queue_id, len(letters))
    assert taken is not None, "the topic was found or made in this transaction"
    first_key = message_key(queue.queue_id, taken.first)
    stored.add(tx, topic, taken.stored_at_ms, first_key, [each.message for each in letters])
    facts: list[dict[str, int | str]] = [
        {
            "group_id": group.group_id,
            "origin_key": key,
            "origin_topic_id": each.topic_id,
            "copy_key": key,
            "attempt": each.attempt,
            "reason": each.reason,
            "dead_at_ms": each.dead_at_ms,
        }
        for key, each in enumerate(letters, start=first_key)
    ]
    dead_letters.add(tx, facts)
    tx.ready_topics.add(topic.topic_id)


def _facts(tx: Transaction, letter: NewDeadLetter, copy_key: int) -> dict[str, int | str]:
    return {
        "group_id": letter.group.group_id,
        "origin_key": letter.candidate.origin_key,
        "origin_topic_id": letter.candidate.origin_topic_id,
        "copy_key": copy_key,
        "attempt": letter.candidate.attempt,
        "reason": letter.reason,
        "dead_at_ms": tx.now_ms,
    }


def _copy_messages(tx: Transaction, group: Group, candidates: Sequence[DeadLetterCandidate]) -> list[int]:
    """Append copies to the group's dead-letter topic. Returns their message keys, in the order of `candidates`."""
    topic = topics.ensure_topic(tx, NewTopic(dead_letter_topic(group.name), SYSTEM_QUEUES))
    queue = topic.queues[0]
    taken = queue_offsets.take(tx, queue.queue_id, len(candidates))
    assert taken is not None, "the topic was found or made in this transaction"
    copies = [message_key(queue.queue_id, taken.first + index) for index in range(len(candidates))]
    rows = [
        (each.message_key, copy, int(each.origin is not None), each.origin.properties if each.origin else None)
        for each, copy in zip(candidates, copies, strict=True)
    ]
    stored.copy_to_dead_letter_topic(tx, topic.topic_id, taken.stored_at_ms, rows)
    tx.ready_topics.add(topic.topic_id)
    return copies
