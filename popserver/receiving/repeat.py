"""A repeated receive: the first answer was lost, and its messages are still held.

The client gives each receive an attempt id, which the granted holds keep (docs/design/0012). The repetition gets the
same messages with the same attempts and handles, without those that were acked or whose hold ended. Holds that ended
early because the answer was lost belong to the client again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from popserver.database.notifications import DUE
from popserver.delivery import deliveries, holds
from popserver.delivery.holds import AttemptRow
from popserver.engine.transaction import Transaction
from popserver.messages.by_key import MessageRow, by_keys
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.receiving.batch import ReceiveBatch


class HeldDelivery(NamedTuple):
    """A message as it was granted before."""

    row: MessageRow
    receipt: Receipt
    attempt: int


def held_by(tx: Transaction, batch: ReceiveBatch, attempt_ids: Iterable[str]) -> dict[str, list[HeldDelivery]]:
    """The messages held by these attempt ids in this group and topic. Attempt ids without holds are left out.

    A list is empty if its bodies do not fit into this transaction's answers.
    """
    rows = holds.by_attempts(tx, batch.group.group_id, batch.topic.topic_id, sorted(set(attempt_ids)))
    if not rows:
        return {}
    by_attempt: dict[str, list[AttemptRow]] = {}
    for row in rows:
        by_attempt.setdefault(row.attempt_id, []).append(row)
    held: dict[str, list[HeldDelivery]] = {}
    for attempt_id, several in by_attempt.items():
        held[attempt_id] = _loaded(tx, batch, several) if tx.answer_bytes > 0 else []
        tx.answer_bytes -= sum(len(each.row.body) for each in held[attempt_id])
    return held


def _loaded(tx: Transaction, batch: ReceiveBatch, rows: Sequence[AttemptRow]) -> list[HeldDelivery]:
    by_key = by_keys(tx.conn, [row.message_key for row in rows])
    return [HeldDelivery(by_key[row.message_key], _receipt(batch, row), row.attempt) for row in rows]


def take_back(
    tx: Transaction, held: Sequence[HeldDelivery], holder: Holder, client_id: str, until_ms: int
) -> list[HeldDelivery]:
    """Give the client its orphaned holds back, until `until_ms`. Other holds do not change.

    A hold that a user's own transaction has locked does not change either.
    """
    taken = deliveries.take_back(tx, (each.receipt[:3] for each in held), holder, client_id, until_ms)
    if taken:
        tx.expect(DUE, until_ms)
    return [
        each._replace(receipt=each.receipt._replace(ends_at_ms=until_ms)) if each.row.message_key in taken else each
        for each in held
    ]


def _receipt(batch: ReceiveBatch, row: AttemptRow) -> Receipt:
    in_order = row.message_group is not None
    return Receipt(batch.group.group_id, row.message_key, row.hold_id, row.visible_at_ms, in_order)
