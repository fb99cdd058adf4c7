"""Redrive: DLQ → READY, up to one step of dead letters, in the caller's transaction.

An unchanged message that goes back to a group of mode POP gets a delivery with the key of the dead copy. All others
become new messages: in the group's retry topic, with a delivery in mode POP; or in a target topic, for all groups. The
same transaction marks the dead letter and records the outcome, so that a repeated request finds it done.

A step locks rows and queues without waiting, after all other operations of its transaction. If another server has
locked one of them, the whole step is refused and the caller repeats it. It waits in one case only: another server
creates the group's retry topic at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from popserver.catalog import progress, queue_offsets
from popserver.catalog.topics import ensure_topic, find_topic, topics_by_id
from popserver.dead_letters.rules import RedriveItem, Repair, message_id_of, with_marks
from popserver.delivery import deliveries
from popserver.delivery.deliveries import NewDelivery
from popserver.delivery.history import Moved, record
from popserver.delivery.retry_topic import RetryOrigin, as_stored, marked, properties_of
from popserver.engine.transaction import Transaction
from popserver.filters import tag_hash
from popserver.messages import by_key, dead_letters, redrives, stored
from popserver.messages.by_key import HeadRow
from popserver.messages.dead_letters import DeadLetterRow
from popserver.messages.redrives import Redriven
from popserver.messages.spread import in_order_of_use, spread
from popserver.model.errors import TooManyRequests
from popserver.model.group import Group, Mode
from popserver.model.handles import NO_HOLD
from popserver.model.message import id_from_bytes, id_to_bytes
from popserver.model.names import retry_topic
from popserver.model.retry import Holder
from popserver.model.states import Event, State, target
from popserver.model.topic import SYSTEM_QUEUES, NewTopic, Topic, message_key, queue_of

NOT_DEAD = "it was no dead letter any more when its turn came"
NO_COPY = "its group's dead-letter topic is deleted, and the message with it"
NO_TOPIC = "the topic it came from is deleted; make a plan with a target topic"


class Plan(NamedTuple):
    """The plan of a redrive, and its target topic; None: only the group."""

    plan_id: str
    group: Group
    created_at_ms: int
    target: Topic | None


class FoundLetters(NamedTuple):
    """The locked dead letters by id, their copies by key, and the existing topics of their originals and copies."""

    letters: dict[int, DeadLetterRow]
    copies: dict[int, HeadRow]
    topics: dict[int, Topic]


class _Sent(NamedTuple):
    """A dead letter that is redriven, with its new key."""

    letter: DeadLetterRow
    order: RedriveItem
    key: int


def find(tx: Transaction, group: Group, ids: Sequence[int]) -> FoundLetters:
    """Lock the group's dead letters with these ids; unknown ids are left out. Raises `TooManyRequests`."""
    locked = {row.dead_letter_id: row for row in dead_letters.lock(tx, group.group_id, ids)}
    if len(locked) < len(ids):
        there = dead_letters.named(tx.conn, group.group_id, ids)
        if others := [each.dead_letter_id for each in there if each.dead_letter_id not in locked]:
            raise TooManyRequests(
                f"dead letter {others[0]} of group '{group.name}' is in use by another transaction; nothing was"
                " redriven, repeat the request"
            )
    copies = by_key.heads(tx.conn, [row.copy_key for row in locked.values()])
    letters = {dead_letter_id: row for dead_letter_id, row in locked.items() if row.copy_key in copies}
    topics = {row.origin_topic_id for row in letters.values()} | {row.topic_id for row in copies.values()}
    return FoundLetters(letters, copies, topics_by_id(tx.conn, topics))


def why_not(plan: Plan, found: FoundLetters, dead_letter_id: int) -> str | None:
    """The reason why this plan cannot redrive the dead letter; None if it can."""
    letter = found.letters.get(dead_letter_id)
    if letter is None or letter.redrive_state is not None:
        return NOT_DEAD
    if found.copies[letter.copy_key].topic_id not in found.topics:
        return NO_COPY
    if plan.target is None and letter.origin_topic_id not in found.topics:
        return NO_TOPIC
    return None


def send(tx: Transaction, plan: Plan, found: FoundLetters, orders: Sequence[RedriveItem]) -> None:
    """Redrive dead letters that passed `why_not`; the plan has a record of each. Raises `TooManyRequests`."""
    if not orders:
        return
    sent = _send_to_new_keys(tx, plan, found, orders)
    group = plan.group
    dead_letters.mark_redriven(tx, [each.letter.dead_letter_id for each in sent], plan.plan_id)
    redrives.note_redriven(tx, plan.plan_id, (_redriven(plan, each) for each in sent))
    if plan.target is not None:
        tx.ready_topics.add(plan.target.topic_id)
    for reason in sorted({each.order.reason for each in sent}):
        moved = (
            Moved(each.letter.origin_key, State.DLQ, each.letter.attempt, "")
            for each in sent
            if each.order.reason == reason
        )
        record(tx, group, Event.REDRIVE, moved, f"redriven by plan {plan.plan_id}" + (f": {reason}" if reason else ""))


