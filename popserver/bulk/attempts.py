"""Attempts: all messages that one receive holds, by its attempt id (docs/design/0017).

A client that receives many messages at once needs no receipt handle for each. By its attempt id it can read what is
still held, renew the holds, and ack them. They are holds of a simple consumer; holds that ended are not included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import BigInteger, Connection, Select, and_, bindparam, func, literal_column, select, update

from popserver.bulk.rules import RECEIVE_BYTES_MAX
from popserver.database.dialect import dialect_of
from popserver.database.newest import no_index_has
from popserver.database.notifications import DUE
from popserver.database.rows import RowQuery, encode_rows, rows_parameter
from popserver.database.schema import delivery, message, still_in
from popserver.delivery.history import Moved, record
from popserver.delivery.message_groups import GroupQueueKey, lock_available
from popserver.engine.transaction import Phase, Request, Transaction, carries_out
from popserver.messages.read import MessageSize
from popserver.model.errors import PopError
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.message import HeldMessage
from popserver.model.retry import Holder
from popserver.model.states import Event, State, sources, target
from popserver.model.topic import Topic, queue_of
from popserver.receiving.grant import Receive, new_holds
from popserver.receiving.receive import grant_to_attempt
from popserver.settling import ack as settling_ack
from popserver.settling import release


class Attempt(NamedTuple):
    """A receive of a group in a topic, by its attempt id."""

    group: Group
    topic: Topic
    attempt_id: str


@dataclass(frozen=True, slots=True)
class Renew(Request[int]):
    """Renew an attempt's holds for `invisible_ms` from now."""

    phase: ClassVar = Phase.RENEW_ATTEMPT
    attempt: Attempt
    invisible_ms: int


class Answer(NamedTuple):
    """The messages that a receive holds, by key. If `is_final` is false, the caller must ask again: messages may be
    left, or another server serves the same attempt."""

    held: list[HeldMessage]
    is_final: bool


class AttemptAck(NamedTuple):
    """How many messages were acked; `is_all` is false if some are locked and could not be."""

    messages: int
    is_all: bool


@dataclass(frozen=True, slots=True)
class ReceiveAttempt(Request[Answer]):
    """A receive with an attempt id."""

    phase: ClassVar = Phase.RECEIVE_ATTEMPT
    receive: Receive


@dataclass(frozen=True, slots=True)
class AckAttempt(Request[AttemptAck]):
    """Ack all messages of an attempt."""

    phase: ClassVar = Phase.ACK_ATTEMPT
    attempt: Attempt


class _AttemptRow(NamedTuple):
    message_key: int
    attempt: int
    hold_id: int
    visible_at_ms: int
    client_id: str
    message_group: str | None


def held_by(conn: Connection, attempt: Attempt, now_ms: int) -> list[HeldMessage]:
    """The messages that the attempt holds, sorted by key."""
    return [HeldMessage(row.message_key, row.attempt) for row in _HELD.rows(conn, _named(attempt, now_ms))]


def receipts_of(conn: Connection, attempt: Attempt, now_ms: int) -> list[Receipt]:
    """The receipts of the attempt's holds."""
    return [_receipt(attempt.group, row) for row in _HELD.rows(conn, _named(attempt, now_ms))]


@carries_out(ReceiveAttempt)
def receive(tx: Transaction, requests: Sequence[ReceiveAttempt]) -> list[Answer | PopError]:
    """The messages that each request's attempt holds. If it holds none, up to `batch_size` messages are granted to it.

    It keeps messages with at most `RECEIVE_BYTES_MAX` of bodies, at least one; the others are given back unused.
    """
    return [_receive(tx, request.receive) for request in requests]


@carries_out(Renew)
def renew(tx: Transaction, requests: Sequence[Renew]) -> list[int | PopError]:
    """Restart the time of all holds of each attempt, with new hold ids. Returns how many holds that are."""
    return [_renew(tx, request) for request in requests]


@carries_out(AckAttempt)
def ack(tx: Transaction, requests: Sequence[AckAttempt]) -> list[AttemptAck | PopError]:
    """INFLIGHT → COMMIT for all holds of each attempt; provisional after an un-acked message of the message group."""
    return [_ack(tx, request.attempt) for request in requests]


def _receive(tx: Transaction, request: Receive) -> Answer:
    assert request.attempt_id, "this receive has an attempt id"
    attempt = Attempt(request.group, request.topic, request.attempt_id)
    if not _lock(tx, attempt):
        return Answer([], is_final=False)
    held = held_by(tx.conn, attempt, tx.now_ms)
    if held:
        return Answer(held, is_final=True)
    grants, more = grant_to_attempt(tx, request)
    kept = grants[: _within_bytes(tx, [receipt.message_key for receipt, _ in grants])]
    excess = [receipt for receipt, _ in grants[len(kept) :]]
    if excess:
        release.cancel_delivery(tx, [release.CancelDelivery(excess)])
    found = sorted(HeldMessage(receipt.message_key, number) for receipt, number in kept)
    return Answer(found, is_final=bool(found) or not more)


