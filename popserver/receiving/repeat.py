"""A repeated receive: the first answer was lost, and its messages are still held.

The client gives each receive an attempt id, which the granted holds keep (docs/design/0012). The repetition gets the
same messages with the same attempts and handles, without those that were acked or whose hold ended. Holds that ended
early because the answer was lost belong to the client again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import BigInteger, Text, and_, bindparam, literal_column, or_, select, tuple_, update

from popserver.database.newest import no_index_has
from popserver.database.notifications import DUE
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import delivery, still_in
from popserver.engine.transaction import Transaction
from popserver.messages.read import BY_KEY, MessageRow
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.receiving.batch import ReceiveBatch


class _HeldRow(NamedTuple):
    message_key: int
    attempt: int
    hold_id: int
    visible_at_ms: int
    message_group: str | None
    attempt_id: str


class HeldDelivery(NamedTuple):
    """A message as it was granted before."""

    row: MessageRow
    receipt: Receipt
    attempt: int


def held_by(tx: Transaction, batch: ReceiveBatch, attempt_ids: Iterable[str]) -> dict[str, list[HeldDelivery]]:
    """The messages held by these attempt ids in this group and topic. Attempt ids without holds are left out.

    A list is empty if its bodies do not fit into this transaction's answers.
    """
    rows = _held_rows(tx, batch, sorted(set(attempt_ids)))
    if not rows:
        return {}
    by_attempt: dict[str, list[_HeldRow]] = {}
    for row in rows:
        by_attempt.setdefault(row.attempt_id, []).append(row)
    held: dict[str, list[HeldDelivery]] = {}
    for attempt_id, several in by_attempt.items():
        held[attempt_id] = _loaded(tx, batch, several) if tx.answer_bytes > 0 else []
        tx.answer_bytes -= sum(len(each.row.body) for each in held[attempt_id])
    return held


def _held_rows(tx: Transaction, batch: ReceiveBatch, attempt_ids: Sequence[str]) -> list[_HeldRow]:
    names = batch.names | {"now_ms": tx.now_ms}
    if len(attempt_ids) == 1:
        return _HELD_BY_ONE.rows(tx.conn, names | {"attempt": attempt_ids[0]})
    return _HELD.rows(tx.conn, names | {"attempts": attempt_ids})


def _loaded(tx: Transaction, batch: ReceiveBatch, rows: Sequence[_HeldRow]) -> list[HeldDelivery]:
    messages = BY_KEY.rows(tx.conn, {"keys": encode_rows([(row.message_key,) for row in rows])})
    by_key = {each.message_key: each for each in messages}
    return [HeldDelivery(by_key[row.message_key], _receipt(batch, row), row.attempt) for row in rows]


def take_back(
    tx: Transaction, held: Sequence[HeldDelivery], holder: Holder, client_id: str, until_ms: int
) -> list[HeldDelivery]:
    """Give the client its orphaned holds back, until `until_ms`. Other holds do not change.

    A hold that a user's own transaction has locked does not change either.
    """
    keys = encode_rows([(each.receipt.group_id, each.receipt.message_key, each.receipt.hold_id) for each in held])
    names = {"holds": keys, "as_holder": holder.value, "by_client": client_id, "until_ms": until_ms}
    taken = set(tx.conn.execute(_TAKE_BACK, names).scalars())
    if taken:
        tx.expect(DUE, until_ms)
    return [
        each._replace(receipt=each.receipt._replace(ends_at_ms=until_ms)) if each.row.message_key in taken else each
        for each in held
    ]


def _receipt(batch: ReceiveBatch, row: _HeldRow) -> Receipt:
    in_order = row.message_group is not None
    return Receipt(batch.group.group_id, row.message_key, row.hold_id, row.visible_at_ms, in_order)


_every_held = (
    select(*(delivery.c[name] for name in _HeldRow._fields))
    .where(
        # Few deliveries of the group have the id of the attempt.
        no_index_has(delivery.c.group_id) == bindparam("group_id"),
        no_index_has(delivery.c.topic_id) == bindparam("topic_id"),
        still_in(delivery.c.state, State.INFLIGHT),
        delivery.c.visible_at_ms > bindparam("now_ms"),
    )
    .order_by(delivery.c.message_key)
)
_HELD = RowStatement(_HeldRow, _every_held.where(delivery.c.attempt_id.in_(bindparam("attempts", expanding=True))))
# A statement of its own, because the text of the other one is made anew for each number of attempts.
_HELD_BY_ONE = RowStatement(_HeldRow, _every_held.where(delivery.c.attempt_id == bindparam("attempt")))
_HOLDS = rows_parameter("holds", "group_id", "message_key", "hold_id")
_free = (
    select(delivery.c.group_id, delivery.c.message_key)
    .select_from(_HOLDS)
    .join(
        delivery,
        and_(
            delivery.c.group_id == _HOLDS.c.group_id,
            delivery.c.message_key == _HOLDS.c.message_key,
            delivery.c.hold_id == _HOLDS.c.hold_id,
            # After a broken answer a simple consumer's hold keeps its kind, but has no client.
            or_(
                delivery.c.holder == literal_column(f"'{Holder.ORPHAN}'"), delivery.c.client_id == literal_column("''")
            ),
            still_in(delivery.c.state, State.INFLIGHT),
            delivery.c.visible_at_ms < bindparam("until_ms"),
        ),
    )
    .with_for_update(of=delivery, skip_locked=True)
)
_TAKE_BACK = (
    update(delivery)
    .where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_free))
    .values(
        holder=bindparam("as_holder", type_=Text),
        client_id=bindparam("by_client", type_=Text),
        visible_at_ms=bindparam("until_ms", type_=BigInteger),
    )
    .returning(delivery.c.message_key)
)
