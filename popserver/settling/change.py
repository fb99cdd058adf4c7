"""Change one hold: its invisible duration, give the message back, or forward it to the dead-letter topic."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from popserver.database.notifications import DUE
from popserver.delivery import deliveries, holds
from popserver.delivery.advance import advance_members
from popserver.delivery.dead_letter_topic import DeadLetterCandidate, move_to_dead_letters
from popserver.delivery.deliveries import DeliveryRow
from popserver.delivery.history import record
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out_each
from popserver.fifo.positions import MessageGroupKey
from popserver.model.errors import PopError
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.retry import SUSPENDED, Holder, interval_ms, when_visibility_changes
from popserver.model.states import ACKED, Event, State, target
from popserver.model.topic import queue_of
from popserver.settling.refusals import has_same_order, locks_in_order, moved, refusal, state_of


@dataclass(frozen=True, slots=True)
class ChangeInvisible(Request[Receipt]):
    """Restart a hold for `duration_ms` from now. `give_back` ends the hold instead; its attempt does not count.

    `reason`: why the attempt failed, as its consumer reports; may be empty.
    `suspend`: the consumer stops this lite topic for `duration_ms`; the attempt does not count either.
    """

    phase: ClassVar = Phase.CHANGE_INVISIBLE
    group: Group
    receipt: Receipt
    duration_ms: int
    give_back: bool = False
    reason: str = ""
    suspend: bool = False

    def locks(self) -> Iterable[Locks]:
        return locks_in_order([self.receipt])


@dataclass(frozen=True, slots=True)
class Forward(Request[None]):
    """A message that its holder gives up; `reason`: why, as the holder reports."""

    phase: ClassVar = Phase.FORWARD
    group: Group
    receipt: Receipt
    reason: str = ""

    def locks(self) -> Iterable[Locks]:
        return locks_in_order([self.receipt])


@carries_out_each(ChangeInvisible)
def change_invisible(tx: Transaction, request: ChangeInvisible) -> Receipt | PopError:
    """Restart each hold's time; the answer is the receipt that now counts."""
    group, old = request.group, request.receipt
    successor = _successor(old.hold_id, request.duration_ms)
    row = _held(tx, old)
    if row is None:
        return _repeated(tx, old, successor) or refusal(tx, group, old)
    by_itself = when_visibility_changes(Holder(row.holder), row.attempt, group.retry)
    event = Event.GIVE_BACK if request.give_back else by_itself
    if request.suspend and event is Event.EXHAUST:
        event = Event.RETRY
    if event is Event.EXHAUST:
        why = _with_reason("failed, and no attempt remains", request.reason)
        move_to_dead_letters(tx, group, [_candidate(row)], event, why)
        _advance_groups_after(tx, group, row)
        return old
    end_ms = tx.now_ms + _wait_ms(event, request, row)
    deliveries.change(
        tx,
        old[:3],
        state=target(event),
        attempt=_attempt_after(event, request, row),
        uncounted=int(event is Event.GIVE_BACK or request.suspend),
        successor=successor,
        until_ms=end_ms,
    )
    why = request.reason or (SUSPENDED if request.suspend else "")
    record(tx, group, event, [moved(row)], why if event is Event.RETRY else "")
    if event is Event.GIVE_BACK:
        _advance_groups_after(tx, group, row)
        if row.message_group is None:
            tx.ready_topics.add(row.topic_id)
    else:
        tx.expect(DUE, end_ms)
    return old._replace(hold_id=successor, ends_at_ms=end_ms)


def _attempt_after(event: Event, request: ChangeInvisible, held: DeliveryRow) -> int:
    if event is Event.GIVE_BACK:
        return held.attempt - 1
    # A simple consumer may suspend the lite topic for longer, with the handle that it got when it suspended it.
    return max(0, held.attempt - 1) if request.suspend else held.attempt


def _wait_ms(event: Event, request: ChangeInvisible, held: DeliveryRow) -> int:
    if event is Event.GIVE_BACK:
        return 0
    if request.suspend:
        return request.duration_ms
    if event is Event.RETRY and held.message_group is not None:
        # A fixed interval, whatever the client asks for: the message group waits during it (requirement L6).
        return interval_ms(request.group.retry, held.attempt, in_order=True)
    if event is Event.RETRY and not request.duration_ms:
        # The Node push client sends no duration; without this interval it would use up all attempts at once.
        return interval_ms(request.group.retry, held.attempt)
    return request.duration_ms


def _repeated(tx: Transaction, old: Receipt, successor: int) -> Receipt | None:
    """The answer to a repeated request, whose first answer was lost; None if that answer is not valid any more."""
    row = holds.of_message(tx.conn, old.group_id, old.message_key)
    if row is None or row.hold_id != successor or row.state in ACKED:
        return None
    return old._replace(hold_id=successor, ends_at_ms=row.visible_at_ms)


def _successor(hold_id: int, duration_ms: int) -> int:
    """The next hold id: as secret as the old one, and the same if the request is repeated."""
    seed = hold_id.to_bytes(8, "big", signed=True) + duration_ms.to_bytes(8, "big", signed=True)
    return int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big") >> 1


@carries_out_each(Forward)
def forward(tx: Transaction, request: Forward) -> PopError | None:
    """INFLIGHT → DLQ. No error if the message is a dead letter or committed already."""
    row = _held(tx, request.receipt)
    if row is not None:
        why = _with_reason("forwarded by its consumer", request.reason)
        move_to_dead_letters(tx, request.group, [_candidate(row)], Event.FORWARD_TO_DLQ, why)
        _advance_groups_after(tx, request.group, row)
        return None
    state = state_of(tx, request.receipt)
    if state in {State.DLQ, State.COMMIT}:
        return None
    return refusal(tx, request.group, request.receipt)


def _with_reason(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what


def _held(tx: Transaction, receipt: Receipt) -> DeliveryRow | None:
    """Lock and return the delivery if the receipt is its current hold and no other transaction has locked it."""
    row = holds.lock(tx, receipt)
    return row if row is not None and has_same_order(receipt, row) else None


def _advance_groups_after(tx: Transaction, group: Group, held: DeliveryRow) -> None:
    """Advance the message group of a message that ended."""
    if held.message_group is None:
        return
    advance_members(tx, group, [MessageGroupKey(held.topic_id, queue_of(held.message_key), held.message_group)])


def _candidate(row: DeliveryRow) -> DeadLetterCandidate:
    return DeadLetterCandidate(row.message_key, row.topic_id, row.attempt, row.client_id)