def _lock(tx: Transaction, attempt: Attempt) -> bool:
    """Lock the attempt id. False if another server has it: that server's grants for the attempt are not visible yet."""
    name = f"{attempt.group.group_id}/{attempt.topic.topic_id}/{attempt.attempt_id}"
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)
    return dialect_of(tx.conn).try_lock(tx.conn, _LOCK, {"key": key})


def _within_bytes(tx: Transaction, keys: Sequence[int]) -> int:
    """How many of the first messages fit into one answer."""
    named = {"keys": encode_rows([(key,) for key in keys])}
    sizes = {each.message_key: each.size for each in _SIZES.rows(tx.conn, named)} if keys else {}
    ends = accumulate(sizes[key] for key in keys)
    return max(1, sum(end <= RECEIVE_BYTES_MAX for end in ends))


def _renew(tx: Transaction, request: Renew) -> int:
    group = request.attempt.group
    rows = _HELD_FREE.rows(tx.conn, _named(request.attempt, tx.now_ms))
    if not rows:
        return 0
    renewed = zip(rows, new_holds(len(rows)), strict=True)
    keys = encode_rows([(group.group_id, row.message_key, row.hold_id, successor) for row, successor in renewed])
    until_ms = tx.now_ms + request.invisible_ms
    tx.conn.execute(_RENEW, {"holds": keys, "until_ms": until_ms})
    record(tx, group, Event.CHANGE_INVISIBLE, map(_moved, rows))
    tx.expect(DUE, until_ms)
    return len(rows)


def _ack(tx: Transaction, attempt: Attempt) -> AttemptAck:
    group = attempt.group
    rows = _HELD.rows(tx.conn, _named(attempt, tx.now_ms))
    in_order = {
        GroupQueueKey(group.group_id, queue_of(row.message_key)) for row in rows if row.message_group is not None
    }
    free = lock_available(tx, in_order) if in_order else set()
    receipts = [
        _receipt(group, row)
        for row in rows
        if row.message_group is None or GroupQueueKey(group.group_id, queue_of(row.message_key)) in free
    ]
    (outcomes,) = settling_ack.ack(tx, [settling_ack.Ack(group, receipts)])
    assert not isinstance(outcomes, PopError), "receipts are refused one by one"
    done = outcomes.count(None)
    return AttemptAck(done, is_all=done == len(rows))


def _receipt(group: Group, row: _AttemptRow) -> Receipt:
    return Receipt(group.group_id, row.message_key, row.hold_id, row.visible_at_ms, row.message_group is not None)


def _moved(row: _AttemptRow) -> Moved:
    return Moved(row.message_key, State.INFLIGHT, row.attempt, row.client_id)


def _named(attempt: Attempt, now_ms: int) -> dict[str, Any]:
    return {
        "of_group": attempt.group.group_id,
        "of_topic": attempt.topic.topic_id,
        "of_attempt": attempt.attempt_id,
        "now_ms": now_ms,
    }


# The attempt id's index must be used: Postgres's statistics of a table whose rows come and go are out of date, and it
# might scan all deliveries of the group.
_group_id, _visible_at_ms = (no_index_has(each) for each in (delivery.c.group_id, delivery.c.visible_at_ms))
_held: Select[Any] = (
    select(*(delivery.c[name] for name in _AttemptRow._fields))
    .where(
        delivery.c.attempt_id == bindparam("of_attempt"),
        _group_id == bindparam("of_group"),
        delivery.c.topic_id == bindparam("of_topic"),
        delivery.c.holder == literal_column(f"'{Holder.SIMPLE}'"),
        still_in(delivery.c.state, State.INFLIGHT),
        _visible_at_ms > bindparam("now_ms"),
    )
    .order_by(delivery.c.message_key)
)
_HELD = RowQuery(_AttemptRow, _held)
# Skips rows that a user's own transaction has locked, instead of waiting.
_HELD_FREE = RowQuery(_AttemptRow, _held.with_for_update(skip_locked=True))
_LOCK = select(func.pg_try_advisory_xact_lock(bindparam("key", type_=BigInteger)))
_HOLDS = rows_parameter("holds", "group_id", "message_key", "hold_id", "successor")
_RENEW = (
    update(delivery)
    .where(
        and_(
            delivery.c.group_id == _HOLDS.c.group_id,
            delivery.c.message_key == _HOLDS.c.message_key,
            delivery.c.hold_id == _HOLDS.c.hold_id,
        ),
        still_in(delivery.c.state, *sources(Event.CHANGE_INVISIBLE)),
    )
    .values(
        state=target(Event.CHANGE_INVISIBLE).value,
        hold_id=_HOLDS.c.successor,
        visible_at_ms=bindparam("until_ms", type_=BigInteger),
    )
)
_KEYS = rows_parameter("keys", "message_key")
_SIZES = RowQuery(
    MessageSize,
    select(message.c.message_key, func.length(message.c.body).label("size")).where(
        message.c.message_key.in_(select(_KEYS.c.message_key))
    ),
)
