"""Holds without a holder: they end soon, or at once. A client that comes back in time keeps its holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    case,
    literal_column,
    select,
    tuple_,
    update,
)

from popserver.catalog.groups import groups_by_id
from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.newest import are_newest, joined
from popserver.database.notifications import DUE
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import delivery, still_in
from popserver.delivery.history import record
from popserver.delivery.message_groups import MessageGroupKey, advance_groups, by_member, runs_of
from popserver.engine.transaction import Locks, Phase, Request, Transaction, carries_out
from popserver.model.errors import PopError, TooManyRequests
from popserver.model.group import Group
from popserver.model.handles import NO_HOLD, Receipt
from popserver.model.retry import ORPHAN_DELAY_MS, Holder
from popserver.model.states import Event, State, sources, target
from popserver.model.topic import queue_of
from popserver.settling.refusals import GrantedRow, locks_in_order, moved


@dataclass(frozen=True, slots=True)
class AbandonHolds(Request[None]):
    """Holds whose holder is gone: all push holds of a client, or the holds of these receipts."""

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
    answers: list[PopError | None] = []
    for request in requests:
        of_client = _abandon_client(tx, request.client_id) if request.client_id else None
        of_receipts = _abandon_holds(tx, request.receipts) if request.receipts else None
        answers.append(of_client or of_receipts)
        tx.expect(DUE, tx.now_ms + ORPHAN_DELAY_MS)
    return answers


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
        tx.conn.execute(_EXTEND, {"of_client": request.client_id, "until_ms": request.until_ms, "now_ms": tx.now_ms})
    return [None] * len(requests)


def _abandon_client(tx: Transaction, client_id: str) -> PopError | None:
    names = {"of_client": client_id, "until_ms": tx.now_ms + ORPHAN_DELAY_MS}
    tx.conn.execute(_ABANDON_CLIENT, names)
    if not dialect_of(tx.conn).has_skipped(tx.conn, _STILL_HELD, names):
        return None
    return TooManyRequests(
        f"a message held by client '{client_id}' is locked by another transaction; repeat the request"
    )


def _abandon_holds(tx: Transaction, receipts: Sequence[Receipt]) -> PopError | None:
    names = {"grants": encode_rows([each[:3] for each in receipts]), "until_ms": tx.now_ms + ORPHAN_DELAY_MS}
    tx.conn.execute(_ABANDON_HOLDS, names)
    if not dialect_of(tx.conn).has_skipped(tx.conn, _TOO_LONG, names):
        return None
    return TooManyRequests("a message whose client disconnected is locked by another transaction; repeat the request")


def _cancel_delivery(tx: Transaction, receipts: Sequence[Receipt]) -> PopError | None:
    names = {"grants": encode_rows([each[:3] for each in receipts]), "now_ms": tx.now_ms}
    rows = _GRANTED_FREE.of(tx.conn).rows(tx.conn, names)
    groups = groups_by_id(tx.conn, {row.group_id for row in rows})
    for group_id, several in groupby(rows, key=lambda row: row.group_id):
        if group_id in groups:
            _give_back_unused(tx, groups[group_id].group, list(several))
    if len(rows) == len(receipts) or not dialect_of(tx.conn).has_skipped(tx.conn, _GRANTED.of(tx.conn), names):
        return None
    return TooManyRequests("a message that was not sent is locked by another transaction; repeat the request")


def _give_back_unused(tx: Transaction, group: Group, rows: Sequence[GrantedRow]) -> None:
    keys = encode_rows([(group.group_id, row.message_key, row.hold_id) for row in rows])
    tx.conn.execute(_GIVE_BACK.of(tx.conn), {"grants": keys, "now_ms": tx.now_ms})
    record(tx, group, Event.GIVE_BACK, map(moved, rows))
    in_groups = {
        MessageGroupKey(row.topic_id, queue_of(row.message_key), row.message_group) for row in rows if row.message_group
    }
    if in_groups:
        runs = by_member(runs_of(tx.conn, group.group_id, in_groups))
        advance_groups(tx, group, {member: runs.get(member, []) for member in in_groups})
    for topic_id in {row.topic_id for row in rows if not row.message_group}:
        tx.ready_topics.add(topic_id)


_ENDS_SOON = {"holder": Holder.ORPHAN.value, "visible_at_ms": bindparam("until_ms")}
_OF_CLIENT = (
    delivery.c.client_id == bindparam("of_client"),
    delivery.c.holder == literal_column(f"'{Holder.PUSH}'"),
    still_in(delivery.c.state, State.INFLIGHT),
    delivery.c.visible_at_ms > bindparam("until_ms"),
)
_free = select(delivery.c.group_id, delivery.c.message_key).where(*_OF_CLIENT).with_for_update(skip_locked=True)
_ABANDON_CLIENT = (
    update(delivery).where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_free)).values(**_ENDS_SOON)
)
_STILL_HELD = select(delivery.c.message_key).where(*_OF_CLIENT).limit(1)
_GRANTS = rows_parameter("grants", "group_id", "message_key", "hold_id")
_TOO_LONG = (
    select(delivery.c.group_id, delivery.c.message_key)
    .select_from(_GRANTS)
    .join(
        delivery,
        and_(
            delivery.c.group_id == _GRANTS.c.group_id,
            delivery.c.message_key == _GRANTS.c.message_key,
            delivery.c.hold_id == _GRANTS.c.hold_id,
            still_in(delivery.c.state, State.INFLIGHT),
            delivery.c.visible_at_ms > bindparam("until_ms"),
        ),
    )
)
_too_long_free = _TOO_LONG.with_for_update(of=delivery, skip_locked=True)
_ABANDON_HOLDS = (
    update(delivery)
    .where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_too_long_free))
    .values(
        # A simple consumer may still prolong the messages it got before its answer broke off; that is no failure.
        holder=case(
            (delivery.c.holder == literal_column(f"'{Holder.SIMPLE}'"), Holder.SIMPLE.value), else_=Holder.ORPHAN.value
        ),
        visible_at_ms=bindparam("until_ms"),
        # Without a client, so that a client that comes back gets only the holds it knows of.
        client_id="",
    )
)


def _is_granted_now(row: FromClause) -> ColumnElement[bool]:
    return and_(
        row.c.hold_id == _GRANTS.c.hold_id,
        still_in(row.c.state, *sources(Event.GIVE_BACK)),
        row.c.visible_at_ms > bindparam("now_ms"),
    )


def _granted(dialect: Dialect, *, locks: bool) -> Select[Any]:
    found, row = joined(dialect, _GRANTS, delivery, "group_id", "message_key", skips_locked=locks)
    columns = [row.c[name] for name in GrantedRow._fields]
    return select(*columns).select_from(found).where(_is_granted_now(row)).order_by(row.c.group_id, row.c.message_key)


_GRANTED = PerDialect(partial(_granted, locks=False))
_GRANTED_FREE = PerDialect(lambda dialect: RowStatement(GrantedRow, _granted(dialect, locks=True)))
_GIVE_BACK = PerDialect(
    lambda dialect: (
        update(delivery)
        .where(are_newest(dialect, delivery, _GRANTS, "group_id", "message_key"), _is_granted_now(delivery))
        .values(
            state=target(Event.GIVE_BACK).value,
            attempt=delivery.c.attempt - 1,
            uncounted=delivery.c.uncounted + 1,
            # After this no receipt handle is valid, and neither is a repeated change of one.
            hold_id=NO_HOLD,
            visible_at_ms=bindparam("now_ms", type_=BigInteger),
        )
    )
)
_abandoned = (
    select(delivery.c.group_id, delivery.c.message_key)
    .where(
        delivery.c.client_id == bindparam("of_client"),
        delivery.c.holder == literal_column(f"'{Holder.ORPHAN}'"),
        still_in(delivery.c.state, State.INFLIGHT),
        delivery.c.visible_at_ms > bindparam("now_ms"),
    )
    .with_for_update(skip_locked=True)
)
_EXTEND = (
    update(delivery)
    .where(tuple_(delivery.c.group_id, delivery.c.message_key).in_(_abandoned))
    .values(holder=Holder.PUSH.value, visible_at_ms=bindparam("until_ms"))
)
