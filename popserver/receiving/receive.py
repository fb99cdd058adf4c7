"""Receive: READY → INFLIGHT.

Messages come from three places: messages that are READY again, open message groups, and new messages after the group's
progress. Messages that are READY again come first, but take at most half of the room if new messages wait, so that
many failures do not block the rest. Open message groups leave at least an eighth of the room for new messages.

Receives with the same group, topic and filter search once, together, and share what is found in turn. Messages of one
message group go to one receive, in order, or wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from popserver.catalog.progress import QueueToScan
from popserver.delivery import ready
from popserver.delivery.places import OpenFrom, ReadyFrom, ReadySearch
from popserver.delivery.ready import AgainRow
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction, carries_out
from popserver.fifo import moving_starts
from popserver.fifo.positions import MessageGroupKey
from popserver.filters import Filter
from popserver.messages.by_key import DEFERRED, Bodies, by_keys, stored_messages
from popserver.model import handles
from popserver.model.errors import PopError
from popserver.model.handles import Receipt
from popserver.model.message import Delivery, StoredMessage
from popserver.model.names import SYSTEM_DERIVED
from popserver.model.topic import MessageType
from popserver.receiving import lite, lite_scan, message_groups, repeat, scan
from popserver.receiving.batch import Candidate, ReceiveBatch
from popserver.receiving.grant import Grant, Receive, Received, ReceiveSlot, keep_within_bytes, new_holds, write_grants
from popserver.receiving.message_groups import GroupRun
from popserver.receiving.repeat import HeldDelivery

# One of this many searches of a topic with priorities ignores them, so that urgent messages do not starve the rest.
FAIR_EVERY = 8
_NEW_OF_ROOM = 8


class AttemptResult(NamedTuple):
    """The granted messages as (receipt, attempt), in order. `more` as in `Received`."""

    grants: list[tuple[Receipt, int]]
    more: bool


class _Search(NamedTuple):
    """What was found, the open message groups that are part of it, and whether messages may be left."""

    found: Sequence[Candidate]
    runs: Sequence[GroupRun]
    left_over: bool


@carries_out(Receive)
def receive(tx: Transaction, requests: Sequence[Receive]) -> list[Received | PopError]:
    """Grant messages to the requests."""
    if len(requests) == 1:
        return [*_receive_batch(tx, requests)]
    answers: dict[int, Received | PopError] = {}
    for indexes in _batches(requests):
        answers |= zip(indexes, _receive_batch(tx, [requests[index] for index in indexes]), strict=True)
    return [answers[index] for index in range(len(requests))]


def grant_to_attempt(tx: Transaction, request: Receive) -> AttemptResult:
    """Grant messages to one request, without a look at what its attempt id holds and without reading bodies."""
    batch = receive_batch_of([request])._replace(bodies=Bodies.NONE)
    slots, left_over = _find_and_grant(tx, batch, [request])
    return AttemptResult(
        [(each.receipt, each.found.attempt) for each in slots[0].grants], left_over or not slots[0].room
    )


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
    if not any(each.attempt_id for each in several):
        return _serve(tx, batch, several)
    repeated = _repeated(tx, batch, several)
    others = [each for index, each in enumerate(several) if index not in repeated]
    served = iter(_serve(tx, batch, others) if others else ())
    return [repeated[index] if index in repeated else next(served) for index in range(len(several))]


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


def _repeated(tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]) -> dict[int, Received]:
    """The answers to repeated receives, by the index of the request."""
    by_attempt = {index: each.attempt_id for index, each in enumerate(several) if each.attempt_id}
    held = repeat.held_by(tx, batch, by_attempt.values())
    answers: dict[int, Received] = {}
    for index, attempt_id in by_attempt.items():
        if attempt_id in held:
            if not held[attempt_id]:
                answers[index] = Received([], more=True)
                continue
            one, until_ms = several[index], tx.now_ms + several[index].invisible_ms
            held[attempt_id] = repeat.take_back(tx, held[attempt_id], one.holder, one.client_id, until_ms)
            answers[index] = _again(tx, batch, held[attempt_id])
    return answers


def _again(tx: Transaction, batch: ReceiveBatch, held: list[HeldDelivery]) -> Received:
    stored = stored_messages(tx.conn, (each.row for each in held), batch.topic)
    deliveries = [_delivery(each.receipt, message, each.attempt) for message, each in zip(stored, held, strict=True)]
    # It has not searched for new messages: `more` passes its wake-up on to another poll.
    return Received(deliveries, more=True)


def _serve(tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]) -> list[Received]:
    batch = batch._replace(room=sum(request.batch_size for request in several))
    if tx.answer_bytes <= 0:
        return [Received([], more=True) for _ in several]
    slots, left_over = _find_and_grant(tx, batch, several)
    bodies = [grant.found.row.body for slot in slots for grant in slot.grants]
    if any(body is DEFERRED for body in bodies):
        left_over = keep_within_bytes(tx, slots) or left_over
    else:
        # All bodies are small: a few bytes over the limit do no harm.
        tx.answer_bytes -= sum(map(len, bodies))
    return _answers(tx, batch, slots, left_over=left_over)


def _find_and_grant(tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]) -> tuple[list[ReceiveSlot], bool]:
    """The grants of each request, and whether messages may be left."""
    if several[0].is_paused:
        return [ReceiveSlot(request, request.batch_size, []) for request in several], False
    if MessageType.LITE in batch.topic.accepts:
        return _find_and_grant_lite(tx, batch, several)
    if tx.has_other_writers:
        batch = batch._replace(names=batch.names | _search_from(tx, batch))
    places = scan.lock_places(tx, batch)
    if places and tx.has_other_writers:
        _saw(tx, batch, ReadyFrom, places[0].ready_since_ms)
        if batch.takes_groups:
            _saw(tx, batch, OpenFrom, places[0].open_since_ms)
            moving_starts.advance(tx, batch.topic.topic_id, places)
    is_any_again = not places or places[0].ready_since_ms is not None
    # Messages without a message group that are READY again, the longest waiting first.
    names = batch.names | {"limit": batch.room}
    ready_again = ready.lock(tx.conn, names) if is_any_again else []
    if ready_again and not places and tx.has_other_writers:
        _saw(tx, batch, ReadyFrom, ready_again[0].first_ms)
    if ready_again or any(place.open_since_ms is not None for place in places):
        search = _old_and_new(tx, batch, places, ready_again, heads_only=any(each.heads_only for each in several))
    else:
        new = scan.read_on(tx, batch, places, batch.room, beside_runs=False)
        search = _Search(new.found, [], new.left_over)
    slots, left = _distribute(tx, several, search.found)
    grants = [grant for slot in slots for grant in slot.grants]
    left_over = search.left_over or bool(left)
    if search.runs:
        granted = {grant.receipt.message_key for grant in grants}
        left_over = message_groups.advance(tx, search.runs, batch.group.group_id, granted) or left_over
    if left:
        # Not those message groups that have a row.
        members = {run.member for run in search.runs if run.next_offset is not None}
        scan.store_left_over(tx, batch, [each for each in left if each.member not in members])
    write_grants(tx, batch, grants)
    return slots, left_over or (not grants and _is_hidden(tx, batch))


def _find_and_grant_lite(
    tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]
) -> tuple[list[ReceiveSlot], bool]:
    """The same for a topic of lite topics."""
    clients = lite.clients_of(batch, several)
    found = lite.find(tx, batch, clients)
    fresh = lite_scan.read_on(tx, batch, clients, found)
    slots: dict[int, ReceiveSlot] = {}
    left: list[tuple[str, Candidate]] = []
    for client_id, receives in clients.items():
        again = _load(tx, batch, found.again.get(client_id, ()))
        in_runs = [each for run in found.runs.get(client_id, ()) for each in run.found]
        theirs = [*again, *in_runs, *fresh.found.get(client_id, ())]
        of_client, rest = _distribute(tx, receives, theirs)
        slots |= {id(each): slot for each, slot in zip(receives, of_client, strict=True)}
        left += ((client_id, each) for each in rest)
    in_order = [slots[id(each)] for each in several]
    grants = [grant for slot in in_order for grant in slot.grants]
    runs = [run for several_runs in found.runs.values() for run in several_runs]
    granted = {grant.receipt.message_key for grant in grants}
    left_over = message_groups.advance(tx, runs, batch.group.group_id, granted) or found.left_over or fresh.left_over
    with_row = {run.member for run in runs if run.next_offset is not None}
    without_row = [(client_id, each) for client_id, each in left if each.member not in with_row]
    lite_scan.store_waiting(tx, batch, fresh, without_row, {grant.found.member for grant in grants})
    write_grants(tx, batch, grants)
    return in_order, left_over or bool(left)


def _old_and_new(
    tx: Transaction,
    batch: ReceiveBatch,
    places: Sequence[QueueToScan],
    ready_again: Sequence[AgainRow],
    *,
    heads_only: bool,
) -> _Search:
    """Share the room between messages that are READY again, open message groups and new messages."""
    new_waits = any(place.next_offset < place.end_offset for place in places)
    before = _room_for_old(batch, new_waits=new_waits)
    kept = min(len(ready_again), before // 2)
    runs, is_all = message_groups.open_groups(
        tx,
        batch,
        places,
        for_again=max(before - len(ready_again), (before + 1) // 2),
        # Even if the groups have many older messages, some room is kept for new ones.
        limit=batch.room - kept - (max(1, batch.room // _NEW_OF_ROOM) if before < batch.room else 0),
        heads_only=heads_only,
    )
    in_runs = [each for run in runs for each in run.found]
    # Messages that were given back unused take room like new ones; otherwise they would become more and more.
    unused = sum(row.attempt == 0 for row in ready_again)
    reserved = len(in_runs) + max(kept, unused, min(len(ready_again), before - len(in_runs)))
    new = scan.read_on(tx, batch, places, max(0, batch.room - reserved), beside_runs=bool(in_runs))
    # There may be fewer new messages than room for them, or the filter may refuse them.
    again = _load(tx, batch, ready_again[: batch.room - len(in_runs) - len(new.found)])
    room = batch.room - len(in_runs) - len(new.found) - len(again)
    rest = [] if heads_only else message_groups.rest_of(tx, batch, runs, room)
    return _Search(_interleaved(again, [*in_runs, *rest, *new.found]), runs, new.left_over or not is_all)


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


def _room_for_old(batch: ReceiveBatch, *, new_waits: bool) -> int:
    """How much of the room may go to messages that are READY again or in open message groups."""
    if not new_waits:
        return batch.room
    # Room for one message cannot be halved: alternate.
    return batch.room // 2 or batch.rotation % 2


def _load(tx: Transaction, batch: ReceiveBatch, ready_again: Sequence[AgainRow | lite.RedrivenRow]) -> list[Candidate]:
    attempts = {row.message_key: row.attempt + 1 for row in ready_again}
    found = by_keys(tx.conn, attempts, batch.bodies)
    return [Candidate(row, attempts[key], has_delivery=True) for key, row in found.items()]


def _distribute(
    tx: Transaction, several: Sequence[Receive], found: Sequence[Candidate]
) -> tuple[list[ReceiveSlot], list[Candidate]]:
    """Deal the messages out: each request in turn gets as many as it asked for. Returns the grants, and what is left.

    Messages of one message group go to one request, in order. There are never more messages than room, so each message
    group's first message finds a place.
    """
    slots = [ReceiveSlot(request, request.batch_size, []) for request in several]
    owner: dict[MessageGroupKey, ReceiveSlot | None] = {}
    left: list[Candidate] = []
    holds = iter(new_holds(len(found)))
    turn = 0
    for each in found:
        while turn < len(slots) - 1 and not slots[turn].room:
            turn += 1
        slot: ReceiveSlot | None = slots[turn]
        if each.member is not None:
            slot = owner.setdefault(each.member, slot)
            if slot is None or not slot.room:
                # Later messages of the group must wait for this one.
                owner[each.member] = None
                left.append(each)
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


def _is_hidden(tx: Transaction, batch: ReceiveBatch) -> bool:
    """Whether nothing was found only because another server has locked messages."""
    if not tx.has_other_writers:
        return False
    if scan.is_more(tx, batch):
        return True
    _saw(tx, batch, ReadyFrom, None)
    if batch.takes_groups:
        _saw(tx, batch, OpenFrom, None)
    return False


def _search_from(tx: Transaction, batch: ReceiveBatch) -> dict[str, int]:
    """From when on to look for messages that are READY again, and for open message groups. SQLite's indexes have no
    entries of the past."""
    search = ReadySearch(batch.group.group_id, batch.topic.topic_id)
    return {
        "ready_from": tx.remembered(ReadyFrom).of(search, tx.now_ms),
        "open_from": tx.remembered(OpenFrom).of(search, tx.now_ms) if batch.takes_groups else 0,
    }


def _saw(tx: Transaction, batch: ReceiveBatch, kind: type[ReadyFrom | OpenFrom], first_ms: int | None) -> None:
    """Remember which one was first, once the transaction is committed: it may have granted it."""
    search = ReadySearch(batch.group.group_id, batch.topic.topic_id)
    tx.after_commit.append(tx.remembered(kind).saw(search, first_ms, tx.now_ms))


def _answers(tx: Transaction, batch: ReceiveBatch, slots: Sequence[ReceiveSlot], *, left_over: bool) -> list[Received]:
    rows = [grant.found.row for slot in slots for grant in slot.grants]
    stored = iter(stored_messages(tx.conn, rows, batch.topic))
    return [
        Received(
            [_delivery(grant.receipt, next(stored), grant.found.attempt) for grant in slot.grants],
            left_over or not slot.room,
        )
        for slot in slots
    ]


def _delivery(held: Receipt, stored: StoredMessage, attempt: int) -> Delivery:
    return Delivery(stored, handles.encode_receipt(held, stored.message.message_id), attempt, held.ends_at_ms)
