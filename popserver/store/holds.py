"""What a holder may do with what it holds: ack, change its time, give it back, give it up.

The statement is the lock: state, hold id and time are compared in the WHERE of the statement that acts. No row back
means the handle is not current; only then is the reason looked up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Select,
    and_,
    any_,
    bindparam,
    case,
    delete,
    func,
    literal_column,
    select,
    tuple_,
    update,
)

from popserver.domain.delivery import Event, State, sources, target
from popserver.domain.errors import InvalidReceiptHandle, PopError, TooManyRequests
from popserver.domain.group import Group
from popserver.domain.receipt import Receipt
from popserver.domain.retry import ORPHAN_DELAY_MS, Holder, interval_ms, when_visibility_changes
from popserver.domain.topic import offset_of, queue_of
from popserver.store import catalog, whole_runs
from popserver.store.dead_letters import Dying, bury
from popserver.store.given import as_given, given
from popserver.store.history import Moved, record
from popserver.store.message_groups import Member, Place, RunRow, by_member, runs_around, runs_of, settle
from popserver.store.schema import AnyRow, dead_letter, delivery, in_states, message, progress
from popserver.store.schema import message_group_progress as behind
from popserver.store.transaction import STEP_ROWS_MAX, Transaction

NO_HOLD = 0  # hold ids are 63 random bits


class Ack(NamedTuple):
    """Receipts of one group, to commit."""

    group: Group
    receipts: Sequence[Receipt]

    def places(self) -> Iterator[Place]:
        return (_place(each) for each in self.receipts if each.in_order)


class ChangeInvisible(NamedTuple):
    """A hold whose time starts anew; `give_back` ends it instead, and its attempt does not count."""

    group: Group
    receipt: Receipt
    duration_ms: int
    give_back: bool = False

    def places(self) -> Iterator[Place]:
        return (_place(each) for each in [self.receipt] if each.in_order)


class Forward(NamedTuple):
    """A message its holder gives up."""

    group: Group
    receipt: Receipt

    def places(self) -> Iterator[Place]:
        return (_place(each) for each in [self.receipt] if each.in_order)


class Orphan(NamedTuple):
    """Holds whose holder is gone: all push holds of a client, or those of these receipts."""

    client_id: str = ""
    receipts: Sequence[Receipt] = ()


class Withdraw(NamedTuple):
    """Grants of which nothing was written to anybody."""

    receipts: Sequence[Receipt]

    def places(self) -> Iterator[Place]:
        return (_place(each) for each in self.receipts if each.in_order)


class Adopt(NamedTuple):
    """A client that came back before its orphaned holds ended."""

    client_id: str
    until_ms: int


def ack(tx: Transaction, requests: Sequence[Ack]) -> list[list[PopError | None]]:
    """INFLIGHT → COMMIT; per receipt None, or why it was refused.

    Behind an un-acked message of its group an ack is provisional: None as well.
    """
    refused: dict[Receipt, PopError | None] = {}
    by_group = sorted(requests, key=lambda request: request.group.group_id)
    for _, several in groupby(by_group, key=lambda request: request.group.group_id):
        listed = list(several)
        for some in _steps(listed, in_order=False):
            refused |= _commit(tx, listed[0].group, some)
        for some in _steps(listed, in_order=True):
            refused |= _commit_in_order(tx, listed[0].group, some)
    return [[refused.get(each) for each in request.receipts] for request in requests]


def change_invisible(tx: Transaction, requests: Sequence[ChangeInvisible]) -> list[Receipt | PopError]:
    """Restart each hold's time; the answer is the receipt that now counts."""
    return [_change_one(tx, request) for request in requests]


def forward(tx: Transaction, requests: Sequence[Forward]) -> list[PopError | None]:
    """INFLIGHT → DLQ; also fine for what is a dead letter or committed already."""
    return [_forward_one(tx, request) for request in requests]


def orphan(tx: Transaction, requests: Sequence[Orphan]) -> list[PopError | None]:
    """Let holds end one second from now, whoever held them (contract 5.1).

    Refused, to be asked again, while somebody's own transaction has one of them under its hands: nobody is made to
    wait for that.
    """
    answers: list[PopError | None] = []
    for request in requests:
        of_client = _orphan_client(tx, request.client_id) if request.client_id else None
        of_receipts = _orphan_holds(tx, request.receipts) if request.receipts else None
        answers.append(of_client or of_receipts)
        tx.due(tx.now_ms + ORPHAN_DELAY_MS)
    return answers


