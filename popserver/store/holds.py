"""What a holder may do with what it holds: ack, change its time, give it back, give it up.

The statement is the lock: state, hold id and time are compared in the WHERE of the statement that acts. No row back
means the handle is not current; only then is the reason looked up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, delete, literal_column, select, tuple_, update

from popserver.domain.delivery import Event, State, sources, target
from popserver.domain.errors import InvalidReceiptHandle, PopError
from popserver.domain.group import Group
from popserver.domain.receipt import Receipt
from popserver.domain.retry import ORPHAN_DELAY_MS, Holder, interval_ms, when_visibility_changes
from popserver.domain.topic import offset_of, queue_of
from popserver.store.dead_letters import Dying, bury
from popserver.store.given import as_given, given
from popserver.store.history import Moved, record
from popserver.store.schema import AnyRow, dead_letter, delivery, in_states, progress
from popserver.store.transaction import STEP_ROWS_MAX, Transaction


class Ack(NamedTuple):
    """Receipts of one group, to commit."""

    group: Group
    receipts: Sequence[Receipt]


class ChangeInvisible(NamedTuple):
    """A hold whose time starts anew; `give_back` ends it instead, and its attempt does not count."""

    group: Group
    receipt: Receipt
    duration_ms: int
    give_back: bool = False


class Forward(NamedTuple):
    """A message its holder gives up."""

    group: Group
    receipt: Receipt


class Orphan(NamedTuple):
    """Holds whose holder is gone: all push holds of a client, or those of these receipts."""

    client_id: str = ""
    receipts: Sequence[Receipt] = ()


class Adopt(NamedTuple):
    """A client that came back before its orphaned holds ended."""

    client_id: str
    until_ms: int


def ack(tx: Transaction, requests: Sequence[Ack]) -> list[list[PopError | None]]:
    """INFLIGHT → COMMIT; per receipt None, or why it was refused."""
    refused: dict[Receipt, PopError | None] = {}
    by_group = sorted(requests, key=lambda request: request.group.group_id)
    for _, several in groupby(by_group, key=lambda request: request.group.group_id):
        listed = list(several)
        receipts = sorted({each for request in listed for each in request.receipts})
        for start in range(0, len(receipts), STEP_ROWS_MAX):
            refused |= _commit(tx, listed[0].group, receipts[start : start + STEP_ROWS_MAX])
    return [[refused.get(each) for each in request.receipts] for request in requests]


def change_invisible(tx: Transaction, requests: Sequence[ChangeInvisible]) -> list[Receipt | PopError]:
    """Restart each hold's time; the answer is the receipt that now counts."""
    return [_change_one(tx, request) for request in requests]


def forward(tx: Transaction, requests: Sequence[Forward]) -> list[PopError | None]:
    """INFLIGHT → DLQ; also fine for what is a dead letter or committed already."""
    return [_forward_one(tx, request) for request in requests]


def orphan(tx: Transaction, requests: Sequence[Orphan]) -> list[PopError | None]:
    """Let holds end one second from now, whoever held them (contract 5.1)."""
    for request in requests:
        if request.client_id:
            tx.conn.execute(_ORPHAN_CLIENT, {"of_client": request.client_id, "until_ms": tx.now_ms + ORPHAN_DELAY_MS})
        for group_id, receipts in groupby(sorted(request.receipts), key=lambda each: each.group_id):
            tx.conn.execute(
                _ORPHAN_HOLDS,
                {"for_group": group_id, "holds": _as_holds(receipts), "until_ms": tx.now_ms + ORPHAN_DELAY_MS},
            )
        tx.due(tx.now_ms + ORPHAN_DELAY_MS)
    return [None] * len(requests)


def adopt(tx: Transaction, requests: Sequence[Adopt]) -> list[PopError | None]:
    """Give a returned client its push holds back, as far as they have not ended."""
    for request in requests:
        tx.conn.execute(_ADOPT, {"of_client": request.client_id, "until_ms": request.until_ms, "now_ms": tx.now_ms})
    return [None] * len(requests)


def push_clients(conn: Connection) -> list[str]:
    """The clients that hold messages as push consumers."""
    return list(conn.execute(_PUSH_CLIENTS).scalars())


