"""The append-only history: which event changed which delivery. The group's history level chooses the events."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, delete, insert, literal_column, select

from popserver.catalog.groups import EXISTING
from popserver.database.schema import history
from popserver.engine.transaction import Transaction
from popserver.engine.upkeep import remove_step
from popserver.messages import dead_letters, redrives
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.states import Event, State, target


class Moved(NamedTuple):
    """A delivery as it was before an event; `attempt` is the delivery attempt that the event belongs to."""

    message_key: int
    from_state: State
    attempt: int
    client_id: str


def as_moved(row: Any) -> Moved:
    """A row of a delivery as it was before an event."""
    return Moved(row.message_key, State(row.state), row.attempt, row.client_id)


# The reason of a skip that ended a hold. By this reason the former holder's ack is refused.
FORCED_SKIP = "an operator has skipped it while it was held"


def record(
    tx: Transaction, group: Group, event: Event, moved: Iterable[Moved], reason: str = "", *, always: bool = False
) -> None:
    """Write one row per delivery if the group keeps such events, or `always`."""
    if not always and event not in group.history.kept:
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


class HistoryStep(NamedTuple):
    """One step of a message in one group's history."""

    at_ms: int
    group: Resource
    event: str
    from_state: str
    to_state: str
    attempt: int
    client_id: str
    reason: str


def steps(conn: Connection, keys: Collection[int]) -> list[HistoryStep]:
    """The first 1,000 steps of one message in all groups, oldest first; `keys`: all message keys that it has had."""
    rows = conn.execute(_STEPS.where(history.c.message_key.in_(keys)))
    return [HistoryStep(at_ms, Resource(namespace, name), *rest) for at_ms, namespace, name, *rest in rows]


def skipped_while_held_ms(conn: Connection, group_id: int, key: int, first_key: int) -> int | None:
    """When an operator skipped the held message; None unless this is the last event at this key, or at the key that the
    message was redriven to. `first_key` is its first key."""
    letter = dead_letters.of_message(conn, group_id, first_key)
    sent = None if letter is None else redrives.of_letter(conn, letter)
    to_key = None if sent is None or sent.target_topic_id is not None else sent.redriven_key
    row = conn.execute(_LAST, {"for_group": group_id, "for_key": key, "redriven_to": to_key}).first()
    return row.at_ms if row is not None and row.reason == FORCED_SKIP else None


def expire(conn: Connection, cutoff_ms: int, rows: int) -> int:
    """Remove rows that were written before `cutoff_ms`, of the first `rows` rows; returns how many."""
    return conn.execute(_EXPIRE, {"cutoff_ms": cutoff_ms, "rows": rows}).rowcount


def forget_messages(conn: Connection, first: int, end: int) -> int:
    """Remove a step of the history of messages with first <= key < end; returns how many rows."""
    key = history.c.message_key
    return remove_step(conn, key, key >= first, key < end)


_FIRST = (
    select(history.c.history_id, history.c.at_ms).order_by(history.c.history_id).limit(bindparam("rows")).subquery()
)
_EXPIRE = delete(history).where(
    history.c.history_id.in_(select(_FIRST.c.history_id).where(_FIRST.c.at_ms < bindparam("cutoff_ms")))
)
_LAST = (
    select(history.c.at_ms, history.c.reason)
    .where(
        history.c.message_key.in_([bindparam("for_key"), bindparam("redriven_to", type_=BigInteger)]),
        history.c.group_id == bindparam("for_group"),
    )
    .order_by(history.c.history_id.desc())
    .limit(literal_column("1"))
)
_STEPS = (
    select(
        history.c.at_ms, EXISTING.c.namespace, EXISTING.c.name, *(history.c[name] for name in HistoryStep._fields[2:])
    )
    .join(EXISTING, EXISTING.c.group_id == history.c.group_id)
    .order_by(history.c.history_id)
    .limit(_HISTORY_MAX)
)
