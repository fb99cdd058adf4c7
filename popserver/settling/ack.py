"""Acks: INFLIGHT → COMMIT, many at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

from popserver.delivery import deliveries, holds
from popserver.delivery.advance import advance_groups, by_member, open_all, runs_around
from popserver.delivery.history import record
from popserver.engine.transaction import (
    STEP_ROWS_MAX,
    Locks,
    Outdated,
    Phase,
    Request,
    Transaction,
    carries_out,
    in_steps,
)
from popserver.model.errors import PopError
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.states import Event
from popserver.model.topic import queue_of
from popserver.settling.refusals import is_held, locks_in_order, moved, why_not


@dataclass(frozen=True, slots=True)
class Ack(Request[list[PopError | None]]):
    """Commit the messages of these receipts of one group."""

    phase: ClassVar = Phase.ACK
    group: Group
    receipts: Sequence[Receipt]

    def locks(self) -> Iterable[Locks]:
        return locks_in_order(self.receipts)


@dataclass(frozen=True, slots=True)
class PlainAck(Ack):
    """Receipts of messages that are in no message group: there is nothing to lock."""

    locks = Request.locks


@carries_out(Ack, PlainAck)
def ack(tx: Transaction, requests: Sequence[Ack]) -> list[list[PopError | None]]:
    """INFLIGHT → COMMIT. The answer has one entry per receipt: None, or the reason of its refusal.

    While an earlier message of the message group is not acked, an ack is provisional; its entry is None as well.
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


def _steps(requests: Sequence[Ack], *, in_order: bool) -> Iterator[Sequence[Receipt]]:
    """Split the receipts with (or without) a message group into steps, sorted by key.

    The receipts of one request stay in one step if they fit, so that whole runs of a message group end together.
    """
    steps: list[set[Receipt]] = [set()]
    for request in requests:
        some = {each for each in request.receipts if each.in_order is in_order}
        if len(steps[-1]) + len(some) > STEP_ROWS_MAX:
            steps.append(set())
        steps[-1] |= some
    for step in steps:
        yield from in_steps(sorted(step)) if len(step) > STEP_ROWS_MAX else [sorted(step)] if step else ()


def _commit(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> dict[Receipt, PopError | None]:
    """Commit the receipts. Returns the others, each with the reason of its refusal (None: it was committed before)."""
    named = [(each.message_key, each.hold_id) for each in receipts]
    is_kept = Event.ACK in group.history.kept
    # A client that came back may hold longer than its handle states. The statement returns those that it acked.
    if is_kept or any(each.ends_at_ms <= tx.now_ms for each in receipts):
        rows = deliveries.commit_returning(tx, group.group_id, named)
        if is_kept:
            record(tx, group, Event.ACK, (moved(row) for row in rows))
        committed = {(row.message_key, row.hold_id) for row in rows}
        return {
            each: why_not(tx, group, each) for each in receipts if (each.message_key, each.hold_id) not in committed
        }
    count = deliveries.commit(tx, group.group_id, named)
    if count == len(receipts):
        return {}
    return {each: why_not(tx, group, each) for each in _left_over(tx, receipts, count)}


def _left_over(tx: Transaction, receipts: Sequence[Receipt], committed: int) -> Sequence[Receipt]:
    """The receipts whose outcome must be looked up: those whose rows still exist, or all if the counts differ."""
    present = holds.present(tx.conn, receipts)
    left = [each for each in receipts if each.message_key in present]
    return left if len(receipts) - len(left) == committed else receipts


def _commit_in_order(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> dict[Receipt, PopError | None]:
    """Commit receipts of message groups. Their progress rows are locked. An ack may open the whole message group."""
    if ack_whole_runs(tx, group, receipts):
        return {}
    free = _not_locked(tx, receipts)
    rows = runs_around(tx.conn, group.group_id, (each.message_key for each in receipts))
    current = {(row.message_key, row.hold_id) for row in rows if is_held(tx, row)}
    good = {each for each in free if (each.message_key, each.hold_id) in current}
    if good:
        acked = {each.message_key for each in good}
        runs = by_member(rows).items()
        touched = {member: run for member, run in runs if any(row.message_key in acked for row in run)}
        advance_groups(tx, group, touched, acked)
    return {each: why_not(tx, group, each) for each in receipts if each not in good}


def _not_locked(tx: Transaction, receipts: Sequence[Receipt]) -> set[Receipt]:
    """The receipts whose rows no user's transaction has locked. The writer never waits for such a lock."""
    if not tx.has_other_writers:
        return set(receipts)
    free = holds.lock_present(tx.conn, receipts)
    return {each for each in receipts if each.message_key in free}


def ack_whole_runs(tx: Transaction, group: Group, receipts: Sequence[Receipt]) -> bool:
    """The fast path of acks in message groups: commit the receipts if they end whole runs, as nearly all acks do. The
    caller has locked the progress of the queues.

    Returns False and changes nothing if they do not, or if the group's history keeps a row for each ack.
    """
    if Event.ACK in group.history.kept:
        return False
    # Two receipts of one hold may name different end times. They count once, not also for another message.
    holds = sorted({(group.group_id, each.message_key, each.hold_id, queue_of(each.message_key)) for each in receipts})
    row = deliveries.commit_whole_runs(tx, holds)
    if not row.are_whole(len(holds)):
        return False
    if row.ended < row.held:
        # A user's own transaction has changed a row after the statement began, and before it locked the row.
        raise Outdated
    if row.members not in (None, "[]"):
        open_all(tx, group, row.members, {row.first_topic, row.last_topic})
    return True
