"""Receive: READY → INFLIGHT.

A search finds messages that a group may have now, and grants them. It reads these sources:

- messages that are READY again (`delivery.ready`): first, but at most half of the room if new messages wait, so that
  many failures do not block the rest,
- open message groups (`message_groups`): they leave a part of the room for new messages,
- new messages, after the group's progress (`scan`),
- of a topic of lite topics, the same three for each client (`lite`, `lite_scan`).

Receives with the same group, topic and filter search once, together, and share what is found in turn. Messages of one
message group go to one receive, in order, or wait.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, zip_longest

from popserver.catalog.progress import QueueToScan
from popserver.database.notifications import DUE
from popserver.database.rows import encode_rows
from popserver.delivery import deliveries, ready
from popserver.delivery.deliveries import NewDelivery
from popserver.delivery.history import Moved, record
from popserver.delivery.queues_to_read import OpenFrom, ReadyFrom
from popserver.delivery.ready import AgainRow
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction, carries_out
from popserver.fifo import moving_starts
from popserver.fifo.positions import MessageGroupKey
from popserver.filters import Filter
from popserver.messages.by_key import DEFERRED, Bodies, stored_messages
from popserver.model.errors import PopError
from popserver.model.handles import Receipt, encode_receipt
from popserver.model.message import Delivery
from popserver.model.names import SYSTEM_DERIVED
from popserver.model.states import Event, State, target
from popserver.model.topic import MessageType
from popserver.receiving import answers, lite_scan, message_groups, scan
from popserver.receiving.answers import HeldDelivery
from popserver.receiving.batch import (
    FAIR_EVERY,
    NEW_OF_ROOM,
    Candidate,
    Found,
    Grant,
    GroupRun,
    Portion,
    Receive,
    ReceiveBatch,
    Received,
    ReceiveSlot,
    half_of,
    load_again,
    saw,
    search_bounds,
)


@carries_out(Receive)
def receive(tx: Transaction, requests: Sequence[Receive]) -> list[Received | PopError]:
    """Grant messages to the requests."""
    if len(requests) == 1:
        return [*_receive_batch(tx, requests)]
    answers: dict[int, Received | PopError] = {}
    for indexes in _batches(requests):
        answers |= zip(indexes, _receive_batch(tx, [requests[index] for index in indexes]), strict=True)
    return [answers[index] for index in range(len(requests))]


def grant_to_attempt(tx: Transaction, request: Receive) -> tuple[list[tuple[Receipt, int]], bool]:
    """Grant messages to one request, without reading bodies or checking what its attempt id holds already.

    Returns the receipts and attempts in order, and `more` as in `Received`.
    """
    batch = receive_batch_of([request])._replace(bodies=Bodies.NONE)
    slots, left_over = _find_and_grant(tx, batch, [request])
    return [(each.receipt, each.found.attempt) for each in slots[0].grants], left_over or not slots[0].room


def _batches(requests: Sequence[Receive]) -> Iterator[list[int]]:
    """Indexes of requests with the same group, topic and filter, in steps of limited size."""
    alike: dict[tuple[int, int, Filter, bool], list[int]] = {}
    for index, each in enumerate(requests):
        alike.setdefault((each.group.group_id, each.topic.topic_id, each.wanted, each.is_paused), []).append(index)
    for indexes in alike.values():
        yield from _in_steps(indexes, [requests[index].batch_size for index in indexes])


def _in_steps(indexes: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    step: list[int] = []
    room = STEP_ROWS_MAX
    for index, size in zip(indexes, sizes, strict=True):
        if step and size > room:
            yield step
            step, room = [], STEP_ROWS_MAX
        step.append(index)
        room -= size
    yield step


def _receive_batch(tx: Transaction, several: Sequence[Receive]) -> list[Received]:
    batch = receive_batch_of(several)
    held = answers.repeated(tx, batch, several) if any(each.attempt_id for each in several) else {}
    # They have not searched for new messages: `more` passes their wake-ups on to other polls.
    repeated = {index: Received(_deliveries(tx, batch, each), more=True) for index, each in held.items()}
    others = [each for index, each in enumerate(several) if index not in repeated]
    served = [Received([], more=True) for _ in others]
    if others and tx.answer_bytes > 0:
        slots, left_over = _find_and_grant(tx, batch._replace(room=sum(each.batch_size for each in others)), others)
        bodies = [grant.found.row.body for slot in slots for grant in slot.grants]
        if any(body is DEFERRED for body in bodies):
            left_over = answers.keep_within_bytes(tx, slots) or left_over
        else:
            # All bodies are small: a few bytes over the limit do no harm.
            tx.answer_bytes -= sum(map(len, bodies))
        grants = (grant for slot in slots for grant in slot.grants)
        granted = [HeldDelivery(grant.found.row, grant.receipt, grant.found.attempt) for grant in grants]
        made = iter(_deliveries(tx, batch, granted))
        served = [Received([next(made) for _ in slot.grants], left_over or not slot.room) for slot in slots]
    for index in sorted(repeated):
        served.insert(index, repeated[index])
    return served


def receive_batch_of(several: Sequence[Receive]) -> ReceiveBatch:
    """One search for requests with the same group, topic and filter."""
    first = several[0]
    room = sum(request.batch_size for request in several)
    # The newest result covers at least as much as the older ones.
    judged = several[-1].judged
    topic, rotation = first.topic, first.rotation
    keeps_order = not topic.name.name.startswith(SYSTEM_DERIVED)
    return ReceiveBatch(
        group=first.group,
        topic=topic,
        wanted=first.wanted,
        room=room,
        rotation=rotation,
        keeps_order=keeps_order,
        takes_groups=keeps_order and MessageType.FIFO in topic.accepts,
        by_priority=MessageType.PRIORITY in topic.accepts and rotation % FAIR_EVERY != 0,
        names={"group_id": first.group.group_id, "topic_id": topic.topic_id, "ready_from": 0, "open_from": 0},
        judged=judged,
    )


def _find_and_grant(tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]) -> tuple[list[ReceiveSlot], bool]:
    """The grants of each request, and whether messages may be left."""
    if several[0].is_paused:
        return [ReceiveSlot(request, request.batch_size, []) for request in several], False
    if tx.has_other_writers:
        batch = batch._replace(names=batch.names | search_bounds(tx, batch))
    found = (lite_scan.find if MessageType.LITE in batch.topic.accepts else _find)(tx, batch, several)
    slots: list[ReceiveSlot] = []
    left: list[tuple[str, Candidate]] = []
    for portion in found.portions:
        of_portion, rest = _distribute(tx, portion)
        slots += of_portion
        left += rest
    if len(found.portions) > 1:
        slot_of = {id(slot.request): slot for slot in slots}
        slots = [slot_of[id(each)] for each in several]
    grants = [grant for slot in slots for grant in slot.grants]
    left_over = found.left_over or bool(left)
    if found.runs:
        granted = {grant.receipt.message_key for grant in grants}
        left_over = message_groups.advance(tx, found.runs, batch.group.group_id, granted) or left_over
        with_row = {run.member for run in found.runs if run.next_offset is not None}
        left = [(client_id, each) for client_id, each in left if each.member not in with_row]
    found.keep(left, grants)
    write_grants(tx, batch, grants)
    return slots, left_over or (not grants and found.is_hidden())


def _find(tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]) -> Found:
    """What all requests may have, of a topic without lite topics."""
    queues = scan.lock_queues(tx, batch)
    if queues and tx.has_other_writers:
        saw(tx, batch, ReadyFrom, queues[0].ready_since_ms)
        if batch.takes_groups:
            saw(tx, batch, OpenFrom, queues[0].open_since_ms)
            moving_starts.advance(tx, batch.topic.topic_id, queues)
    is_any_again = not queues or queues[0].ready_since_ms is not None
    # Messages without a message group that are READY again, the longest waiting first.
    ready_again = ready.lock(tx.conn, batch.names | {"limit": batch.room}) if is_any_again else []
    if ready_again and not queues:
        saw(tx, batch, ReadyFrom, ready_again[0].first_ms)
    keep, is_hidden = partial(scan.store_left_over, tx, batch), partial(_is_hidden, tx, batch)
    if ready_again or any(queue.open_since_ms is not None for queue in queues):
        candidates, runs, left_over = _old_and_new(
            tx, batch, queues, ready_again, heads_only=any(each.heads_only for each in several)
        )
        return Found([Portion("", several, candidates)], runs, left_over, keep, is_hidden)
    new, left_over = scan.read_on(tx, batch, queues, batch.room, beside_runs=False)
    return Found([Portion("", several, new)], [], left_over, keep, is_hidden)


def _old_and_new(
    tx: Transaction,
    batch: ReceiveBatch,
    queues: Sequence[QueueToScan],
    ready_again: Sequence[AgainRow],
    *,
    heads_only: bool,
) -> tuple[list[Candidate], Sequence[GroupRun], bool]:
    """Portion the room between messages that are READY again, open message groups and new messages."""
    new_waits = any(queue.next_offset < queue.end_offset for queue in queues)
    # For messages that are READY again and those of open message groups.
    before = half_of(batch.room, batch.rotation) if new_waits else batch.room
    kept = min(len(ready_again), before // 2)
    runs, is_all = message_groups.open_groups(
        tx,
        batch,
        queues,
        for_again=max(before - len(ready_again), (before + 1) // 2),
        # Even if the groups have many older messages, some room is kept for new ones.
        limit=batch.room - kept - (max(1, batch.room // NEW_OF_ROOM) if before < batch.room else 0),
        heads_only=heads_only,
    )
    in_runs = [each for run in runs for each in run.found]
    # Messages that were given back unused take room like new ones; otherwise they would become more and more.
    unused = sum(row.attempt == 0 for row in ready_again)
    reserved = len(in_runs) + max(kept, unused, min(len(ready_again), before - len(in_runs)))
    new, left_over = scan.read_on(tx, batch, queues, max(0, batch.room - reserved), beside_runs=bool(in_runs))
    # There may be fewer new messages than room for them, or the filter may refuse them.
    again = load_again(tx, batch, ready_again[: batch.room - len(in_runs) - len(new)])
    room = batch.room - len(in_runs) - len(new) - len(again)
    rest = [] if heads_only else message_groups.rest_of(tx, batch, runs, room)
    return _interleaved(again, [*in_runs, *rest, *new]), runs, left_over or not is_all


def _interleaved(again: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """First the messages that are READY again and in no message group, then the others.

    If some are large, failed messages and the rest alternate, because the bytes of an answer may be enough for only a
    few messages.
    """
    if not any(each.row.body is DEFERRED for each in again):
        return [*again, *others]
    failed = [each for each in again if each.attempt > 1]
    rest = [*(each for each in again if each.attempt == 1), *others]
    return [each for pair in zip_longest(failed, rest) for each in pair if each is not None]


def _distribute(tx: Transaction, portion: Portion) -> tuple[list[ReceiveSlot], list[tuple[str, Candidate]]]:
    """Deal the messages out: each request in turn gets as many as it asked for. Returns the grants, and what is left.

    Messages of one message group go to one request, in order. There are never more messages than room, so each message
    group's first message has a receive.
    """
    slots = [ReceiveSlot(request, request.batch_size, []) for request in portion.receives]
    owner: dict[MessageGroupKey, ReceiveSlot | None] = {}
    left: list[tuple[str, Candidate]] = []
    holds = iter(new_holds(len(portion.found)))
    turn = 0
    for each in portion.found:
        while turn < len(slots) - 1 and not slots[turn].room:
            turn += 1
        slot: ReceiveSlot | None = slots[turn]
        if each.member is not None:
            slot = owner.setdefault(each.member, slot)
            if slot is None or not slot.room:
                # Later messages of the group must wait for this one.
                owner[each.member] = None
                left.append((portion.client_id, each))
                continue
            if slot.request.heads_only:
                owner[each.member] = None
        assert slot is not None, "only a message of a message group may have no taker"
        request = slot.request
        ends_at_ms = tx.now_ms + request.invisible_ms
        held = Receipt(request.group.group_id, each.row.message_key, next(holds), ends_at_ms, each.member is not None)
        slot.grants.append(Grant(each, held, request))
        slot.room -= 1
    return slots, left


def new_holds(count: int) -> list[int]:
    """Random hold ids. They must be secret: a receipt handle proves a hold by its id."""
    # 63 bits: the databases' integers are signed.
    return [bits >> 1 for bits in struct.unpack(f"{count}Q", os.urandom(8 * count))]


def write_grants(tx: Transaction, batch: ReceiveBatch, grants: Sequence[Grant]) -> None:
    """Write the holds. A message that was granted before has a delivery row already."""
    again = [grant for grant in grants if grant.found.has_delivery]
    new = [grant for grant in grants if not grant.found.has_delivery]
    if again:
        held = [
            (
                *receipt[:4],
                request.holder.value,
                request.client_id,
                found.member and found.member.message_group,
                request.attempt_id,
            )
            for found, receipt, request in again
        ]
        deliveries.grant_again(tx, encode_rows(held))
    if new:
        topic_id = batch.topic.topic_id
        rows = [
            NewDelivery(
                receipt.group_id,
                receipt.message_key,
                topic_id,
                _GRANTED,
                1,
                receipt.hold_id,
                receipt.ends_at_ms,
                request.holder._value_,
                request.client_id,
                found.member and found.member.message_group,
                request.attempt_id,
            )
            for found, receipt, request in new
        ]
        deliveries.add(tx, rows)
    if grants:
        ends_at_ms = min(grant.receipt.ends_at_ms for grant in grants)
        tx.due[DUE] = min(ends_at_ms, tx.due.get(DUE, ends_at_ms))
    if Event.RECEIVE not in batch.group.history.kept:
        return
    for client_id, several in groupby(grants, key=lambda grant: grant.request.client_id):
        moved = (Moved(each.receipt.message_key, State.READY, each.found.attempt, client_id) for each in several)
        record(tx, batch.group, Event.RECEIVE, moved)


_GRANTED = target(Event.RECEIVE).value


def _deliveries(tx: Transaction, batch: ReceiveBatch, held: Sequence[HeldDelivery]) -> list[Delivery]:
    stored = stored_messages(tx.conn, (each.row for each in held), batch.topic)
    return [
        Delivery(found, encode_receipt(each.receipt, found.message.message_id), each.attempt, each.receipt.ends_at_ms)
        for each, found in zip(held, stored, strict=True)
    ]


def _is_hidden(tx: Transaction, batch: ReceiveBatch) -> bool:
    """Whether nothing was found only because another server has locked messages."""
    if not tx.has_other_writers:
        return False
    if scan.is_more(tx, batch):
        return True
    saw(tx, batch, ReadyFrom, None)
    if batch.takes_groups:
        saw(tx, batch, OpenFrom, None)
    return False
