"""A delivery that is held: what its row tells, and the lock of its message group."""

from __future__ import annotations

from collections.abc import Iterable

from popserver.domain.delivery import State
from popserver.domain.receipt import Receipt
from popserver.domain.topic import queue_of
from popserver.store.history import Moved
from popserver.store.message_groups import Place, RunRow, locks_of
from popserver.store.schema import AnyRow, delivery
from popserver.store.transaction import Locks, Transaction


def locks_in_order(receipts: Iterable[Receipt]) -> Iterable[Locks]:
    """What to lock before these receipts are acted on: the places of messages of message groups."""
    places = {Place(each.group_id, queue_of(each.message_key)) for each in receipts if each.in_order}
    return locks_of(places) if places else ()


def is_held(tx: Transaction, row: AnyRow | RunRow) -> bool:
    return bool(row.state == State.INFLIGHT and row.visible_at_ms > tx.now_ms)


def tells_the_order(receipt: Receipt, row: AnyRow) -> bool:
    """Whether the handle is right about the message group; one that is not has come without the group's lock."""
    return receipt.in_order == (row.message_group is not None)


def moved(row: AnyRow) -> Moved:
    return Moved(row.message_key, State.INFLIGHT, row.attempt, row.client_id)


HELD_COLUMNS = (
    delivery.c.message_key,
    delivery.c.topic_id,
    delivery.c.hold_id,
    delivery.c.attempt,
    delivery.c.holder,
    delivery.c.client_id,
    delivery.c.message_group,
)
