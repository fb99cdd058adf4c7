"""Attempts: all messages that one receive holds, by its attempt id (docs/design/0017).

A client that receives many messages at once needs no receipt handle for each. By the attempt id it can read the held
messages, renew the holds, and ack them. They are holds of a simple consumer. Holds that ended are not included.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, func, select

from popserver.bulk.rules import RECEIVE_BYTES_MAX
from popserver.catalog.progress import GroupQueueKey, lock_available
from popserver.database.dialect import dialect_of
from popserver.database.notifications import DUE
from popserver.delivery import deliveries, holds
from popserver.delivery.history import Moved, record
from popserver.delivery.holds import AttemptRow
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each
from popserver.messages import by_key
from popserver.messages.read import within_a_page
from popserver.model.errors import PopError
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.message import HeldMessage
from popserver.model.states import Event, State
from popserver.model.topic import Topic, queue_of
from popserver.receiving.batch import Receive
from popserver.receiving.receive import grant_to_attempt, new_holds
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
    """The messages that a receive holds, by key. If `is_final` is false, the caller repeats the request: messages may
    be left, or another server serves the same attempt."""

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


def held_by(conn: Connection, attempt: Attempt, now_ms: int) -> list[HeldMessage]:
    """The messages that the attempt holds, sorted by key."""
    return [HeldMessage(row.message_key, row.attempt) for row in _held(conn, attempt, now_ms)]


def receipts_of(conn: Connection, attempt: Attempt, now_ms: int) -> list[Receipt]:
    """The receipts of the attempt's holds."""
    return [_receipt(attempt.group, row) for row in _held(conn, attempt, now_ms)]


@carries_out_each(ReceiveAttempt)
def receive(tx: Transaction, attempted: ReceiveAttempt) -> Answer:
    """The messages that the request's attempt holds. If it holds none, up to `batch_size` messages are granted to it.

    It keeps messages with at most `RECEIVE_BYTES_MAX` of bodies, at least one; the others are given back unused.
    """
    request = attempted.receive
    assert request.attempt_id, "this receive has an attempt id"
    attempt = Attempt(request.group, request.topic, request.attempt_id)
    if not _lock(tx, attempt):
        return Answer([], is_final=False)
    held = held_by(tx.conn, attempt, tx.now_ms)
    if held:
        return Answer(held, is_final=True)
    grants, more = grant_to_attempt(tx, request)
    keys = [receipt.message_key for receipt, _ in grants]
    sizes = by_key.sizes(tx.conn, keys)
    kept = grants[: len(within_a_page(((key, sizes[key]) for key in keys), RECEIVE_BYTES_MAX))]
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


@carries_out_each(Renew)
def renew(tx: Transaction, request: Renew) -> int:
    """Restart the time of all holds of the attempt, with new hold ids. Returns how many holds there are."""
    group = request.attempt.group
    rows = _held(tx.conn, request.attempt, tx.now_ms, locks=True)
    if not rows:
        return 0
    renewed = zip(rows, new_holds(len(rows)), strict=True)
    until_ms = tx.now_ms + request.invisible_ms
    keys = ((group.group_id, row.message_key, row.hold_id, successor) for row, successor in renewed)
    deliveries.renew(tx, keys, until_ms)
    record(tx, group, Event.CHANGE_INVISIBLE, map(_moved, rows))
    tx.expect(DUE, until_ms)
    return len(rows)


@carries_out_each(AckAttempt)
def ack(tx: Transaction, request: AckAttempt) -> AttemptAck:
    """INFLIGHT → COMMIT for all holds of the attempt; provisional after an un-acked message of the message group."""
    attempt, group = request.attempt, request.attempt.group
    rows = _held(tx.conn, attempt, tx.now_ms)
    in_order = {
        GroupQueueKey(group.group_id, queue_of(row.message_key)) for row in rows if row.message_group is not None
    }
    free = lock_available(tx, in_order)
    receipts = [
        _receipt(group, row)
        for row in rows
        if row.message_group is None or GroupQueueKey(group.group_id, queue_of(row.message_key)) in free
    ]
    (outcomes,) = settling_ack.ack(tx, [settling_ack.Ack(group, receipts)])
    assert not isinstance(outcomes, PopError), "receipts are refused one by one"
    done = outcomes.count(None)
    return AttemptAck(done, is_all=done == len(rows))


def _receipt(group: Group, row: AttemptRow) -> Receipt:
    return Receipt(group.group_id, row.message_key, row.hold_id, row.visible_at_ms, row.message_group is not None)


def _moved(row: AttemptRow) -> Moved:
    return Moved(row.message_key, State.INFLIGHT, row.attempt, row.client_id)


def _held(conn: Connection, attempt: Attempt, now_ms: int, *, locks: bool = False) -> list[AttemptRow]:
    of = attempt.group.group_id, attempt.topic.topic_id, attempt.attempt_id
    return holds.by_bulk_attempt(conn, *of, now_ms, locks=locks)


_LOCK = select(func.pg_try_advisory_xact_lock(bindparam("key", type_=BigInteger)))
