"""Receive: READY → INFLIGHT.

A search finds messages that a group may have now, and grants them. It reads these sources:

- messages that are READY again and in no message group (`delivery.ready`),
- open message groups (`message_groups`),
- new messages, after the group's progress (`scan`),
- of a topic of lite topics, the same three for each client (`lite`, `lite_scan`).

If new messages wait, messages that are READY again get at most half of a batch, so that many failures do not block the
others. Open message groups leave a minimum for both other sources. If all have plenty of messages, a batch of 32 has 20
of message groups (at most 8 of these were granted before), 4 new ones, and 8 that are READY again
(`batch.SourceShares`).

Receives with the same group, topic and filter share one search, and are filled one after the other. Messages of one
message group go to one receive, in order; those that it cannot take wait.
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
from popserver.delivery.ready import ReadyRow
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
from popserver.receiving.answers import GrantedMessage
from popserver.receiving.batch import (
    FAIR_EVERY,
    Candidate,
    Found,
    Grant,
    OpenGroup,
    Portion,
    Receive,
    ReceiveBatch,
    Received,
    ReceiveSlot,
    SourceShares,
    load_again,
    remember_first,
    search_bounds,
)


@carries_out(Receive)
def receive(tx: Transaction, requests: Sequence[Receive]) -> list[Received | PopError]:
    """Grant messages to the requests."""
    if len(requests) == 1:
        return [*_receive_batch(tx, requests)]
    results: dict[int, Received | PopError] = {}
    for indexes in _batches(requests):
        results |= zip(indexes, _receive_batch(tx, [requests[index] for index in indexes]), strict=True)
    return [results[index] for index in range(len(requests))]


def grant_to_attempt(tx: Transaction, request: Receive) -> tuple[list[tuple[Receipt, int]], bool]:
    """Grant messages to one request. Their bodies are not read, nor are messages that its attempt id holds already.

    Returns the receipts and attempts in order, and `more` as in `Received`.
    """
    batch = receive_batch_of([request])._replace(bodies=Bodies.NONE)
    slots, left_over, is_locked = _find_and_grant(tx, batch, [request])
    more = left_over or is_locked or not slots[0].capacity
    return [(each.receipt, each.found.attempt) for each in slots[0].grants], more


def _batches(requests: Sequence[Receive]) -> Iterator[list[int]]:
    """Indexes of requests with the same group, topic and filter, in steps of limited size."""
    alike: dict[tuple[int, int, Filter, bool], list[int]] = {}
    for index, each in enumerate(requests):
        alike.setdefault((each.group.group_id, each.topic.topic_id, each.wanted, each.is_paused), []).append(index)
    for indexes in alike.values():
        yield from _in_steps(indexes, [requests[index].batch_size for index in indexes])


def _in_steps(indexes: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    step: list[int] = []
    capacity = STEP_ROWS_MAX
    for index, size in zip(indexes, sizes, strict=True):
        if step and size > capacity:
            yield step
            step, capacity = [], STEP_ROWS_MAX
        step.append(index)
        capacity -= size
    yield step


def _receive_batch(tx: Transaction, several: Sequence[Receive]) -> list[Received]:
    batch = receive_batch_of(several)
    held = answers.repeated(tx, batch, several) if any(each.attempt_id for each in several) else {}
    # Repeated receives do not search for new messages: `more` passes their wake-ups on to other polls.
    repeated = {index: Received(_deliveries(tx, batch, each), more=True) for index, each in held.items()}
    others = [each for index, each in enumerate(several) if index not in repeated]
    served = [Received([], more=True) for _ in others]
    if others and tx.answer_bytes > 0:
        slots, left_over, is_locked = _find_and_grant(
            tx, batch._replace(capacity=sum(each.batch_size for each in others)), others
        )
        bodies = [grant.found.row.body for slot in slots for grant in slot.grants]
        if any(body is DEFERRED for body in bodies):
            left_over = answers.keep_within_bytes(tx, slots) or left_over
        else:
            # All bodies are small: a few bytes over the limit do no harm.
            tx.answer_bytes -= sum(map(len, bodies))
        grants = (grant for slot in slots for grant in slot.grants)
        granted = [GrantedMessage(grant.found.row, grant.receipt, grant.found.attempt) for grant in grants]
        made = iter(_deliveries(tx, batch, granted))
        more = left_over or is_locked
        served = [Received([next(made) for _ in slot.grants], more or not slot.capacity, is_locked) for slot in slots]
    for index in sorted(repeated):
        served.insert(index, repeated[index])
    return served


def receive_batch_of(several: Sequence[Receive]) -> ReceiveBatch:
    """One search for requests with the same group, topic and filter."""
    first = several[0]
    capacity = sum(request.batch_size for request in several)
    # The newest result covers at least as much as the older ones.
    judged = several[-1].judged
    # Searches are counted, and not their receives: of eight queues, searches for eight receives would begin at one.
    topic, rotation = first.topic, first.rotation // len(several) + first.searches
    keeps_order = not topic.name.name.startswith(SYSTEM_DERIVED)
    by_priority = MessageType.PRIORITY in topic.accepts
    if by_priority and rotation % FAIR_EVERY == FAIR_EVERY - 1:  # never the first search
        by_priority, rotation = False, rotation // FAIR_EVERY  # it begins at each priority in turn
    return ReceiveBatch(
        group=first.group,
        topic=topic,
        wanted=first.wanted,
        capacity=capacity,
        rotation=rotation,
        keeps_order=keeps_order,
        takes_groups=keeps_order and MessageType.FIFO in topic.accepts,
        by_priority=by_priority,
        parameters={"group_id": first.group.group_id, "topic_id": topic.topic_id, "ready_from": 0, "open_from": 0},
        judged=judged,
    )


def _find_and_grant(
    tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]
) -> tuple[list[ReceiveSlot], bool, bool]:
    """The grants of each request, whether messages may be left, and whether another server has locked all of them."""
    if several[0].is_paused:
        return [ReceiveSlot(request, request.batch_size, []) for request in several], False, False
    if tx.has_other_writers:
        batch = batch._replace(parameters=batch.parameters | search_bounds(tx, batch))
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
    if found.open_groups:
        granted = {grant.receipt.message_key for grant in grants}
        left_over = message_groups.advance(tx, found.open_groups, batch.group.group_id, granted) or left_over
        with_position = {open_group.group_key for open_group in found.open_groups if open_group.next_offset is not None}
        left = [(client_id, each) for client_id, each in left if each.group_key not in with_position]
    found.store_left_over(left, grants)
    write_grants(tx, batch, grants)
    return slots, left_over, not grants and not left_over and found.is_locked_elsewhere()


def _find(tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]) -> Found:
    """What the requests may get, in a topic without lite topics."""
    queues = scan.lock_queues(tx, batch)
    if queues and tx.has_other_writers:
        remember_first(tx, batch, ReadyFrom, queues[0].ready_since_ms)
        if batch.takes_groups:
            remember_first(tx, batch, OpenFrom, queues[0].open_since_ms)
            moving_starts.advance(tx, batch.topic.topic_id, queues)
    may_be_ready_again = not queues or queues[0].ready_since_ms is not None
    # Messages without a message group that are READY again, the longest waiting first.
    ready_again = ready.lock(tx.conn, batch.parameters | {"limit": batch.capacity}) if may_be_ready_again else []
    if ready_again and not queues:
        remember_first(tx, batch, ReadyFrom, ready_again[0].first_ms)
    store_left_over = partial(scan.store_left_over, tx, batch)
    is_locked_elsewhere = partial(_is_locked_elsewhere, tx, batch)
    if ready_again or any(queue.open_since_ms is not None for queue in queues):
        candidates, open_groups, left_over = _old_and_new(
            tx, batch, queues, ready_again, heads_only=any(each.heads_only for each in several)
        )
        return Found([Portion("", several, candidates)], open_groups, left_over, store_left_over, is_locked_elsewhere)
    new, left_over = scan.read_on(tx, batch, queues, batch.capacity, beside_open_groups=False)
    return Found([Portion("", several, new)], [], left_over, store_left_over, is_locked_elsewhere)


def _old_and_new(
    tx: Transaction,
    batch: ReceiveBatch,
    queues: Sequence[QueueToScan],
    ready_again: Sequence[ReadyRow],
    *,
    heads_only: bool,
) -> tuple[list[Candidate], Sequence[OpenGroup], bool]:
    """Messages of all three sources (`SourceShares`), the open message groups, and whether messages may be left."""
    new_waits = any(queue.next_offset < queue.end_offset for queue in queues)
    shares = SourceShares.of(batch.capacity, batch.rotation, len(ready_again), new_waits=new_waits)
    open_groups, is_all = message_groups.find(
        tx, batch, queues, repeats_max=shares.repeats_max, limit=shares.groups_max, heads_only=heads_only
    )
    in_groups = [each for open_group in open_groups for each in open_group.found]
    new_max = shares.new_max(len(in_groups), unused=sum(row.attempt == 0 for row in ready_again))
    new, left_over = scan.read_on(tx, batch, queues, new_max, beside_open_groups=bool(in_groups))
    # There may be fewer new messages than their share, or the filter may refuse them.
    again = load_again(tx, batch, ready_again[: batch.capacity - len(in_groups) - len(new)])
    capacity = batch.capacity - len(in_groups) - len(new) - len(again)
    rest = [] if heads_only else message_groups.rest_of(tx, batch, open_groups, capacity)
    return _interleaved(again, [*in_groups, *rest, *new]), open_groups, left_over or not is_all


def _interleaved(again: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """First the messages that are READY again and in no message group, then the others.

    If one of the former is large, failed messages and all others alternate, because the answer's limit of bytes may
    allow only a few messages.
    """
    if not any(each.row.body is DEFERRED for each in again):
        return [*again, *others]
    failed = [each for each in again if each.attempt > 1]
    rest = [*(each for each in again if each.attempt == 1), *others]
    return [each for pair in zip_longest(failed, rest) for each in pair if each is not None]


def _distribute(tx: Transaction, portion: Portion) -> tuple[list[ReceiveSlot], list[tuple[str, Candidate]]]:
    """Fill the requests one after the other. Returns the grants, and the messages that no request got.

    Messages of one message group go to one request, in order. There are never more messages than the requests want
    together, so the first message of each message group always gets a request.
    """
    slots = [ReceiveSlot(request, request.batch_size, []) for request in portion.receives]
    owner: dict[MessageGroupKey, ReceiveSlot | None] = {}
    left: list[tuple[str, Candidate]] = []
    holds = iter(new_holds(len(portion.found)))
    turn = 0
    for each in portion.found:
        while turn < len(slots) - 1 and not slots[turn].capacity:
            turn += 1
        slot: ReceiveSlot | None = slots[turn]
        if each.group_key is not None:
            slot = owner.setdefault(each.group_key, slot)
            if slot is None or not slot.capacity:
                # Later messages of the message group must wait for this one.
                owner[each.group_key] = None
                left.append((portion.client_id, each))
                continue
            if slot.request.heads_only:
                owner[each.group_key] = None
        assert slot is not None, "only a message of a message group may have no request"
        request = slot.request
        ends_at_ms = tx.now_ms + request.invisible_ms
        held = Receipt(
            request.group.group_id, each.row.message_key, next(holds), ends_at_ms, each.group_key is not None
        )
        slot.grants.append(Grant(each, held, request))
        slot.capacity -= 1
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
                found.group_key and found.group_key.message_group,
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
                found.group_key and found.group_key.message_group,
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


def _deliveries(tx: Transaction, batch: ReceiveBatch, held: Sequence[GrantedMessage]) -> list[Delivery]:
    stored = stored_messages(tx.conn, (each.row for each in held), batch.topic)
    return [
        Delivery(found, encode_receipt(each.receipt, found.message.message_id), each.attempt, each.receipt.ends_at_ms)
        for each, found in zip(held, stored, strict=True)
    ]


def _is_locked_elsewhere(tx: Transaction, batch: ReceiveBatch) -> bool:
    """Whether nothing was found because another server has locked messages of the group."""
    if not tx.has_other_writers:
        return False
    if scan.has_messages(tx, batch):
        return True
    remember_first(tx, batch, ReadyFrom, None)
    if batch.takes_groups:
        remember_first(tx, batch, OpenFrom, None)
    return False