def _commit(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> dict[Receipt, PopError | None]:
    """Commit what the receipts hold; of the others, why not (None where it had been committed already)."""
    names = {"for_group": group.group_id, "holds": _as_holds(receipts), "now_ms": tx.now_ms}
    if group.history.keeps(Event.ACK):
        rows = tx.conn.execute(_ACK_AND_TELL, names).all()
        record(tx, group, Event.ACK, (_moved(row) for row in rows))
        committed = len(rows)
    else:
        # The rows are not asked for: SQLite's driver lets go of the interpreter for each one it fetches.
        committed = tx.conn.execute(_ACK, names).rowcount
    if committed == len(receipts):
        return {}
    return {each: _why_not(tx, group, each) for each in _left_over(tx, names, receipts, committed)}


def _left_over(
    tx: Transaction, names: dict[str, Any], receipts: Sequence[Receipt], committed: int
) -> Sequence[Receipt]:
    """The receipts that a commit of fewer rows may have left out: those of deliveries that are still there."""
    present = set(tx.conn.execute(_PRESENT, names).scalars())
    left = [each for each in receipts if each.message_key in present]
    return left if len(receipts) - len(left) == committed else receipts


def _change_one(tx: Transaction, request: ChangeInvisible) -> Receipt | PopError:
    group, old = request.group, request.receipt
    successor = _successor(old.hold_id, request.duration_ms)
    held = _held(tx, old)
    if held is None:
        return _repeated(tx, old, successor) or _refusal(_why_not(tx, group, old), old)
    by_itself = when_visibility_changes(Holder(held.holder), held.attempt, group.retry)
    event = Event.GIVE_BACK if request.give_back else by_itself
    if event is Event.EXHAUST:
        bury(tx, group, [_dying(held)], event, "failed, and no attempt remains")
        return old
    end_ms = tx.now_ms + _wait_ms(event, request, held)
    tx.conn.execute(
        _CHANGE,
        _named(tx, old)
        | {
            "to_state": target(event).value,
            "to_attempt": held.attempt - 1 if event is Event.GIVE_BACK else held.attempt,
            "successor": successor,
            "until_ms": end_ms,
        },
    )
    record(tx, group, event, [_moved(held)])
    if event is Event.GIVE_BACK:
        tx.ring(held.topic_id)
    else:
        tx.due(end_ms)
    return Receipt(group.group_id, old.message_key, successor, end_ms)


def _wait_ms(event: Event, request: ChangeInvisible, held: AnyRow) -> int:
    if event is Event.GIVE_BACK:
        return 0
    if event is Event.RETRY and not request.duration_ms:
        # The Node push client knows no ladder and names no time; all its attempts would be burnt at once.
        return interval_ms(request.group.retry, held.attempt)
    return request.duration_ms


def _forward_one(tx: Transaction, request: Forward) -> PopError | None:
    held = _held(tx, request.receipt)
    if held is not None:
        bury(tx, request.group, [_dying(held)], Event.FORWARD_TO_DLQ, "forwarded by its consumer")
        return None
    state = state_of(tx, request.receipt)
    if state in {State.DLQ, State.COMMIT}:
        return None
    return _refusal(_why_not(tx, request.group, request.receipt), request.receipt)


def state_of(tx: Transaction, receipt: Receipt) -> State:
    """The state of the receipt's message in its group, implied or stored."""
    row = _row_of(tx, receipt)
    return State(row.state) if row is not None else _implied_state(tx, receipt)


def _row_of(tx: Transaction, receipt: Receipt) -> AnyRow | None:
    return tx.conn.execute(_ROW, {"for_group": receipt.group_id, "for_key": receipt.message_key}).first()


def _implied_state(tx: Transaction, receipt: Receipt) -> State:
    names = {"for_group": receipt.group_id, "for_key": receipt.message_key}
    if tx.conn.execute(_IS_DEAD, names).first() is not None:
        return State.DLQ
    reached = tx.conn.execute(_REACHED, names | {"for_queue": queue_of(receipt.message_key)}).scalar()
    return State.COMMIT if reached is not None and offset_of(receipt.message_key) < reached else State.READY


def _why_not(tx: Transaction, group: Group, receipt: Receipt) -> PopError | None:
    """Why a receipt names no current hold; None where its message is committed and the hold's own end is to come."""
    row = _row_of(tx, receipt)
    state = State(row.state) if row is not None else _implied_state(tx, receipt)
    if state is State.COMMIT and tx.now_ms < receipt.ends_at_ms:
        return None
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


def _refusal(why_not: PopError | None, receipt: Receipt) -> PopError:
    return why_not or InvalidReceiptHandle(f"message {receipt.message_key} is committed already; nothing is held")


def _repeated(tx: Transaction, old: Receipt, successor: int) -> Receipt | None:
    """The answer already given to this very request, if it was and still counts: its first answer was lost."""
    row = _row_of(tx, old)
    if row is None or row.hold_id != successor:
        return None
    return Receipt(old.group_id, old.message_key, successor, row.visible_at_ms)


def _successor(hold_id: int, duration_ms: int) -> int:
    """The hold id that follows: as secret as the one it comes from, and the same when the request is repeated."""
    seed = hold_id.to_bytes(8, "big", signed=True) + duration_ms.to_bytes(8, "big", signed=True)
    return int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big") >> 1


def _held(tx: Transaction, receipt: Receipt) -> AnyRow | None:
    """The delivery, locked, if the receipt is its current hold."""
    return tx.conn.execute(_HELD, _named(tx, receipt)).first()


def _named(tx: Transaction, receipt: Receipt) -> dict[str, Any]:
    return {
        "for_group": receipt.group_id,
        "for_key": receipt.message_key,
        "for_hold": receipt.hold_id,
        "now_ms": tx.now_ms,
    }


def _as_holds(receipts: Iterable[Receipt]) -> str:
    return as_given((each.message_key, each.hold_id) for each in receipts)


def _moved(row: AnyRow) -> Moved:
    return Moved(row.message_key, State.INFLIGHT, row.attempt, row.client_id)


def _dying(row: AnyRow) -> Dying:
    return Dying(row.message_key, row.topic_id, row.attempt, row.client_id)


_HOLDS = given("holds", "message_key", "hold_id")
_HELD_COLUMNS = (
    delivery.c.message_key,
    delivery.c.topic_id,
    delivery.c.hold_id,
    delivery.c.attempt,
    delivery.c.holder,
    delivery.c.client_id,
)
_IS_CURRENT = and_(
    delivery.c.group_id == bindparam("for_group"),
    delivery.c.message_key == bindparam("for_key"),
    delivery.c.hold_id == bindparam("for_hold"),
    delivery.c.visible_at_ms > bindparam("now_ms"),
)
_ACK = delete(delivery).where(
    delivery.c.group_id == bindparam("for_group"),
    tuple_(delivery.c.message_key, delivery.c.hold_id).in_(select(_HOLDS.c.message_key, _HOLDS.c.hold_id)),
    in_states(delivery.c.state, *sources(Event.ACK)),
    delivery.c.visible_at_ms > bindparam("now_ms"),
)
_ACK_AND_TELL = _ACK.returning(*_HELD_COLUMNS)
_PRESENT = select(delivery.c.message_key).where(
    delivery.c.group_id == bindparam("for_group"), delivery.c.message_key.in_(select(_HOLDS.c.message_key))
)
_HELD = select(*_HELD_COLUMNS).where(_IS_CURRENT, in_states(delivery.c.state, State.INFLIGHT)).with_for_update()
_CHANGE = (
    update(delivery)
    .where(_IS_CURRENT, in_states(delivery.c.state, *sources(Event.CHANGE_INVISIBLE)))
    .values(
        state=bindparam("to_state"),
        attempt=bindparam("to_attempt"),
        hold_id=bindparam("successor"),
        visible_at_ms=bindparam("until_ms"),
    )
)
assert sources(Event.CHANGE_INVISIBLE) == sources(Event.RETRY) == sources(Event.GIVE_BACK), "one guard for the three"
_ROW = select(delivery.c.state, delivery.c.attempt, delivery.c.hold_id, delivery.c.visible_at_ms).where(
    delivery.c.group_id == bindparam("for_group"), delivery.c.message_key == bindparam("for_key")
)
_IS_DEAD = select(dead_letter.c.dead_letter_id).where(
    dead_letter.c.group_id == bindparam("for_group"), dead_letter.c.origin_key == bindparam("for_key")
)
_REACHED = select(progress.c.next_offset).where(
    progress.c.group_id == bindparam("for_group"), progress.c.queue_id == bindparam("for_queue")
)
_ENDS_SOON = {"holder": Holder.ORPHAN.value, "visible_at_ms": bindparam("until_ms")}
_ORPHAN_CLIENT = (
    update(delivery)
    .where(
        delivery.c.client_id == bindparam("of_client"),
        delivery.c.holder == literal_column(f"'{Holder.PUSH}'"),
        in_states(delivery.c.state, State.INFLIGHT),
        delivery.c.visible_at_ms > bindparam("until_ms"),
    )
    .values(**_ENDS_SOON)
)
_ORPHAN_HOLDS = (
    update(delivery)
    .where(
        delivery.c.group_id == bindparam("for_group"),
        tuple_(delivery.c.message_key, delivery.c.hold_id).in_(select(_HOLDS.c.message_key, _HOLDS.c.hold_id)),
        in_states(delivery.c.state, State.INFLIGHT),
        delivery.c.visible_at_ms > bindparam("until_ms"),
    )
    # Nobody's: a client that comes back gets only what it had.
    .values(**_ENDS_SOON, client_id="")
)
_PUSH_CLIENTS = select(delivery.c.client_id).where(delivery.c.holder == literal_column(f"'{Holder.PUSH}'")).distinct()
_ADOPT = (
    update(delivery)
    .where(
        delivery.c.client_id == bindparam("of_client"),
        delivery.c.holder == literal_column(f"'{Holder.ORPHAN}'"),
        in_states(delivery.c.state, State.INFLIGHT),
        delivery.c.visible_at_ms > bindparam("now_ms"),
    )
    .values(holder=Holder.PUSH.value, visible_at_ms=bindparam("until_ms"))
)
