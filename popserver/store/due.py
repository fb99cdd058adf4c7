"""What falls due: holds that nobody ended, and retries whose interval is over.

Decide, then do: pure code says which event happened to each due delivery, then one statement per event carries it out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import bindparam, func, select, update

from popserver.domain.delivery import Event, State, sources, target
from popserver.domain.errors import PopError
from popserver.domain.group import Group
from popserver.domain.retry import Holder, interval_ms, when_hold_ends
from popserver.store import catalog
from popserver.store.catalog import FoundGroup
from popserver.store.dead_letters import Dying, bury
from popserver.store.given import as_given, given
from popserver.store.history import Moved, record
from popserver.store.schema import AnyRow, delivery, in_states
from popserver.store.transaction import STEP_ROWS_MAX, Transaction

REASONS = {
    Event.RELEASE: "the hold's time ended",
    Event.RETRY: "the hold's time ended",
    Event.EXHAUST: "the hold's time ended, and no attempt remains",
    Event.BACKOFF_ELAPSED: "",
}


class EndDue(NamedTuple):
    """A step of at most 1,000 due deliveries."""


class Ended(NamedTuple):
    """When the next falls due; at once where more than a step was due, None where nothing waits."""

    next_due_ms: int | None


def end_due(tx: Transaction, requests: Sequence[EndDue]) -> list[Ended | PopError]:
    """End every due hold and interval of one step; several requests at once need only one step."""
    rows = list(tx.conn.execute(_DUE, {"now_ms": tx.now_ms, "limit": STEP_ROWS_MAX}))
    groups = catalog.groups_by_id(tx.conn, {row.group_id for row in rows}) if rows else {}
    for (group_id, event), several in _plan(rows, groups).items():
        _carry_out(tx, groups[group_id].group, event, several)
    next_due_ms = tx.conn.execute(_NEXT_DUE).scalar()
    return [Ended(next_due_ms)] * len(requests)


def next_due_ms(conn: Any) -> int | None:
    """When the earliest hold or interval ends."""
    due_ms: int | None = conn.execute(_NEXT_DUE).scalar()
    return due_ms


def _plan(rows: Sequence[AnyRow], groups: dict[int, FoundGroup]) -> dict[tuple[int, Event], list[AnyRow]]:
    """Which event happened to which deliveries, in the order of their keys."""
    plan: dict[tuple[int, Event], list[AnyRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda each: (each.group_id, each.message_key)):
        if row.group_id in groups:
            plan[row.group_id, _event(row, groups[row.group_id])].append(row)
    return plan


def _event(row: AnyRow, found: FoundGroup) -> Event:
    if row.state == State.WAITING_RETRY:
        return Event.BACKOFF_ELAPSED
    if found.is_deleted:
        # A dead letter would make the dead-letter topic anew that was deleted with the group.
        return Event.RELEASE
    return when_hold_ends(Holder(row.holder), row.attempt, found.group.retry)


def _carry_out(tx: Transaction, group: Group, event: Event, rows: Sequence[AnyRow]) -> None:
    if event is Event.EXHAUST:
        dying = [Dying(row.message_key, row.topic_id, row.attempt, row.client_id) for row in rows]
        bury(tx, group, dying, event, REASONS[event])
        return
    moves = ((group.group_id, row.message_key, _visible_at_ms(row, event, group)) for row in rows)
    tx.conn.execute(_MOVE[event], {"moves": as_given(moves)})
    record(tx, group, event, (_moved(row) for row in rows), REASONS[event])
    if target(event) is State.READY:
        for topic_id in {row.topic_id for row in rows}:
            tx.ring(topic_id)


def _visible_at_ms(row: AnyRow, event: Event, group: Group) -> int:
    """A retry's interval starts when the attempt ended, not when somebody looked (mission row L18)."""
    due_ms: int = row.visible_at_ms
    return due_ms + interval_ms(group.retry, row.attempt) if event is Event.RETRY else due_ms


def _moved(row: AnyRow) -> Moved:
    return Moved(row.message_key, State(row.state), row.attempt, row.client_id)


_WITH_TIME = in_states(delivery.c.state, State.INFLIGHT, State.WAITING_RETRY)
_DUE = (
    select(
        delivery.c.group_id,
        delivery.c.message_key,
        delivery.c.topic_id,
        delivery.c.state,
        delivery.c.attempt,
        delivery.c.visible_at_ms,
        delivery.c.holder,
        delivery.c.client_id,
    )
    .where(_WITH_TIME, delivery.c.visible_at_ms <= bindparam("now_ms"))
    .order_by(delivery.c.visible_at_ms)
    .limit(bindparam("limit"))
    .with_for_update(skip_locked=True)
)
_NEXT_DUE = select(func.min(delivery.c.visible_at_ms)).where(_WITH_TIME)
# The group in every row: beside a constant one SQLite would walk all of the group's deliveries, and these for each.
_MOVES = given("moves", "group_id", "message_key", "visible_at_ms")
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
