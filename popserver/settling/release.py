"""Holds without a holder: they end soon, or at once. A client that comes back in time keeps its holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from popserver.catalog.groups import groups_by_id
from popserver.database.notifications import DUE
from popserver.delivery import deliveries, holds
from popserver.delivery.advance import advance_members
from popserver.delivery.deliveries import DeliveryRow
from popserver.delivery.history import record
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out
from popserver.fifo.positions import MessageGroupKey
from popserver.model.errors import PopError, TooManyRequests
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.retry import ORPHAN_DELAY_MS
from popserver.model.states import Event
from popserver.model.topic import queue_of
from popserver.settling.refusals import locks_in_order, moved


@dataclass(frozen=True, slots=True)
class AbandonHolds(Request[None]):
    """Holds whose holder has left: all push holds of a client, or the holds of these receipts."""

    phase: ClassVar = Phase.ABANDON_HOLDS
    client_id: str = ""
    receipts: Sequence[Receipt] = ()


@dataclass(frozen=True, slots=True)
class CancelDelivery(Request[None]):
    """Grants whose messages were not sent to any client."""

    phase: ClassVar = Phase.CANCEL_DELIVERY
    receipts: Sequence[Receipt]

    def locks(self) -> Iterable[Locks]:
        return locks_in_order(self.receipts)


@dataclass(frozen=True, slots=True)
class ExtendClientHolds(Request[None]):
    """A client that came back before its orphaned holds ended."""

    phase: ClassVar = Phase.EXTEND_CLIENT_HOLDS
    client_id: str
    until_ms: int


@carries_out(AbandonHolds)
def abandon_holds(tx: Transaction, requests: Sequence[AbandonHolds]) -> list[PopError | None]:
    """Let holds of any consumer end one second from now (protocol 5.1).

    Refused with `TooManyRequests` while a user's own transaction has locked one of them: the writer never waits for
    that. The caller repeats the request.
    """
    ends_at_ms = tx.now_ms + ORPHAN_DELAY_MS
    tx.expect(DUE, ends_at_ms)
    return [_abandon(tx, request, ends_at_ms) for request in requests]


@carries_out(CancelDelivery)
def cancel_delivery(tx: Transaction, requests: Sequence[CancelDelivery]) -> list[PopError | None]:
    """INFLIGHT → READY at once. The attempts do not count, because no consumer has seen these messages.

    Refused with `TooManyRequests` while a user's own transaction has locked one of them.
    """
    return [_cancel_delivery(tx, request.receipts) for request in requests]


@carries_out(ExtendClientHolds)
def extend_client_holds(tx: Transaction, requests: Sequence[ExtendClientHolds]) -> list[PopError | None]:
    """Give a client that came back those of its push holds that have not ended."""
    for request in requests:
        deliveries.extend_client(tx, request.client_id, request.until_ms)
    return [None] * len(requests)


def _abandon(tx: Transaction, request: AbandonHolds, ends_at_ms: int) -> PopError | None:
    if request.client_id and not deliveries.abandon_client(tx.conn, request.client_id, ends_at_ms):
        return TooManyRequests(
            f"a message held by client '{request.client_id}' is locked by another transaction; repeat the request"
        )
    if request.receipts and not deliveries.abandon(tx.conn, (each[:3] for each in request.receipts), ends_at_ms):
        return TooManyRequests(
            "a message whose client disconnected is locked by another transaction; repeat the request"
        )
    return None


def _cancel_delivery(tx: Transaction, receipts: Sequence[Receipt]) -> PopError | None:
    rows = holds.lock_granted(tx, receipts)
    groups = groups_by_id(tx.conn, {row.group_id for row in rows})
    for group_id, several in groupby(rows, key=lambda row: row.group_id):
        if group_id in groups:
            _give_back_unused(tx, groups[group_id].group, list(several))
    if len(rows) == len(receipts) or not holds.has_skipped_granted(tx, receipts):
        return None
    return TooManyRequests("a message that was not sent is locked by another transaction; repeat the request")


def _give_back_unused(tx: Transaction, group: Group, rows: Sequence[DeliveryRow]) -> None:
    deliveries.give_back_unused(tx, ((group.group_id, row.message_key, row.hold_id) for row in rows))
    record(tx, group, Event.GIVE_BACK, map(moved, rows))
    in_groups = {
        MessageGroupKey(row.topic_id, queue_of(row.message_key), row.message_group) for row in rows if row.message_group
    }
    if in_groups:
        advance_members(tx, group, in_groups)
    for topic_id in {row.topic_id for row in rows if not row.message_group}:
        tx.ready_topics.add(topic_id)
