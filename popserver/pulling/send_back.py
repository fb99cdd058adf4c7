"""Messages that members send back: INFLIGHT → WAITING_RETRY, or → DLQ.

A message that a member has pulled has no delivery row. Sent back, it gets one until it is due; then a retry message
replaces it (`delivery.retry_topic`). Sending the same message back again changes nothing while it waits, after its
retry message exists, and when it is a dead letter. There is one exception: after an operator moved the group's
progress back, the message was read again and has failed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar, NamedTuple

from sqlalchemy import and_, bindparam, func, select

from popserver.catalog import groups, lookup, queue_offsets, topics
from popserver.catalog.progress import REACHED
from popserver.catalog.queues import queues_by_id
from popserver.database.notifications import DUE
from popserver.database.rows import encode_column, rows_parameter
from popserver.database.schema import KEY_SHIFT
from popserver.delivery import delivered, deliveries
from popserver.delivery.dead_letter_topic import DeadLetterCandidate, Origin, move_to_dead_letters
from popserver.delivery.deliveries import NewDelivery
from popserver.delivery.history import Moved, record
from popserver.delivery.retry_topic import properties_of, retry_origin_of, without_lineage
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out, in_steps
from popserver.messages import by_key, dead_letters, stored
from popserver.messages.by_key import RETRIES, HeadRow
from popserver.model.errors import MessageNotFound, PopError
from popserver.model.group import Group, Mode
from popserver.model.handles import NO_HOLD
from popserver.model.names import retry_topic
from popserver.model.retry import Holder, handed_back_interval_ms, when_handed_back
from popserver.model.states import Event, State, target
from popserver.model.topic import MessageQueue, Topic, queue_of
from popserver.model.topic import message_key as topic_message_key
from popserver.pulling import commit

REASONS = {
    Event.RETRY: "handed back by its consumer",
    Event.EXHAUST: "handed back, and no attempt remains",
    Event.FORWARD_TO_DLQ: "forwarded by its consumer",
}


@dataclass(frozen=True, slots=True)
class SendBack(Request[bool]):
    """One message as it was pulled; for a retry message its own queue and offset. The delay level has been checked.

    `failures_max` is the member's own limit; without it, or if it is negative, it is the group's attempts minus one.
    """

    phase: ClassVar = Phase.SEND_BACK
    group: Group
    topic: Topic
    queue: MessageQueue
    offset: int
    client_id: str
    delay_level: int = 0
    failures_max: int | None = None

    @property
    def message_key(self) -> int:
        return topic_message_key(self.queue.queue_id, self.offset)

    def locks(self) -> Iterable[Locks]:
        return () if self.group.mode is not None else (lookup.CATALOG_LOCK,)


class _Failed(NamedTuple):
    """A message that was sent back for the first time, and its count of failures."""

    request: SendBack
    origin: Origin
    failures: int
    event: Event

    def candidate(self) -> DeadLetterCandidate:
        request = self.request
        return DeadLetterCandidate(
            request.message_key, request.topic.topic_id, self.failures + 1, request.client_id, self.origin
        )


class _Found(NamedTuple):
    """The stored facts about the messages of one step, by message key."""

    messages: dict[int, HeadRow]
    origins: dict[int, Origin]
    failures: dict[int, int]
    dead: set[int]  # first keys
    waiting: set[int]
    copies: dict[int, int]  # the copy's key by its parent's
    stale: set[int]  # parents whose copy is from before a reset


@carries_out(SendBack)
def send_back(tx: Transaction, requests: Sequence[SendBack]) -> list[bool | PopError]:
    """Take messages back. An answer is whether the message is a dead letter now; otherwise it is delivered again."""
    denied = commit.refusals(tx.conn, {each.group for each in requests})
    good = sorted((each for each in requests if each.group not in denied), key=_group_and_key)
    keys = {each.message_key for each in good}
    # Then no other transaction sends these messages back, and retention does not remove them.
    queue_offsets.keep(tx, {queue_of(key) for key in keys})
    stored.lock(tx, keys)
    outcomes: dict[tuple[int, int], bool | PopError] = {}
    for _, several in groupby(good, key=lambda each: each.group.group_id):
        for step in in_steps(list(several)):
            outcomes |= _hand_back(tx, step, outcomes)
    done = {each.group for each in good if isinstance(outcomes[_group_and_key(each)], bool)}
    groups.set_modes(tx, done, Mode.PULL)
    return [denied[each.group] if each.group in denied else outcomes[_group_and_key(each)] for each in requests]


def _group_and_key(request: SendBack) -> tuple[int, int]:
    return request.group.group_id, request.message_key


def _hand_back(
    tx: Transaction, step: Sequence[SendBack], known: dict[tuple[int, int], bool | PopError]
) -> dict[tuple[int, int], bool | PopError]:
    """The outcomes of one step of a group's messages, by message key."""
    group = step[0].group
    new = {each.message_key: each for each in reversed(step) if _group_and_key(each) not in known}
    found = _find(tx, group, new)
    failed = [_failed(each, found) for each in new.values() if _is_new(each, found)]
    # Retries from before a reset are marked as replaced: their messages are about to get new ones.
    failed_keys = [each.request.message_key for each in failed]
    if stale := [found.copies[key] for key in failed_keys if key in found.stale]:
        stored.replace_retries(tx, stale)
    _let_wait(tx, group, [each for each in failed if each.event is Event.RETRY])
    for event in (Event.EXHAUST, Event.FORWARD_TO_DLQ):
        if candidates := [each.candidate() for each in failed if each.event is event]:
            move_to_dead_letters(tx, group, candidates, event, REASONS[event])
    dead = found.dead | {each.origin.message_key for each in failed if each.event is not Event.RETRY}
    return {
        (group.group_id, key): found.origins[key].message_key in dead if key in found.messages else _not_stored(each)
        for key, each in new.items()
    }


