"""Why a receipt has no current hold. These queries run only after a statement found no row for the receipt."""

from __future__ import annotations

from collections.abc import Iterable

from popserver.catalog.progress import GroupQueueKey, locks_of
from popserver.database import states_of
from popserver.delivery import holds
from popserver.delivery.dead_letter_topic import NewDeadLetters
from popserver.delivery.deliveries import DeliveryRow
from popserver.delivery.history import Moved, skipped_while_held_ms
from popserver.engine.transaction import Locks, Transaction
from popserver.fifo.runs import GroupRunRow
from popserver.messages import redrives
from popserver.model.errors import InvalidReceiptHandle, PopError, TooManyRequests
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.states import ACKED, State
from popserver.model.times import utc
from popserver.model.topic import queue_of


def locks_in_order(receipts: Iterable[Receipt]) -> Iterable[Locks]:
    """What to lock before an operation on these receipts: the progress in the queues of message groups."""
    queues = {GroupQueueKey(each.group_id, queue_of(each.message_key)) for each in receipts if each.in_order}
    return locks_of(queues) if queues else ()


def is_held(tx: Transaction, row: DeliveryRow | GroupRunRow) -> bool:
    return bool(row.state == State.INFLIGHT and row.visible_at_ms > tx.now_ms)


def has_same_order(receipt: Receipt, row: DeliveryRow) -> bool:
    """Whether handle and row agree about the message group. If not, the message group is not locked."""
    return receipt.in_order == (row.message_group is not None)


def moved(row: DeliveryRow) -> Moved:
    return Moved(row.message_key, State.INFLIGHT, row.attempt, row.client_id)


def why_not(tx: Transaction, group: Group, receipt: Receipt) -> PopError | None:
    """Why a receipt names no current hold; None if its message is committed and the handle has not ended."""
    row = holds.of_message(tx.conn, receipt.group_id, receipt.message_key)
    state = State(row.state) if row is not None else state_of(tx, receipt)
    is_acked = state is State.COMMIT or (row is not None and state in ACKED and row.hold_id == receipt.hold_id)
    if is_acked and tx.now_ms < receipt.ends_at_ms:
        if row is not None:
            return None
        at_ms = skipped_while_held_ms(tx.conn, receipt.group_id, receipt.message_key, _first_key(tx, receipt))
        if at_ms is None:
            return None
        return InvalidReceiptHandle(
            f"the receipt handle is no longer valid: an operator has skipped the message for group '{group.name}' while"
            f" it was held, {utc(at_ms)}; the message is COMMIT, so its work is not to be repeated"
        )
    if row is not None and row.hold_id == receipt.hold_id and not has_same_order(receipt, row):
        return InvalidReceiptHandle(
            f"the receipt handle was changed after it was given to group '{group.name}': it does not fit the message"
            f" group of message {receipt.message_key}; use the handle as it came with the message"
        )
    if row is not None and row.hold_id == receipt.hold_id and is_held(tx, row):
        return TooManyRequests(
            f"the message is locked by another transaction, which may be about to ack it in group '{group.name}';"
            " repeat the request"
        )
    if row is not None and state.shown is State.INFLIGHT and row.hold_id != receipt.hold_id:
        why = f"a newer hold of attempt {row.attempt} has replaced it"
    elif row is not None and row.hold_id == receipt.hold_id:
        why = f"its time ended {tx.now_ms - row.visible_at_ms} ms ago" if state is State.INFLIGHT else "its time ended"
    else:
        why = "its time ended, or it was replaced"
    return InvalidReceiptHandle(
        f"the receipt handle is no longer valid: {why}; the message is {state.shown} in group '{group.name}'."
        " Use the newest handle, and a longer invisible duration"
    )


def refusal(tx: Transaction, group: Group, receipt: Receipt) -> PopError:
    """The same for operations that cannot be repeated: they are refused for a committed message too."""
    why = why_not(tx, group, receipt)
    return why or InvalidReceiptHandle(f"message {receipt.message_key} is acked already; nothing is held")


def state_of(tx: Transaction, receipt: Receipt) -> State:
    """The state of the receipt's message in its group."""
    first_key = _first_key(tx, receipt)
    if (receipt.group_id, first_key) in tx.at_end(NewDeadLetters).letters:
        return State.DLQ  # in this transaction, which writes the dead letter at its end
    return states_of.state_of(tx.conn, receipt.group_id, first_key) or State.READY


def _first_key(tx: Transaction, receipt: Receipt) -> int:
    """The key that the message had before it was redriven."""
    found = redrives.origins_in_group(tx.conn, receipt.group_id, [receipt.message_key])
    return found[receipt.message_key].origin_key if found else receipt.message_key