def withdraw(tx: Transaction, requests: Sequence[Withdraw]) -> list[PopError | None]:
    """INFLIGHT → READY at once, and the attempts do not count: nobody can have begun with these messages.

    Refused, to be asked again, while somebody's own transaction has one of them under its hands.
    """
    return [_withdraw(tx, request.receipts) for request in requests]


def adopt(tx: Transaction, requests: Sequence[Adopt]) -> list[PopError | None]:
    """Give a returned client its push holds back, as far as they have not ended."""
    for request in requests:
        tx.conn.execute(_ADOPT, {"of_client": request.client_id, "until_ms": request.until_ms, "now_ms": tx.now_ms})
    return [None] * len(requests)


def _commit(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> dict[Receipt, PopError | None]:
    """Commit what the receipts hold; of the others, why not (None where it had been committed already)."""
    names = {"for_group": group.group_id, "holds": _as_holds(receipts), "now_ms": tx.now_ms}
    if group.history.keeps(Event.ACK):
        tell = _ACK if tx.conn.dialect.name == "sqlite" else _ACK_FREE
        rows = tx.conn.execute(tell.returning(*_HELD_COLUMNS), names).all()
        record(tx, group, Event.ACK, (_moved(row) for row in rows))
        committed = len(rows)
    else:
        # The rows are not asked for: SQLite's driver lets go of the interpreter for each one it fetches.
        committed = tx.conn.execute(_ACK if tx.conn.dialect.name == "sqlite" else _ACK_FREE, names).rowcount
    if committed == len(receipts):
        return {}
    return {each: _why_not(tx, group, each) for each in _left_over(tx, names, receipts, committed)}


def _commit_in_order(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> dict[Receipt, PopError | None]:
    """The same for messages of message groups, whose places are locked: an end is a matter of the whole group."""
    if whole_runs.end(tx, group, receipts):
        return {}
    free = _not_locked(tx, group, receipts)
    rows = runs_around(tx.conn, group.group_id, (each.message_key for each in receipts))
    held = {(row.message_key, row.hold_id) for row in rows if _is_held(tx, row)}
    good = {each for each in free if (each.message_key, each.hold_id) in held}
    if good:
        acked = {each.message_key for each in good}
        runs = by_member(rows).items()
        touched = {member: run for member, run in runs if any(row.message_key in acked for row in run)}
        settle(tx, group, touched, acked)
    return {each: _why_not(tx, group, each) for each in receipts if each not in good}


def _not_locked(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> set[Receipt]:
    """Those that nobody's own transaction has under its hands, so that nobody is waited for."""
    if tx.conn.dialect.name == "sqlite":
        return set(receipts)
    free = set(tx.conn.execute(_FREE, {"for_group": group.group_id, "holds": _as_holds(receipts)}).scalars())
    return {each for each in receipts if each.message_key in free}


def _is_held(tx: Transaction, row: AnyRow | RunRow) -> bool:
    return bool(row.state == State.INFLIGHT and row.visible_at_ms > tx.now_ms and not row.provisional_ack)


def _steps(requests: Sequence[Ack], *, in_order: bool) -> Iterator[list[Receipt]]:
    """The receipts with or without a message group, by key, as many as one step takes.

    Those of a request stay together as far as may be: with them the runs they are of.
    """
    step: set[Receipt] = set()
    for request in requests:
        some = {each for each in request.receipts if each.in_order is in_order}
        if len(step) + len(some) > STEP_ROWS_MAX:
            yield from _slices(sorted(step))
            step = set()
        step |= some
    yield from _slices(sorted(step))


def _slices(receipts: list[Receipt]) -> Iterator[list[Receipt]]:
    return (receipts[start : start + STEP_ROWS_MAX] for start in range(0, len(receipts), STEP_ROWS_MAX))


def _place(of: Receipt) -> Place:
    return Place(of.group_id, queue_of(of.message_key))


def _settle_after(tx: Transaction, group: Group, held: AnyRow) -> None:
    """What a message's end means for its message group."""
    if held.message_group is None:
        return
    member = Member(held.topic_id, queue_of(held.message_key), held.message_group)
    settle(tx, group, {member: [], **by_member(runs_of(tx.conn, group.group_id, [member]))})


def _withdraw(tx: Transaction, receipts: Sequence[Receipt]) -> PopError | None:
    names = {"grants": as_given(each[:3] for each in receipts), "now_ms": tx.now_ms}
    rows = tx.conn.execute(_GRANTED_FREE, names).all()
    groups = catalog.groups_by_id(tx.conn, {row.group_id for row in rows})
    for group_id, several in groupby(rows, key=lambda row: row.group_id):
        if group_id in groups:
            _give_back_unused(tx, groups[group_id].group, list(several))
    if tx.conn.dialect.name == "sqlite" or tx.conn.execute(_GRANTED, names).first() is None:
        return None
    return TooManyRequests("a message that nobody got is locked by another transaction; ask again")


def _give_back_unused(tx: Transaction, group: Group, rows: Sequence[AnyRow]) -> None:
    keys = as_given((group.group_id, row.message_key, row.hold_id) for row in rows)
    tx.conn.execute(_GIVE_BACK, {"grants": keys, "now_ms": tx.now_ms})
    record(tx, group, Event.GIVE_BACK, map(_moved, rows))
    in_groups = {
        Member(row.topic_id, queue_of(row.message_key), row.message_group) for row in rows if row.message_group
    }
    if in_groups:
        runs = by_member(runs_of(tx.conn, group.group_id, in_groups))
        settle(tx, group, {member: runs.get(member, []) for member in in_groups})
    for topic_id in {row.topic_id for row in rows}:
        tx.ring(topic_id)


def _orphan_client(tx: Transaction, client_id: str) -> PopError | None:
    names = {"of_client": client_id, "until_ms": tx.now_ms + ORPHAN_DELAY_MS}
    tx.conn.execute(_ORPHAN_CLIENT, names)
    if tx.conn.dialect.name == "sqlite" or tx.conn.execute(_STILL_HELD, names).first() is None:
        return None
    return TooManyRequests(f"a message that client '{client_id}' held is locked by another transaction; ask again")


def _orphan_holds(tx: Transaction, receipts: Sequence[Receipt]) -> PopError | None:
    names = {"grants": as_given(each[:3] for each in receipts), "until_ms": tx.now_ms + ORPHAN_DELAY_MS}
    tx.conn.execute(_ORPHAN_HOLDS, names)
    if tx.conn.dialect.name == "sqlite" or tx.conn.execute(_TOO_LONG, names).first() is None:
        return None
    return TooManyRequests("a message whose client broke off is locked by another transaction; ask again")


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
        _settle_after(tx, group, held)
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
        _settle_after(tx, group, held)
        tx.ring(held.topic_id)
    else:
        tx.due(end_ms)
    return old._replace(hold_id=successor, ends_at_ms=end_ms)


def _wait_ms(event: Event, request: ChangeInvisible, held: AnyRow) -> int:
    if event is Event.GIVE_BACK:
        return 0
    if event is Event.RETRY and held.message_group is not None:
        # In place, and always the same: its group waits with it, whatever ladder its client climbs (mission row L6).
        return interval_ms(request.group.retry, held.attempt, in_order=True)
    if event is Event.RETRY and not request.duration_ms:
        # The Node push client knows no ladder and names no time; all its attempts would be burnt at once.
        return interval_ms(request.group.retry, held.attempt)
    return request.duration_ms


def _forward_one(tx: Transaction, request: Forward) -> PopError | None:
    held = _held(tx, request.receipt)
    if held is not None:
        bury(tx, request.group, [_dying(held)], Event.FORWARD_TO_DLQ, "forwarded by its consumer")
        _settle_after(tx, request.group, held)
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
    offset = offset_of(receipt.message_key)
    if reached is None or offset >= reached:
        return State.READY
    left = {"for_queue": queue_of(receipt.message_key), "for_offset": offset}
    return State.COMMIT if tx.conn.execute(_LEFT_BEHIND, names | left).first() is None else State.READY


def _why_not(tx: Transaction, group: Group, receipt: Receipt) -> PopError | None:
    """Why a receipt names no current hold; None where its message is committed and the hold's own end is to come."""
    row = _row_of(tx, receipt)
    state = State(row.state) if row is not None else _implied_state(tx, receipt)
    is_acked = state is State.COMMIT or (
        row is not None and bool(row.provisional_ack) and row.hold_id == receipt.hold_id
    )
    if is_acked and tx.now_ms < receipt.ends_at_ms:
        return None
    if row is not None and row.hold_id == receipt.hold_id and not _tells_the_order(receipt, row):
        return InvalidReceiptHandle(
            f"the receipt handle was not given to group '{group.name}' like this: of the message group of message"
            f" {receipt.message_key} it says the opposite; use the handle as it came with the message"
        )
    if row is not None and row.hold_id == receipt.hold_id and _is_held(tx, row):
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


def _refusal(why_not: PopError | None, receipt: Receipt) -> PopError:
    return why_not or InvalidReceiptHandle(f"message {receipt.message_key} is committed already; nothing is held")


def _repeated(tx: Transaction, old: Receipt, successor: int) -> Receipt | None:
    """The answer already given to this very request, if it was and still counts: its first answer was lost."""
    row = _row_of(tx, old)
    if row is None or row.hold_id != successor:
        return None
    return old._replace(hold_id=successor, ends_at_ms=row.visible_at_ms)


def _successor(hold_id: int, duration_ms: int) -> int:
    """The hold id that follows: as secret as the one it comes from, and the same when the request is repeated."""
    seed = hold_id.to_bytes(8, "big", signed=True) + duration_ms.to_bytes(8, "big", signed=True)
    return int.from_bytes(hashlib.blake2b(seed, digest_size=8).digest(), "big") >> 1


def _held(tx: Transaction, receipt: Receipt) -> AnyRow | None:
    """The delivery, locked, if the receipt is its current hold and nobody else has locked it."""
    held = tx.conn.execute(_HELD, _named(tx, receipt)).first()
    return held if held is not None and _tells_the_order(receipt, held) else None


def _tells_the_order(receipt: Receipt, row: AnyRow) -> bool:
    """Whether the handle is right about the message group; one that is not has come without the group's lock."""
    return receipt.in_order == (row.message_group is not None)


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
    delivery.c.message_group,
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
    delivery.c.message_group.is_(None),
)
_each = delivery.alias("held")
_ackable: Select[Any] = (
    select(literal_column("held.ctid"))
    .where(
        _each.c.group_id == bindparam("for_group"),
        tuple_(_each.c.message_key, _each.c.hold_id).in_(select(_HOLDS.c.message_key, _HOLDS.c.hold_id)),
        in_states(_each.c.state, *sources(Event.ACK)),
        _each.c.visible_at_ms > bindparam("now_ms"),
        _each.c.message_group.is_(None),
    )
    .with_for_update(skip_locked=True)
)
# Of Postgres. Nobody is waited for: who acks in a transaction of his own has his delivery locked as long as he likes.
# By place, not by key: the rows are found already, and a plan for finding them again may be a slow one.
_ACK_FREE = delete(delivery).where(literal_column("delivery.ctid") == any_(func.array(_ackable.scalar_subquery())))
_FREE = (
    select(delivery.c.message_key)
    .where(delivery.c.group_id == bindparam("for_group"), delivery.c.message_key.in_(select(_HOLDS.c.message_key)))
    .with_for_update(skip_locked=True)
)
_PRESENT = select(delivery.c.message_key).where(
    delivery.c.group_id == bindparam("for_group"), delivery.c.message_key.in_(select(_HOLDS.c.message_key))
)
_HELD = (
    select(*_HELD_COLUMNS)
    .where(_IS_CURRENT, in_states(delivery.c.state, State.INFLIGHT))
    .with_for_update(skip_locked=True)
)
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
_ROW = select(
    delivery.c.state,
    delivery.c.attempt,
    delivery.c.hold_id,
    delivery.c.visible_at_ms,
    delivery.c.provisional_ack,
    delivery.c.message_group,
).where(delivery.c.group_id == bindparam("for_group"), delivery.c.message_key == bindparam("for_key"))
_IS_DEAD = select(dead_letter.c.dead_letter_id).where(
    dead_letter.c.group_id == bindparam("for_group"), dead_letter.c.origin_key == bindparam("for_key")
)
_REACHED = select(progress.c.next_offset).where(
    progress.c.group_id == bindparam("for_group"), progress.c.queue_id == bindparam("for_queue")
)
_GRANTS = given("grants", "group_id", "message_key", "hold_id")
_IS_GRANTED = and_(
    delivery.c.group_id == _GRANTS.c.group_id,
    delivery.c.message_key == _GRANTS.c.message_key,
    delivery.c.hold_id == _GRANTS.c.hold_id,
    in_states(delivery.c.state, *sources(Event.GIVE_BACK)),
    delivery.c.visible_at_ms > bindparam("now_ms"),
    delivery.c.provisional_ack == literal_column("0"),
)
_GRANTED = (
    select(delivery.c.group_id, *_HELD_COLUMNS)
    .select_from(_GRANTS)
    .join(delivery, _IS_GRANTED)
    .order_by(delivery.c.group_id, delivery.c.message_key)
)
_GRANTED_FREE = _GRANTED.with_for_update(of=delivery, skip_locked=True)
_GIVE_BACK = (
    update(delivery)
    .where(_IS_GRANTED)
    .values(
        state=target(Event.GIVE_BACK).value,
        attempt=delivery.c.attempt - 1,
        # No handle stands for it any more, nor does a change of one that is repeated.
        hold_id=NO_HOLD,
        visible_at_ms=bindparam("now_ms", type_=BigInteger),
    )
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
_ENDS_SOON = {"holder": Holder.ORPHAN.value, "visible_at_ms": bindparam("until_ms")}
_OF_CLIENT = (
    delivery.c.client_id == bindparam("of_client"),
    delivery.c.holder == literal_column(f"'{Holder.PUSH}'"),
    in_states(delivery.c.state, State.INFLIGHT),
    delivery.c.visible_at_ms > bindparam("until_ms"),
)
_free = select(delivery.c.group_id, delivery.c.message_key).where(*_OF_CLIENT).with_for_update(skip_locked=True)
_ORPHAN_CLIENT = (
    update(delivery).where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_free)).values(**_ENDS_SOON)
)
_STILL_HELD = select(delivery.c.message_key).where(*_OF_CLIENT).limit(1)
_TOO_LONG = (
    select(delivery.c.group_id, delivery.c.message_key)
    .select_from(_GRANTS)
    .join(
        delivery,
        and_(
            delivery.c.group_id == _GRANTS.c.group_id,
            delivery.c.message_key == _GRANTS.c.message_key,
            delivery.c.hold_id == _GRANTS.c.hold_id,
            in_states(delivery.c.state, State.INFLIGHT),
            delivery.c.visible_at_ms > bindparam("until_ms"),
        ),
    )
)
_too_long_free = _TOO_LONG.with_for_update(of=delivery, skip_locked=True)
_ORPHAN_HOLDS = (
    update(delivery)
    .where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_too_long_free))
    .values(
        # A simple consumer may still prolong what it got of a broken answer; for it that is no failure.
        holder=case(
            (delivery.c.holder == literal_column(f"'{Holder.SIMPLE}'"), Holder.SIMPLE.value), else_=Holder.ORPHAN.value
        ),
        visible_at_ms=bindparam("until_ms"),
        # Nobody's: a client that comes back gets only what it had.
        client_id="",
    )
)
_orphaned = (
    select(delivery.c.group_id, delivery.c.message_key)
    .where(
        delivery.c.client_id == bindparam("of_client"),
        delivery.c.holder == literal_column(f"'{Holder.ORPHAN}'"),
        in_states(delivery.c.state, State.INFLIGHT),
        delivery.c.visible_at_ms > bindparam("now_ms"),
    )
    .with_for_update(skip_locked=True)
)
_ADOPT = (
    update(delivery)
    .where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_orphaned))
    .values(holder=Holder.PUSH.value, visible_at_ms=bindparam("until_ms"))
)
