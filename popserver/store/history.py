"""The append-only history: which event moved which delivery, kept as far as the group asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import insert

from popserver.domain.delivery import Event, State, target
from popserver.domain.group import Group
from popserver.store.schema import history
from popserver.store.transaction import Transaction


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
    if not group.history.keeps(event):
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