def _find(tx: Transaction, group: Group, requests: dict[int, SendBack]) -> _Found:
    names = {"for_group": group.group_id, "keys": encode_column(sorted(requests))}
    messages = by_key.heads(tx.conn, requests)
    own = topics.find_topic(tx.conn, retry_topic(group.name))
    own_id = None if own is None else own.topic_id
    # A dead letter names the topic of its first key; 0 if that topic is deleted.
    firsts = {
        key: retry_origin_of(properties_of(row.properties)) for key, row in messages.items() if row.topic_id == own_id
    }
    queues = queues_by_id(tx.conn, (queue_of(each.origin_key) for each in firsts.values())) if firsts else {}
    topic_of = {each.queue_id: each.topic_id for each in queues.values()}
    origins = {
        key: Origin(
            firsts[key].origin_key,
            topic_of.get(queue_of(firsts[key].origin_key), 0),
            without_lineage(row.properties),
        )
        if key in firsts
        else Origin(key, row.topic_id, row.properties)
        for key, row in messages.items()
    }
    died = dead_letters.of_messages(tx.conn, group.group_id, [each.message_key for each in origins.values()])
    dead = {each.origin_key for each in died if each.redrive_state is None}
    # Waiting rows are read before copies: a row that ends in between has left a copy.
    waiting = delivered.among(tx.conn, group.group_id, sorted(requests))
    copies = tx.conn.execute(_COPIES, names | {"retry_topic_id": own_id}).all() if own_id is not None else []
    stale = {row.copy_of for row in copies if retry_origin_of(properties_of(row.properties)).resets < row.resets}
    failures = {key: each.failures for key, each in firsts.items()}
    return _Found(messages, origins, failures, dead, waiting, {row.copy_of: row.message_key for row in copies}, stale)


def _is_new(request: SendBack, found: _Found) -> bool:
    key = request.message_key
    if key not in found.messages or found.origins[key].message_key in found.dead or key in found.waiting:
        return False
    return key not in found.copies or key in found.stale


def _failed(request: SendBack, found: _Found) -> _Failed:
    failures = found.failures.get(request.message_key, 0)
    event = when_handed_back(failures, request.delay_level, request.group.retry, request.failures_max)
    return _Failed(request, found.origins[request.message_key], failures, event)


def _let_wait(tx: Transaction, group: Group, failed: Sequence[_Failed]) -> None:
    if not failed:
        return
    retry = group.retry
    waits_ms = (handed_back_interval_ms(each.failures, each.request.delay_level, retry) for each in failed)
    due_ms = [tx.now_ms + each for each in waits_ms]
    deliveries.add(tx, [_row(each, at_ms) for each, at_ms in zip(failed, due_ms, strict=True)])
    tx.expect(DUE, min(due_ms))
    moved = (
        Moved(each.request.message_key, State.INFLIGHT, each.failures + 1, each.request.client_id) for each in failed
    )
    record(tx, group, Event.RETRY, moved, REASONS[Event.RETRY])


def _row(failed: _Failed, due_ms: int) -> NewDelivery:
    """The delivery row. It has no message group: members keep the order."""
    request = failed.request
    return NewDelivery(
        request.group.group_id,
        request.message_key,
        request.topic.topic_id,
        target(Event.RETRY).value,
        attempt=failed.failures + 1,
        hold_id=NO_HOLD,
        visible_at_ms=due_ms,
        holder=Holder.PUSH.value,
        client_id=request.client_id,
    )


def _not_stored(request: SendBack) -> MessageNotFound:
    return MessageNotFound(
        f"queue {request.queue.number} of topic '{request.topic.name}' stores no message at offset {request.offset};"
        " send the queue and the offset that it was pulled from"
    )


_KEYS = rows_parameter("keys", "message_key")
# A message has at most one retry in a topic, which the index `message_retry_once` finds: its condition is that of
# `RETRIES`. An outer join, because a group without progress in the queue was never reset there.
_COPIES = (
    select(
        RETRIES.c.copy_of,
        RETRIES.c.message_key,
        RETRIES.c.properties,
        func.coalesce(REACHED.c.resets, 0).label("resets"),
    )
    .select_from(_KEYS)
    .join(
        RETRIES,
        and_(RETRIES.c.copy_of == _KEYS.c.message_key, RETRIES.c.topic_id == bindparam("retry_topic_id")),
    )
    .outerjoin(
        REACHED,
        and_(
            REACHED.c.group_id == bindparam("for_group"),
            REACHED.c.queue_id == _KEYS.c.message_key.op(">>")(KEY_SHIFT),
        ),
    )
)
