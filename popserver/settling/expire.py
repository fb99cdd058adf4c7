"""Due deliveries: holds whose time ended, and retries whose interval is over.

First, pure code decides which event happened to each due delivery. Then one statement per event changes the rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from popserver.catalog.groups import FoundGroup, groups_by_id
from popserver.catalog.progress import GroupQueueKey, lock_available
from popserver.delivery import deliveries, due
from popserver.delivery.advance import advance_members
from popserver.delivery.dead_letter_topic import DeadLetterCandidate, move_to_dead_letters
from popserver.delivery.deliveries import DeliveryRow
from popserver.delivery.history import as_moved, record
from popserver.delivery.queues_to_read import ReadyFrom
from popserver.delivery.retry_topic import requeue
from popserver.engine.searches import SearchedFrom
from popserver.engine.transaction import STEP_ROWS_MAX, Phase, Request, Transaction, carries_out
from popserver.fifo.positions import MessageGroupKey
from popserver.model.errors import PopError
from popserver.model.group import Group, Mode
from popserver.model.retry import Holder, interval_ms, when_hold_ends
from popserver.model.states import Event, State, target
from popserver.model.topic import queue_of

CHECK_AGAIN_MS_MIN = 20
CHECK_AGAIN_MS_MAX = 1_000

REASONS = {
    Event.RELEASE: "the hold's time ended",
    Event.RETRY: "the hold's time ended",
    Event.EXHAUST: "the hold's time ended, and no attempt remains",
    Event.BACKOFF_ELAPSED: "",
}


class EndedHolds(NamedTuple):
    """When the next delivery is due: now if more than one step was due; None if nothing waits.

    `requeued`: how many messages are READY again, by group id and topic id.
    """

    next_due_ms: int | None
    requeued: Mapping[tuple[int, int], int] = {}


@dataclass(frozen=True, slots=True)
class EndDue(Request[EndedHolds]):
    """A step of at most 1,000 due deliveries."""

    phase: ClassVar = Phase.END_DUE


@carries_out(EndDue)
def end_due(tx: Transaction, requests: Sequence[EndDue]) -> list[EndedHolds | PopError]:
    """End the due holds and intervals of one step. Several requests in one transaction share the step; the first one's
    answer has what was requeued."""
    due_now = _take_due(tx, _due_from(tx))
    groups = groups_by_id(tx.conn, {row.group_id for row in due_now.free}) if due_now.free else {}
    groups = {group_id: found for group_id, found in groups.items() if not _uses_deleted_retry_topic(found)}
    # Deliveries of removed groups: they would stay due.
    deliveries.remove(tx.conn, [(row.group_id, row.message_key) for row in due_now.free if row.group_id not in groups])
    requeued: Counter[tuple[int, int]] = Counter()
    retried_ms: list[int] = []
    for (group_id, event), several in _plan(due_now.free, groups).items():
        group = groups[group_id].group
        _carry_out(tx, group, event, several)
        if target(event) is State.READY:
            requeued.update((group_id, row.topic_id) for row in several)
        elif event is Event.RETRY:
            retried_ms += (_visible_at_ms(tx, row, event, group) for row in several)
    _advance_groups(tx, due_now.free, groups)
    earliest_ms = min([*due_now.left_ms, *due_now.later_ms, *retried_ms], default=None)
    tx.after_commit.append(tx.remembered(DueFrom).saw(None, earliest_ms, tx.now_ms))
    ended = EndedHolds(earliest_ms if due_now.free else _when_to_check_again(tx.now_ms, due_now))
    return [ended._replace(requeued=requeued), *[ended] * (len(requests) - 1)]


class _DueNow(NamedTuple):
    """The deliveries that can be ended now, when the other due ones were due, and when later ones will be."""

    free: Sequence[DeliveryRow]
    left_ms: Sequence[int]
    later_ms: Sequence[int]


class DueFrom(SearchedFrom[None]):
    """One search finds the due deliveries of all groups. Few rows are due already when they are stored."""

    slack_ms: ClassVar = 100


def _due_from(tx: Transaction) -> int:
    """Lower time bound of the search. An ack in a user's transaction is due at 0."""
    from_ms = tx.search_from(DueFrom, None, tx.now_ms)
    return 0 if from_ms and due.is_acked_by_a_user(tx.conn) else from_ms


