"""Answers of receives: the messages that a repeated receive holds already, and the limit of bytes.

A client that lost an answer repeats the receive with its attempt id, which the granted holds keep (docs/design/0012).
The repeated receive gets the same messages with the same attempts and handles, without those that were acked or whose
hold ended. Holds that ended early because the answer was lost belong to the client again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from popserver.database.notifications import DUE
from popserver.delivery import deliveries, holds
from popserver.delivery.holds import AttemptRow
from popserver.engine.transaction import Transaction
from popserver.messages import by_key
from popserver.messages.by_key import DEFERRED, MessageRow, by_keys
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.receiving.batch import Receive, ReceiveBatch, ReceiveSlot
from popserver.settling import release

# Bytes of bodies in one answer; a single message may be larger.
RECEIVE_BYTES_MAX = 4 * 1024 * 1024


class GrantedMessage(NamedTuple):
    """A message that a receive is answered with: granted now, or by the first receive of a repeated one."""

    row: MessageRow
    receipt: Receipt
    attempt: int


def repeated(tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]) -> dict[int, Sequence[GrantedMessage]]:
    """The messages that these receives hold already, by the index of the receive. A receive without holds is left out.

    A list is empty if the answers of this transaction have no bytes left.
    """
    attempt_ids = {index: each.attempt_id for index, each in enumerate(several) if each.attempt_id}
    rows = holds.by_attempts(tx, batch.group.group_id, batch.topic.topic_id, sorted(set(attempt_ids.values())))
    by_attempt: dict[str, list[AttemptRow]] = {}
    for row in rows:
        by_attempt.setdefault(row.attempt_id, []).append(row)
    held: dict[str, Sequence[GrantedMessage]] = {}
    for attempt_id, of_attempt in by_attempt.items():
        held[attempt_id] = _loaded(tx, batch, of_attempt) if tx.answer_bytes > 0 else []
        tx.answer_bytes -= sum(len(each.row.body) for each in held[attempt_id])
    found: dict[int, Sequence[GrantedMessage]] = {}
    for index, attempt_id in attempt_ids.items():
        if attempt_id in held:
            if held[attempt_id]:
                one = several[index]
                until_ms = tx.now_ms + one.invisible_ms
                held[attempt_id] = _take_back(tx, held[attempt_id], one.holder, one.client_id, until_ms)
            found[index] = held[attempt_id]
    return found


def _loaded(tx: Transaction, batch: ReceiveBatch, rows: Sequence[AttemptRow]) -> list[GrantedMessage]:
    found = by_keys(tx.conn, [row.message_key for row in rows])
    group_id = batch.group.group_id
    return [
        GrantedMessage(
            found[row.message_key],
            Receipt(group_id, row.message_key, row.hold_id, row.visible_at_ms, row.message_group is not None),
            row.attempt,
        )
        for row in rows
    ]


def _take_back(
    tx: Transaction, held: Sequence[GrantedMessage], holder: Holder, client_id: str, until_ms: int
) -> list[GrantedMessage]:
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


def keep_within_bytes(tx: Transaction, slots: Sequence[ReceiveSlot]) -> bool:
    """Cancel grants that exceed the size of an answer, and fetch the bodies of the others.

    Returns whether any were cancelled. An answer has at least one message while this transaction has bytes left.
    """
    excess: list[Receipt] = []
    sizes = by_key.sizes(tx.conn, [grant.receipt.message_key for slot in slots for grant in slot.grants])
    for slot in slots:
        kept = _fitting(tx, [sizes[grant.receipt.message_key] for grant in slot.grants])
        excess += [grant.receipt for grant in slot.grants[kept:]]
        del slot.grants[kept:]
    if excess:
        release.cancel_delivery(tx, [release.CancelDelivery(excess)])
    for slot in slots:
        _fetch_bodies(tx, slot)
    return bool(excess)


def _fitting(tx: Transaction, sizes: Sequence[int]) -> int:
    """How many of the first messages with these sizes (in bytes) fit into one answer."""
    bytes_left = RECEIVE_BYTES_MAX
    for kept, size in enumerate(sizes):
        if tx.answer_bytes <= 0 or (kept and size > min(bytes_left, tx.answer_bytes)):
            return kept
        bytes_left -= size
        tx.answer_bytes -= size
    return len(sizes)


def _fetch_bodies(tx: Transaction, slot: ReceiveSlot) -> None:
    large = [grant.receipt.message_key for grant in slot.grants if grant.found.row.body is DEFERRED]
    if not large:
        return
    bodies = {key: row.body for key, row in by_keys(tx.conn, large).items()}
    slot.grants = [
        grant._replace(found=grant.found._replace(row=grant.found.row._replace(body=bodies[grant.receipt.message_key])))
        if grant.receipt.message_key in bodies
        else grant
        for grant in slot.grants
    ]
