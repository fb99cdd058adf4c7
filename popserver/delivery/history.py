"""The append-only history: which event moved which delivery, kept as far as the group asks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection, insert, select

from popserver.database.schema import consumer_group, history
from popserver.engine.transaction import Transaction
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.states import Event, State, target


class Moved(NamedTuple):
    """A delivery that an event moved, as it was before; `attempt` is the delivery attempt the event belongs to."""

    message_key: int
    from_state: State
    attempt: int
    client_id: str


def as_moved(row: Any) -> Moved:
    """The delivery of a row with its state, attempt and client, as it is before the event."""
    return Moved(row.message_key, State(row.state), row.attempt, row.client_id)


def record(tx: Transaction, group: Group, event: Event, moved: Iterable[Moved], reason: str = "") -> None:
    """Write one row per moved delivery, if the group keeps such events."""
    if event not in group.history.kept:
        return
    rows = [
        {
            "at_ms": tx.now_ms,
            "group_id": group.group_id,
            "message_key": each.message_key,
            "event": event.value,
            "from_state": each.from_state.shown.value,
            "to_state": target(event).shown.value,
            "attempt": each.attempt,
            "client_id": each.client_id,
            "reason": reason,
        }
        for each in moved
    ]
    if rows:
        tx.conn.execute(insert(history), rows)


_HISTORY_MAX = 1_000


class Step(NamedTuple):
    """One step of a message in one group, as far as the group keeps a history."""

    at_ms: int
    group: Resource
    event: str
    from_state: str
    to_state: str
    attempt: int
    client_id: str
    reason: str


def steps(conn: Connection, keys: Collection[int]) -> list[Step]:
    """The steps of one message in all groups, oldest first, at most 1,000; `keys` are the places where it has stood."""
    return [
        Step(
            row.at_ms,
            Resource(row.namespace, row.name),
            row.event,
            row.from_state,
            row.to_state,
            row.attempt,
            row.client_id,
            row.reason,
        )
        for row in conn.execute(_STEPS.where(history.c.message_key.in_(keys)))
    ]


_STEPS = (
    select(history, consumer_group.c.namespace, consumer_group.c.name)
    .join(consumer_group, consumer_group.c.group_id == history.c.group_id)
    .where(consumer_group.c.deleted_at_ms.is_(None))
    .order_by(history.c.history_id)
    .limit(_HISTORY_MAX)
)