def _send_to_new_keys(tx: Transaction, plan: Plan, found: FoundLetters, orders: Sequence[RedriveItem]) -> list[_Sent]:
    """Give each dead letter its new key, and its delivery if it needs one."""
    letters = [(found.letters[each.dead_letter_id], each) for each in orders]
    if plan.target is not None:
        return _make_messages(tx, plan, found, letters, plan.target)
    group, retries = plan.group, find_topic(tx.conn, retry_topic(plan.group.name))
    # A group that reads its retry topic finds new messages there: it must not get a delivery too.
    reads_retries = group.mode is Mode.PULL or (
        retries is not None and bool(progress.of_queues(tx.conn, group.group_id, [retries.queues[0].queue_id]))
    )
    # A group that consumes its own dead letters may have a delivery with the copy's key already.
    own_copies = progress.of_queues(tx.conn, group.group_id, (queue_of(letter.copy_key) for letter, _ in letters))
    unchanged = [
        _Sent(letter, order, letter.copy_key)
        for letter, order in letters
        if order.repair is None and not reads_retries and queue_of(letter.copy_key) not in own_copies
    ]
    unchanged_ids = {each.order.dead_letter_id for each in unchanged}
    rest = [each for each in letters if each[1].dead_letter_id not in unchanged_ids]
    made: list[_Sent] = []
    if rest:
        own = retries or ensure_topic(tx, NewTopic(retry_topic(group.name), SYSTEM_QUEUES))
        made = _make_messages(tx, plan, found, rest, own)
        tx.ready_topics.add(own.topic_id)
    sent = [*unchanged, *made]
    if not reads_retries:
        deliveries.add(tx, [_delivery(tx, group, each) for each in sent])
        for topic_id in {each.letter.origin_topic_id for each in sent}:
            tx.ready_topics.add(topic_id)
    return sent


def _make_messages(
    tx: Transaction, plan: Plan, found: FoundLetters, letters: Sequence[tuple[DeadLetterRow, RedriveItem]], topic: Topic
) -> list[_Sent]:
    """Append the new messages to queues of the topic that no other transaction has locked."""
    queues, enough = in_order_of_use(tx, topic, len(letters))
    free = queue_offsets.lock_available(tx.conn, [each.queue_id for each in queues], enough)
    if not free:
        raise TooManyRequests(
            f"other transactions use every queue of topic '{topic.name}'; nothing was redriven, repeat the request"
        )
    read = progress.of_queues(tx.conn, plan.group.group_id, (queue_of(letter.origin_key) for letter, _ in letters))
    resets = {queue_id: each.resets for queue_id, each in read.items()}
    sent: list[_Sent] = []
    for queue, run in spread(tx, topic, letters, free):
        taken = queue_offsets.take(tx, queue.queue_id, len(run))
        assert taken is not None, "its row is locked"
        first_key = message_key(queue.queue_id, taken.first)
        here = [_Sent(letter, order, key) for key, (letter, order) in enumerate(run, start=first_key)]
        copies = [_copy(plan, found, each, resets) for each in here]
        stored.copy_redriven(tx, topic.topic_id, taken.stored_at_ms, copies, anew=plan.target is not None)
        sent += here
    repairs = ((each.key, each.order.repair) for each in sent if each.order.repair is not None)
    stored.set_bodies(tx, ((key, repair.body) for key, repair in repairs if repair.body is not None))
    if plan.target is not None:
        stored.make_original(tx, ((each.key, _new_id(plan, each)) for each in sent))
    return sent


def _copy(plan: Plan, found: FoundLetters, sent: _Sent, resets: Mapping[int, int]) -> tuple[int | str | None, ...]:
    letter, repair = sent.letter, sent.order.repair or Repair()
    copy = found.copies[letter.copy_key]
    tag = copy.tag if repair.tag is None else repair.tag or None
    keys = copy.keys if repair.keys is None else as_stored(repair.keys)
    sent_with = properties_of(copy.properties) if repair.properties is None else dict(repair.properties)
    properties = with_marks(sent_with, plan.plan_id, id_from_bytes(copy.message_id))
    if plan.target is None:
        topic_name = found.topics[letter.origin_topic_id].name.name
        lineage = RetryOrigin(topic_name, 0, letter.origin_key, resets.get(queue_of(letter.origin_key), 0))
        properties = marked(properties, lineage)
    return letter.copy_key, sent.key, tag_hash(tag), tag, keys, as_stored(properties)


def _new_id(plan: Plan, sent: _Sent) -> bytes:
    return id_to_bytes(message_id_of(plan.plan_id, sent.letter.dead_letter_id, plan.created_at_ms))


def _redriven(plan: Plan, sent: _Sent) -> Redriven:
    new_id = None if plan.target is None else _new_id(plan, sent)
    return Redriven(sent.letter.dead_letter_id, sent.order.change, sent.order.reason, sent.key, new_id)


def _delivery(tx: Transaction, group: Group, sent: _Sent) -> NewDelivery:
    """The delivery of a redriven message: without a message group, and its attempts start anew."""
    return NewDelivery(
        group.group_id,
        sent.key,
        sent.letter.origin_topic_id,
        target(Event.REDRIVE).value,
        attempt=0,
        hold_id=NO_HOLD,
        visible_at_ms=tx.now_ms,
        holder=Holder.SIMPLE.value,
        client_id="",
    )
