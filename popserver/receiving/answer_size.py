"""The size of answers: a receive gets no more bodies than one answer, and one transaction, may have."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, select

from popserver.database.rows import RowQuery, encode_rows, rows_parameter
from popserver.database.schema import message
from popserver.engine.transaction import Transaction
from popserver.messages.read import BY_KEY, DEFERRED, MessageSize
from popserver.model.handles import Receipt
from popserver.receiving.grant import ReceiveSlot
from popserver.settling import release

# Bytes of bodies in one answer; a single message may be larger.
RECEIVE_BYTES_MAX = 4 * 1024 * 1024


def keep_within_bytes(tx: Transaction, slots: Sequence[ReceiveSlot]) -> bool:
    """Give back grants that exceed the size of an answer, and fetch the bodies of the rest.

    Returns whether any were given back. An answer has at least one message while this transaction may grant any.
    """
    excess: list[Receipt] = []
    sizes = _sizes(tx, slots)
    for slot in slots:
        kept = _fitting(tx, [sizes[grant.receipt.message_key] for grant in slot.grants])
        excess += [grant.receipt for grant in slot.grants[kept:]]
        del slot.grants[kept:]
    if excess:
        release.cancel_delivery(tx, [release.CancelDelivery(excess)])
    for slot in slots:
        _fetch_bodies(tx, slot)
    return bool(excess)


def _sizes(tx: Transaction, slots: Sequence[ReceiveSlot]) -> dict[int, int]:
    named = {"keys": encode_rows([(grant.receipt.message_key,) for slot in slots for grant in slot.grants])}
    return {row.message_key: row.size for row in _SIZES.rows(tx.conn, named)}


def _fitting(tx: Transaction, sizes: Sequence[int]) -> int:
    """How many of the first messages with these sizes (in bytes) fit into one answer."""
    room = RECEIVE_BYTES_MAX
    for kept, size in enumerate(sizes):
        if tx.answer_bytes <= 0 or (kept and size > min(room, tx.answer_bytes)):
            return kept
        room -= size
        tx.answer_bytes -= size
    return len(sizes)


def _fetch_bodies(tx: Transaction, slot: ReceiveSlot) -> None:
    large = [grant.receipt.message_key for grant in slot.grants if grant.found.row.body is DEFERRED]
    if not large:
        return
    rows = BY_KEY.rows(tx.conn, {"keys": encode_rows([(key,) for key in large])})
    bodies = {row.message_key: row.body for row in rows}
    slot.grants = [
        grant._replace(found=grant.found._replace(row=grant.found.row._replace(body=bodies[grant.receipt.message_key])))
        if grant.receipt.message_key in bodies
        else grant
        for grant in slot.grants
    ]


_KEYS = rows_parameter("keys", "message_key")
_SIZES = RowQuery(
    MessageSize,
    select(message.c.message_key, func.length(message.c.body).label("size")).where(
        message.c.message_key.in_(select(_KEYS.c.message_key))
    ),
)
