"""Half messages: producers commit them or roll them back; undecided ones are checked.

A decision names its rows and waits for their locks. A check chooses rows and skips those that another server locked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

from sqlalchemy import Connection

from popserver.catalog.topics import topic_by_topic, topics_by_id
from popserver.engine.searches import SearchedFrom
from popserver.engine.transaction import Phase, Request, Transaction, carries_out
from popserver.messages import by_key, pending_messages, read
from popserver.messages.pending_messages import PendingRow
from popserver.model.errors import InvalidTransactionId, PopError
from popserver.model.handles import is_transaction_of
from popserver.model.message import StoredMessage, id_from_bytes, id_to_bytes
from popserver.model.names import Resource
from popserver.model.states import PendingKind
from popserver.model.topic import Topic
from popserver.producing.enqueue import enqueue
from popserver.producing.pending_facts import stored_pending
from popserver.producing.rules import CheckPolicy, Resolution

CHECKS_PER_STEP_MAX = 100


class Decision(NamedTuple):
    """Whether a half message is decided. `age_ms`: its age, if this request has decided it."""

    is_made: bool
    age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class EndTransaction(Request[Decision]):
    """A producer's decision about its half message."""

    phase: ClassVar = Phase.END_TRANSACTION
    topic: Topic
    message_id: str
    transaction_id: str
    resolution: Resolution


class ClaimedChecks(NamedTuple):
    """The checks to send now, the discarded half messages, and when the next check of these topics is due."""

    checks: list[Check]
    discarded: list[ExpiredHalf]
    next_check_ms: int | None


@dataclass(frozen=True, slots=True)
class ClaimChecks(Request[ClaimedChecks]):
    """Claim the due checks of half messages in these topics."""

    phase: ClassVar = Phase.CLAIM_CHECKS
    topic_ids: frozenset[int]
    policy: CheckPolicy


class Check(NamedTuple):
    """A half message that a producer is asked about. `checks_before`: the number of checks so far."""

    pending_id: int
    topic_id: int
    stored: StoredMessage
    transaction_id: str
    client_id: str
    checks_before: int


class ExpiredHalf(NamedTuple):
    """A half message that was discarded, because it stayed undecided after `checks` checks."""

    topic: Resource
    message_id: str
    checks: int


@dataclass(frozen=True, slots=True)
class ReturnChecks(Request[None]):
    """Take back checks that reached no producer: they do not count, and are due again at once."""

    phase: ClassVar = Phase.RETURN_CHECKS
    pending_ids: Sequence[int]


@carries_out(EndTransaction)
def end_transaction(tx: Transaction, requests: Sequence[EndTransaction]) -> list[Decision | PopError]:
    """Commit or roll back half messages; the first decision counts (protocol 8.1).

    A commit is not made if another server has locked the message's queue: the caller repeats the request.
    """
    return topic_by_topic(requests, partial(_end_in_topic, tx))


@carries_out(ClaimChecks)
def claim_checks(tx: Transaction, requests: Sequence[ClaimChecks]) -> list[ClaimedChecks | PopError]:
    """Claim the half messages whose check is due. They are due again after an interval; after the last check they are
    discarded. The first request gets all of them.
    """
    policy = requests[0].policy
    from_ms = _checks_from(tx, frozenset[int]().union(*(each.topic_ids for each in requests)))
    found = pending_messages.due_checks(tx.conn, from_ms, tx.now_ms, CHECKS_PER_STEP_MAX)
    due = read.within_a_page((row, row.size) for row in found)  # a check carries the whole message
    names = topics_by_id(tx.conn, {row.topic_id for row in due}) if due else {}
    discarded = [row for row in due if row.checks >= policy.checks_max]
    pending_messages.remove(tx.conn, (row.pending_id for row in discarded))
    asked = [row for row in due if row.checks < policy.checks_max]
    if asked:
        pending_messages.count_check(tx.conn, (row.pending_id for row in asked), tx.now_ms + policy.interval_ms)
    next_check_ms = _next_check_ms(tx, from_ms)
    first = ClaimedChecks(
        _checks(tx.conn, asked, names),
        [_expired(row, names) for row in discarded if row.topic_id in names],
        next_check_ms,
    )
    return [first, *[ClaimedChecks([], [], next_check_ms)] * (len(requests) - 1)]


class ChecksFrom(SearchedFrom[int]):
    """The lower time bounds of searches for checks, by topic id. A check is due after its half message is stored."""

    slack_ms: ClassVar = 100


def _checks_from(tx: Transaction, topic_ids: Iterable[int]) -> dict[int, int]:
    """The time at which the search begins, for each topic."""
    return {each: tx.search_from(ChecksFrom, each, tx.now_ms) for each in topic_ids}


