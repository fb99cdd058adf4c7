"""Messages of another broker for one group alone: ones that the group has not done there, and its dead letters.

A message becomes an original of the group's retry topic, with a READY delivery in mode POP; so no other group of its
topic gets it. A dead letter becomes an original of the group's dead-letter topic. Both are stored once: the topic has
at most one original with a message id, as long as retention keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from popserver.catalog import progress, queue_offsets, topics
from popserver.delivery import deliveries
from popserver.delivery.dead_letter_topic import ImportedLetter, NewDeadLetters
from popserver.delivery.deliveries import NewDelivery
from popserver.delivery.retry_topic import RetryOrigin, marked
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each
from popserver.messages import repeats, stored
from popserver.model.errors import PopError, TooManyRequests, TopicNotFound
from popserver.model.group import Group, Mode
from popserver.model.handles import NO_HOLD
from popserver.model.message import Message
from popserver.model.names import dead_letter_topic, retry_topic
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import SYSTEM_QUEUES, NewTopic, Topic, message_key


class Imported(NamedTuple):
    """A message, and how often its group has received it at the other broker without finishing it."""

    message: Message
    failures: int


@dataclass(frozen=True, slots=True)
class Import(Request[list[bool]]):
    """Messages of a topic for a group, each id once. The results: whether the message is stored already."""

    phase: ClassVar = Phase.IMPORT
    group: Group
    topic: Topic
    messages: Sequence[Imported]


@dataclass(frozen=True, slots=True)
class ImportDead(Request[list[bool]]):
    """The same for dead letters."""

    phase: ClassVar = Phase.IMPORT_DEAD
    group: Group
    topic: Topic
    letters: Sequence[ImportedLetter]


@carries_out_each(Import)
def import_messages(tx: Transaction, request: Import) -> list[bool] | PopError:
    """Store the messages. Like a redrive it never waits for the lock of the retry topic's queue."""
    if refusal := _refusal(tx, request.topic):
        return refusal
    group, name = request.group, retry_topic(request.group.name)
    own = topics.find_topic(tx.conn, name) or topics.ensure_topic(tx, NewTopic(name, SYSTEM_QUEUES))
    queue_id = own.queues[0].queue_id
    if not queue_offsets.lock_available(tx.conn, [queue_id]):
        return TooManyRequests(f"another transaction uses topic '{name}'; nothing was imported, repeat the request")
    known = _known(tx, own, [each.message for each in request.messages])
    new = [each for each in request.messages if each.message.message_id not in known]
    if new:
        first_key, stored_at_ms = _take(tx, own, len(new))
        if group.mode is Mode.PULL or progress.of_queues(tx.conn, group.group_id, [queue_id]):
            stored.add(tx, own, stored_at_ms, first_key, _with_lineage(request.topic, first_key, new))
            tx.ready_topics.add(own.topic_id)
        else:
            stored.add(tx, own, stored_at_ms, first_key, [each.message for each in new])
            deliveries.add(tx, [_delivery(tx, request, key, each) for key, each in enumerate(new, start=first_key)])
            tx.ready_topics.add(request.topic.topic_id)
    return [each.message.message_id in known for each in request.messages]


@carries_out_each(ImportDead)
def import_dead_letters(tx: Transaction, request: ImportDead) -> list[bool] | PopError:
    """Store the dead letters at the end of the transaction, with those of this server."""
    if refusal := _refusal(tx, request.topic):
        return refusal
    own = topics.find_topic(tx.conn, dead_letter_topic(request.group.name))
    known = set() if own is None else _known(tx, own, [each.message for each in request.letters])
    new = [each for each in request.letters if each.message.message_id not in known]
    if new:
        tx.at_end(NewDeadLetters).imported.append((request.group, new))
    return [each.message.message_id in known for each in request.letters]


def _refusal(tx: Transaction, topic: Topic) -> PopError | None:
    if topic.topic_id in topics.topics_by_id(tx.conn, [topic.topic_id]):
        return None
    return TopicNotFound(f"topic '{topic.name}' was deleted; create it with: popmq topic create {topic.name.name}")


def _known(tx: Transaction, own: Topic, batch: Sequence[Message]) -> set[str]:
    # The first run does not search: a stored id causes a conflict, and then the transaction runs again.
    return {*repeats.known(tx, own, batch)} if tx.careful else set()


class _Taken(NamedTuple):
    first_key: int
    stored_at_ms: int


def _take(tx: Transaction, own: Topic, count: int) -> _Taken:
    taken = queue_offsets.take(tx, own.queues[0].queue_id, count)
    assert taken is not None, "its row is locked"
    return _Taken(message_key(own.queues[0].queue_id, taken.first), taken.stored_at_ms)


def _with_lineage(topic: Topic, first_key: int, new: Sequence[Imported]) -> list[Message]:
    """The messages as consumers of whole queues expect them in a retry topic: each is its own origin."""
    lineages = (RetryOrigin(topic.name.name, each.failures, key, 0) for key, each in enumerate(new, start=first_key))
    return [
        each.message._replace(properties=marked(each.message.properties, lineage))
        for each, lineage in zip(new, lineages, strict=True)
    ]


def _delivery(tx: Transaction, request: Import, key: int, new: Imported) -> NewDelivery:
    return NewDelivery(
        request.group.group_id,
        key,
        request.topic.topic_id,
        State.READY.value,
        attempt=new.failures,
        hold_id=NO_HOLD,
        visible_at_ms=tx.now_ms,
        holder=Holder.SIMPLE.value,
        client_id="",
    )
