"""What falls due: holds that nobody ended, and retries whose interval is over.

Decide, then do: pure code says which event happened to each due delivery, then one statement per event carries it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import bindparam, delete, exists, func, select, tuple_, update

from popserver.catalog.groups import FoundGroup, groups_by_id
from popserver.database.dialect import dialect_of
from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import WITH_TIME, delivery, in_states
from popserver.delivery.dead_letter_topic import bury
from popserver.delivery.history import as_moved, record
from popserver.delivery.leaving import DueRow, Dying
from popserver.delivery.message_groups import Member, Place, by_member, lock_free, runs_of, settle
from popserver.delivery.retry_topic import come_again
from popserver.engine.transaction import STEP_ROWS_MAX, Phase, Request, Transaction, carries_out
from popserver.model.errors import PopError
from popserver.model.group import Group, Mode
from popserver.model.retry import Holder, interval_ms, when_hold_ends
from popserver.model.states import Event, State, sources, target
from popserver.model.topic import message_key, queue_of

LOOK_AGAIN_MS_MIN = 20
LOOK_AGAIN_MS_MAX = 1_000

REASONS = {
    Event.RELEASE: "the hold's time ended",
    Event.RETRY: "the hold's time ended",
    Event.EXHAUST: "the hold's time ended, and no attempt remains",
    Event.BACKOFF_ELAPSED: "",
}


class Ended(NamedTuple):
    """When the next falls due; at once where more than a step was due, None where nothing waits."""

    next_due_ms: int | None


@dataclass(frozen=True, slots=True)
class EndDue(Request[Ended]):
    """A step of at most 1,000 due deliveries."""

    phase: ClassVar = Phase.END_DUE


@carries_out(EndDue)
def end_due(tx: Transaction, requests: Sequence[EndDue]) -> list[Ended | PopError]:
    """End every due hold and interval of one step; several requests at once need only one step."""
    names = {"now_ms": tx.now_ms, "limit": STEP_ROWS_MAX}
    rows = [*_DUE.rows(tx.conn, names), *_due_in_order(tx, names)]
    groups = groups_by_id(tx.conn, {row.group_id for row in rows}) if rows else {}
    groups = {group_id: found for group_id, found in groups.items() if not _is_over(found)}
    _forget(tx, [row for row in rows if row.group_id not in groups])
    for (group_id, event), several in _plan(rows, groups).items():
        _carry_out(tx, groups[group_id].group, event, several)
    _settle_groups(tx, rows, groups)
    return [Ended(next_due_ms(tx.conn) if rows else _when_to_look_again(tx))] * len(requests)


def next_due_ms(conn: Any) -> int | None:
    """When the earliest hold or interval ends."""
    due_ms: int | None = conn.execute(_NEXT_DUE).scalar()
    return due_ms


def _when_to_look_again(tx: Transaction) -> int | None:
    """After a step that could end nothing: what is due nevertheless is in somebody else's hands."""
    earliest_ms = next_due_ms(tx.conn)
    if earliest_ms is None or earliest_ms > tx.now_ms:
        return earliest_ms
    # Another server's for a moment, or as long as a user likes: the longer it lies, the more rarely it is looked at.
    # An ack in its consumer's own transaction is due since nobody knows when.
    overdue_ms = tx.now_ms - earliest_ms if earliest_ms else 0
    again_ms = tx.now_ms + min(max(overdue_ms // 2, LOOK_AGAIN_MS_MIN), LOOK_AGAIN_MS_MAX)
    later_ms = tx.conn.execute(_NEXT_LATER, {"now_ms": tx.now_ms}).scalar()
    return again_ms if later_ms is None else min(again_ms, later_ms)


def _due_in_order(tx: Transaction, names: dict[str, Any]) -> list[DueRow]:
    """What is due in message groups: their places first, then a look at what is due there now."""
    rows = _DUE_IN_ORDER.rows(tx.conn, names)
    if not rows or not dialect_of(tx.conn).has_other_writers:
        return rows
    taken = lock_free(tx, (_place(row) for row in rows))
    places = encode_rows(
        (place.group_id, message_key(place.queue_id, 0), message_key(place.queue_id + 1, 0)) for place in sorted(taken)
    )
    return _DUE_IN_ORDER_FREE.rows(tx.conn, names | {"places": places})


def _place(row: DueRow) -> Place:
    return Place(row.group_id, queue_of(row.message_key))


def _forget(tx: Transaction, rows: Sequence[DueRow]) -> None:
    """What is due in groups that are removed already would be due for ever."""
    if rows:
        tx.conn.execute(_FORGET, {"rows": encode_rows((row.group_id, row.message_key) for row in rows)})


def _is_over(found: FoundGroup) -> bool:
    """Copies of what its members handed back would make the retry topic anew that was deleted with the group."""
    return found.is_deleted and found.group.mode is Mode.PULL


def _plan(rows: Sequence[DueRow], groups: dict[int, FoundGroup]) -> dict[tuple[int, Event], list[DueRow]]:
    """Which event happened to which deliveries, in the order of their keys."""
    plan: dict[tuple[int, Event], list[DueRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda each: (each.group_id, each.message_key)):
        if row.group_id in groups:
            plan[row.group_id, _event(row, groups[row.group_id])].append(row)
    return plan


def _event(row: DueRow, found: FoundGroup) -> Event:
    if row.state == State.WAITING_RETRY:
        return Event.BACKOFF_ELAPSED
    if row.state == State.ACKED_IN_TRANSACTION:
        # Acked in its consumer's own transaction (docs/sql.md), which can touch nothing but the delivery.
        return Event.ACK
    if found.is_deleted:
        # A dead letter would make the dead-letter topic anew that was deleted with the group.
        return Event.RELEASE
    return when_hold_ends(Holder(row.holder), row.attempt, found.group.retry)


def _carry_out(tx: Transaction, group: Group, event: Event, rows: Sequence[DueRow]) -> None:
    if event is Event.EXHAUST:
        dying = [Dying(row.message_key, row.topic_id, row.attempt, row.client_id) for row in rows]
        bury(tx, group, dying, event, REASONS[event])
        return
    if event is Event.BACKOFF_ELAPSED and group.mode is Mode.PULL:
        come_again(tx, group, rows)
        return
    if event is Event.ACK:
        return  # with its message group
    moves = ((group.group_id, row.message_key, _visible_at_ms(row, event, group)) for row in rows)
    tx.conn.execute(_MOVE[event], {"moves": encode_rows(moves)})
    record(tx, group, event, (as_moved(row) for row in rows), REASONS[event])
    if target(event) is State.READY:
        for topic_id in {row.topic_id for row in rows if row.message_group is None}:
            tx.ring(topic_id)


def _settle_groups(tx: Transaction, rows: Sequence[DueRow], groups: dict[int, FoundGroup]) -> None:
    """What the ends mean for the message groups they were in."""
    touched: dict[int, set[Member]] = defaultdict(set)
    acked: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row.message_group is None or row.group_id not in groups:
            continue
        touched[row.group_id].add(Member(row.topic_id, queue_of(row.message_key), row.message_group))
        if row.state == State.ACKED_IN_TRANSACTION:
            acked[row.group_id].add(row.message_key)
    for group_id, members in sorted(touched.items()):
        runs = by_member(runs_of(tx.conn, group_id, members))
        settle(tx, groups[group_id].group, {member: runs.get(member, []) for member in members}, acked[group_id])


def _visible_at_ms(row: DueRow, event: Event, group: Group) -> int:
    """A retry's interval starts when the attempt ended, not when somebody looked (requirement L18)."""
    if event is not Event.RETRY:
        return row.visible_at_ms
    return row.visible_at_ms + interval_ms(group.retry, row.attempt, in_order=row.message_group is not None)


_ALL_DUE = (
    select(*(delivery.c[name] for name in DueRow._fields))
    .where(WITH_TIME, delivery.c.visible_at_ms <= bindparam("now_ms"))
    .order_by(delivery.c.visible_at_ms)
    .limit(bindparam("limit"))
)
_DUE = RowStatement(DueRow, _ALL_DUE.where(delivery.c.message_group.is_(None)).with_for_update(skip_locked=True))
_in_order = _ALL_DUE.where(delivery.c.message_group.is_not(None))
_DUE_IN_ORDER = RowStatement(DueRow, _in_order)
# An ack in its consumer's own transaction has locked no place, but the delivery.
# Only of places that were taken: a row locked beside them would stand in the way of who has its place.
_PLACES = rows_parameter("places", "group_id", "first_key", "end_key")
_IN_A_PLACE = exists().where(
    delivery.c.group_id == _PLACES.c.group_id,
    delivery.c.message_key >= _PLACES.c.first_key,
    delivery.c.message_key < _PLACES.c.end_key,
)
_DUE_IN_ORDER_FREE = RowStatement(DueRow, _in_order.where(_IN_A_PLACE).with_for_update(of=delivery, skip_locked=True))
_NEXT_DUE = select(func.min(delivery.c.visible_at_ms)).where(WITH_TIME)
_NEXT_LATER = _NEXT_DUE.where(delivery.c.visible_at_ms > bindparam("now_ms"))
_ROWS = rows_parameter("rows", "group_id", "message_key")
_FORGET = delete(delivery).where(
    tuple_(delivery.c.group_id, delivery.c.message_key).in_(select(_ROWS.c.group_id, _ROWS.c.message_key))
)
# The group in every row: beside a constant one SQLite would walk all of the group's deliveries, and these for each.
_MOVES = rows_parameter("moves", "group_id", "message_key", "visible_at_ms")
_MOVE = {
    event: update(delivery)
    .where(
        delivery.c.group_id == _MOVES.c.group_id,
        delivery.c.message_key == _MOVES.c.message_key,
        in_states(delivery.c.state, *sources(event)),
    )
    .values(state=target(event).value, visible_at_ms=_MOVES.c.visible_at_ms)
    for event in (Event.RELEASE, Event.RETRY, Event.BACKOFF_ELAPSED)
}