def _when_to_check_again(now_ms: int, due_now: _DueNow) -> int | None:
    """When to try again after a step that ended nothing: other transactions have locked what is due."""
    again_ms = list(due_now.later_ms)
    if due_now.left_ms:
        # Another server's lock is short, but a user's transaction may hold one for hours: the longer a delivery is
        # overdue, the longer the pause. An ack in a user's transaction is due at 0, so its age is unknown.
        overdue_ms = now_ms - min(due_now.left_ms) if min(due_now.left_ms) else 0
        again_ms.append(now_ms + min(max(overdue_ms // 2, CHECK_AGAIN_MS_MIN), CHECK_AGAIN_MS_MAX))
    return min(again_ms, default=None)


def _take_due(tx: Transaction, from_ms: int) -> _DueNow:
    """Find what is due from `from_ms` on, and lock what can be ended: at most one step."""
    limit = STEP_ROWS_MAX
    while True:
        seen = due.search(tx.conn, from_ms, tx.now_ms, limit)
        now = [row for row in seen if row.visible_at_ms <= tx.now_ms]
        free = _free(tx, now)[:STEP_ROWS_MAX]
        if free or len(now) < limit:
            break
        limit *= 4  # other transactions have locked all of these
    keys = {(row.group_id, row.message_key) for row in free}
    left_ms = [row.visible_at_ms for row in now if (row.group_id, row.message_key) not in keys]
    if len(now) == limit:
        left_ms.append(now[-1].visible_at_ms)  # more may be due
    return _DueNow(free, left_ms, [row.visible_at_ms for row in seen if row.visible_at_ms > tx.now_ms])


def _free(tx: Transaction, rows: list[DeliveryRow]) -> list[DeliveryRow]:
    """Lock and return the rows that no other transaction has locked: of a message group, with its progress."""
    taken = lock_available(tx, (_progress_of(row) for row in rows if row.message_group is not None))
    return due.lock(tx, (row for row in rows if row.message_group is None or _progress_of(row) in taken))


def _progress_of(row: DeliveryRow) -> GroupQueueKey:
    return GroupQueueKey(row.group_id, queue_of(row.message_key))


def _uses_deleted_retry_topic(found: FoundGroup) -> bool:
    """Whether a deleted group uses a retry topic: a retry message would create the deleted topic again."""
    return found.is_deleted and found.group.mode is Mode.PULL


def _plan(rows: Sequence[DeliveryRow], groups: dict[int, FoundGroup]) -> dict[tuple[int, Event], list[DeliveryRow]]:
    """The deliveries of each (group id, event), sorted by message key."""
    plan: dict[tuple[int, Event], list[DeliveryRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda each: (each.group_id, each.message_key)):
        if row.group_id in groups:
            plan[row.group_id, _event(row, groups[row.group_id])].append(row)
    return plan


def _event(row: DeliveryRow, found: FoundGroup) -> Event:
    if row.state == State.WAITING_RETRY:
        return Event.BACKOFF_ELAPSED
    if row.state == State.ACKED_IN_TRANSACTION:
        # Acked in the consumer's own transaction (docs/sql.md), which can change only the delivery's row.
        return Event.ACK
    if found.is_deleted:
        # A dead letter would create the dead-letter topic again that was deleted with the group.
        return Event.RELEASE
    return when_hold_ends(Holder(row.holder), row.attempt, found.group.retry)


def _carry_out(tx: Transaction, group: Group, event: Event, rows: Sequence[DeliveryRow]) -> None:
    if event is Event.EXHAUST:
        candidates = [DeadLetterCandidate(row.message_key, row.topic_id, row.attempt, row.client_id) for row in rows]
        move_to_dead_letters(tx, group, candidates, event, REASONS[event])
        return
    if event is Event.BACKOFF_ELAPSED and group.mode is Mode.PULL:
        requeue(tx, group, rows)
        return
    if event is Event.ACK:
        return  # with its message group
    moves = ((group.group_id, row.message_key, _visible_at_ms(tx, row, event, group)) for row in rows)
    deliveries.end_time(tx, event, moves)
    record(tx, group, event, (as_moved(row) for row in rows), REASONS[event])
    if target(event) is State.READY:
        for topic_id in {row.topic_id for row in rows if row.message_group is None}:
            tx.ready_topics.add(topic_id)


def _advance_groups(tx: Transaction, rows: Sequence[DeliveryRow], groups: dict[int, FoundGroup]) -> None:
    """Advance the message groups of the deliveries that ended."""
    touched: dict[int, set[MessageGroupKey]] = defaultdict(set)
    acked: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row.message_group is None or row.group_id not in groups:
            continue
        touched[row.group_id].add(MessageGroupKey(row.topic_id, queue_of(row.message_key), row.message_group))
        if row.state == State.ACKED_IN_TRANSACTION:
            acked[row.group_id].add(row.message_key)
    for group_id, members in sorted(touched.items()):
        advance_members(tx, groups[group_id].group, members, acked[group_id])


def _visible_at_ms(tx: Transaction, row: DeliveryRow, event: Event, group: Group) -> int:
    """A retry's interval starts when the hold ended, not when the server noticed it (requirement L18). A message is
    READY since then too; but if the server was late, since a moment ago: searches of other servers begin there."""
    if event is Event.RETRY:
        return row.visible_at_ms + interval_ms(group.retry, row.attempt, in_order=row.message_group is not None)
    return max(row.visible_at_ms, tx.now_ms - ReadyFrom.slack_ms // 2)
