"""A delivery that is held: what its row tells, and the lock of its message group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from popserver.domain.delivery import State
from popserver.domain.receipt import Receipt
from popserver.domain.topic import queue_of
from popserver.store.history import Moved
from popserver.store.message_groups import Place, RunRow, locks_of
from popserver.store.schema import delivery
from popserver.store.transaction import Locks, Transaction


class HeldRow(NamedTuple):
    """A delivery that is held."""

    message_key: int
    topic_id: int
    hold_id: int
    attempt: int
    holder: str
    client_id: str
    message_group: str | None


class GrantedRow(NamedTuple):
    """A delivery that was just granted."""

    group_id: int
    message_key: int
    topic_id: int
    hold_id: int
    attempt: int
    client_id: str
    message_group: str | None


class DeliveryRow(NamedTuple):
    """What a delivery's row says of its state."""

    state: str
    attempt: int
    hold_id: int
    visible_at_ms: int
    message_group: str | None


def locks_in_order(receipts: Iterable[Receipt]) -> Iterable[Locks]:
    """What to lock before these receipts are acted on: the places of messages of message groups."""
    places = {Place(each.group_id, queue_of(each.message_key)) for each in receipts if each.in_order}
    return locks_of(places) if places else ()


def is_held(tx: Transaction, row: DeliveryRow | RunRow) -> bool:
    return bool(row.state == State.INFLIGHT and row.visible_at_ms > tx.now_ms)


def tells_the_order(receipt: Receipt, row: HeldRow | DeliveryRow) -> bool:
    """Whether the handle is right about the message group; one that is not has come without the group's lock."""
    return receipt.in_order == (row.message_group is not None)


def moved(row: HeldRow | GrantedRow) -> Moved:
    return Moved(row.message_key, State.INFLIGHT, row.attempt, row.client_id)


HELD_COLUMNS = [delivery.c[name] for name in HeldRow._fields]
