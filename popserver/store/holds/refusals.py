"""Why a receipt holds nothing: looked up only once no row came back."""

from __future__ import annotations

from sqlalchemy import bindparam, select

from popserver.domain.delivery import State
from popserver.domain.errors import InvalidReceiptHandle, PopError, TooManyRequests
from popserver.domain.group import Group
from popserver.domain.receipt import Receipt
from popserver.domain.topic import offset_of, queue_of
from popserver.store.holds.held import is_held, tells_the_order
from popserver.store.schema import AnyRow, dead_letter, delivery, message, progress, redrive
from popserver.store.schema import message_group_progress as behind
from popserver.store.transaction import Transaction


def why_not(tx: Transaction, group: Group, receipt: Receipt) -> PopError | None:
    """Why a receipt names no current hold; None where its message is committed and the hold's own end is to come."""
    row = row_of(tx, receipt)
    state = State(row.state) if row is not None else _implied_state(tx, receipt)
    is_acked = state is State.COMMIT or (
        row is not None and bool(row.provisional_ack) and row.hold_id == receipt.hold_id
    )
    if is_acked and tx.now_ms < receipt.ends_at_ms:
        return None
    if row is not None and row.hold_id == receipt.hold_id and not tells_the_order(receipt, row):
        return InvalidReceiptHandle(
            f"the receipt handle was not given to group '{group.name}' like this: of the message group of message"
            f" {receipt.message_key} it says the opposite; use the handle as it came with the message"
        )
    if row is not None and row.hold_id == receipt.hold_id and is_held(tx, row):
        return TooManyRequests(
            f"the message is locked by another transaction, which may be about to ack it in group '{group.name}';"
            " repeat the request"
        )
    if row is not None and state is State.INFLIGHT and row.hold_id != receipt.hold_id:
        why = f"a newer hold of attempt {row.attempt} has taken its place"
    elif row is not None and row.hold_id == receipt.hold_id:
        why = f"its time ended {tx.now_ms - row.visible_at_ms} ms ago" if state is State.INFLIGHT else "its time ended"
    else:
        why = "its time ended, or it was replaced"
    return InvalidReceiptHandle(
        f"the receipt handle holds nothing any more: {why}; the message is {state} in group '{group.name}'."
        " Use the newest handle, and a longer invisible duration"
    )


def refusal(tx: Transaction, group: Group, receipt: Receipt) -> PopError:
    """The same for what cannot be done twice: of a committed message nothing is held either."""
    why = why_not(tx, group, receipt)
    return why or InvalidReceiptHandle(f"message {receipt.message_key} is committed already; nothing is held")


def state_of(tx: Transaction, receipt: Receipt) -> State:
    """The state of the receipt's message in its group, implied or stored."""
    row = row_of(tx, receipt)
    return State(row.state) if row is not None else _implied_state(tx, receipt)


def row_of(tx: Transaction, receipt: Receipt) -> AnyRow | None:
    return tx.conn.execute(_ROW, {"for_group": receipt.group_id, "for_key": receipt.message_key}).first()


def _implied_state(tx: Transaction, receipt: Receipt) -> State:
    names = {"for_group": receipt.group_id, "for_key": receipt.message_key}
    origin_key = tx.conn.execute(_REDRIVEN_FROM, names).scalar()
    first_key = receipt.message_key if origin_key is None else origin_key
    is_dead = tx.conn.execute(_IS_DEAD, names | {"for_key": first_key}).first() is not None
    if is_dead or (receipt.group_id, first_key) in tx.deaths:
        return State.DLQ
    if origin_key is not None and (row := row_of(tx, receipt._replace(message_key=first_key))) is not None:
        return State(row.state)  # it was reset, and has been read again
    names["for_key"] = first_key
    reached = tx.conn.execute(_REACHED, names | {"for_queue": queue_of(first_key)}).scalar()
    offset = offset_of(first_key)
    if reached is None or offset >= reached:
        return State.READY
    left = {"for_queue": queue_of(first_key), "for_offset": offset}
    return State.COMMIT if tx.conn.execute(_LEFT_BEHIND, names | left).first() is None else State.READY


_ROW = select(
    delivery.c.state,
    delivery.c.attempt,
    delivery.c.hold_id,
    delivery.c.visible_at_ms,
    delivery.c.provisional_ack,
    delivery.c.message_group,
).where(delivery.c.group_id == bindparam("for_group"), delivery.c.message_key == bindparam("for_key"))
_IS_DEAD = select(dead_letter.c.dead_letter_id).where(
    dead_letter.c.group_id == bindparam("for_group"),
    dead_letter.c.origin_key == bindparam("for_key"),
    dead_letter.c.redrive_state.is_(None),
)
_REDRIVEN_FROM = (
    select(redrive.c.origin_key)
    .where(
        redrive.c.redriven_key == bindparam("for_key"),
        redrive.c.group_id == bindparam("for_group"),
        redrive.c.target_topic_id.is_(None),
    )
    .limit(1)
)
_REACHED = select(progress.c.next_offset).where(
    progress.c.group_id == bindparam("for_group"), progress.c.queue_id == bindparam("for_queue")
)
# Its message group stands before it: the scan passed it over.
_LEFT_BEHIND = (
    select(behind.c.next_offset)
    .join(message, message.c.message_group == behind.c.message_group)
    .where(
        message.c.message_key == bindparam("for_key"),
        behind.c.group_id == bindparam("for_group"),
        behind.c.queue_id == bindparam("for_queue"),
        behind.c.next_offset <= bindparam("for_offset"),
    )
)