def _next_check_ms(tx: Transaction, from_ms: Mapping[int, int]) -> int | None:
    """When the next check of these topics is due."""
    next_ms = pending_messages.next_checks(tx.conn, from_ms)
    tx.after_commit += [tx.remembered(ChecksFrom).saw(topic_id, next_ms[topic_id], tx.now_ms) for topic_id in from_ms]
    return min((each for each in next_ms.values() if each is not None), default=None)


@carries_out(ReturnChecks)
def return_checks(tx: Transaction, requests: Sequence[ReturnChecks]) -> list[PopError | None]:
    """Subtract the checks that reached no producer."""
    ids = (each for request in requests for each in request.pending_ids)
    pending_messages.uncount_check(tx.conn, ids, tx.now_ms)
    return [None] * len(requests)


def _end_in_topic(tx: Transaction, requests: Sequence[EndTransaction]) -> list[Decision | PopError]:
    topic = requests[0].topic
    ids = {id_to_bytes(each.message_id) for each in requests}
    rows = _halves_first(pending_messages.lock(tx.conn, topic.topic_id, ids))
    decided: dict[bytes, Resolution] = {}
    answers = [_decide(tx, each, rows, decided) for each in requests]
    rolled_back = (rows[each].pending_id for each, said in decided.items() if said is Resolution.ROLLBACK)
    pending_messages.remove(tx.conn, rolled_back)
    committed = [rows[each] for each, said in decided.items() if said is Resolution.COMMIT]
    left = {bytes(row.message_id) for row in enqueue(tx, committed).left} if committed else set()
    return [
        Decision(is_made=False) if id_to_bytes(each.message_id) in left else answer
        for each, answer in zip(requests, answers, strict=True)
    ]


def _halves_first(rows: dict[bytes, list[PendingRow]]) -> dict[bytes, PendingRow]:
    """One row of each id: the half message if there is one."""
    return {each: min(several, key=lambda row: row.kind != PendingKind.HALF) for each, several in rows.items()}


def _decide(
    tx: Transaction, request: EndTransaction, rows: dict[bytes, PendingRow], decided: dict[bytes, Resolution]
) -> Decision | PopError:
    """Add the decision to `decided` if there is none yet. Returns the decision, or a refusal."""
    message_id = id_to_bytes(request.message_id)
    row = rows.get(message_id)
    if row is not None and message_id not in decided:
        if row.kind != PendingKind.HALF or row.transaction_id != request.transaction_id:
            return _unknown(request)
        decided[message_id] = request.resolution
        return Decision(is_made=True, age_ms=max(0, tx.now_ms - row.stored_at_ms))
    # The transaction id may be from an older server, in another form.
    is_given = row is not None and row.transaction_id == request.transaction_id
    if not is_given and not is_transaction_of(request.transaction_id, request.topic.topic_id, message_id):
        return _unknown(request)
    first = decided.get(message_id)
    if first is None and by_key.original(tx.conn, request.topic.topic_id, message_id) is not None:
        first = Resolution.COMMIT
    if first is Resolution.COMMIT and request.resolution is Resolution.ROLLBACK:
        return _committed(request)
    # A half message that is neither pending nor in a queue was rolled back or discarded.
    return Decision(is_made=True) if request.resolution in (first, Resolution.ROLLBACK) else _unknown(request)


def _committed(request: EndTransaction) -> InvalidTransactionId:
    return InvalidTransactionId(
        f"the half message '{request.message_id[:64]}' of topic '{request.topic.name}' was committed before and cannot"
        " be rolled back; the first decision counts"
    )


def _unknown(request: EndTransaction) -> InvalidTransactionId:
    return InvalidTransactionId(
        f"topic '{request.topic.name}' has no undecided half message '{request.message_id[:64]}' with transaction id"
        f" '{request.transaction_id[:64]}': it was rolled back, given up after the last check, or never sent"
    )


def _checks(conn: Connection, asked: Sequence[PendingRow], topics: dict[int, Topic]) -> list[Check]:
    messages = stored_pending(conn, {row.pending_id: topics[row.topic_id] for row in asked if row.topic_id in topics})
    return [
        Check(row.pending_id, row.topic_id, stored, row.transaction_id or "", row.client_id, row.checks)
        for row in asked
        if (stored := messages.get(row.pending_id)) is not None
    ]


def _expired(row: PendingRow, topics: dict[int, Topic]) -> ExpiredHalf:
    return ExpiredHalf(topics[row.topic_id].name, id_from_bytes(bytes(row.message_id)), row.checks)
