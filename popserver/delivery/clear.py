"""Read, lock and remove a group's deliveries in a queue, step by step.

Each step first reads a page of keys and then uses them: a planner may run a subquery with a LIMIT again for each row.
The deliveries of redriven messages have other keys; they are found by the messages' first places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import BindParameter, Integer, Select, bindparam, delete, select

from popserver.database.rows import encode_column, rows_parameter
from popserver.database.schema import message_group_progress as behind
from popserver.delivery import delivered, deliveries, moving_starts
from popserver.delivery.delivered import StateRow
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction
from popserver.messages import redrives

T = TypeVar("T", int, str)


class GroupInQueue(NamedTuple):
    """One queue of a group; its message keys are `first` up to, but not including, `end`."""

    group_id: int
    queue_id: int
    first: int
    end: int

    @property
    def names(self) -> dict[str, Any]:
        return {"for_group": self.group_id, "of_queue": self.queue_id, "first": self.first, "end": self.end}


def held(tx: Transaction, place: GroupInQueue, limit: int) -> list[StateRow]:
    """Up to `limit` deliveries: first those of the queue, then those of redriven messages."""
    rows = delivered.states(tx.conn, place.group_id, place.first, place.end, limit)
    return [*rows, *delivered.redriven_states(tx.conn, place.group_id, place.first, place.end, limit - len(rows))]


def lock(tx: Transaction, place: GroupInQueue) -> bool:
    """Lock all its deliveries without waiting. Returns False if another transaction has locked one of them."""
    for keys in _own_keys(tx, place):
        if len(delivered.lock(tx, place.group_id, keys)) < len(keys):
            return False
    for keys in _redriven_keys(tx, place):
        if len(delivered.lock(tx, place.group_id, keys)) < len(delivered.of_these(tx.conn, place.group_id, keys)):
            return False
    return True


def clear(tx: Transaction, place: GroupInQueue) -> None:
    """Remove its deliveries, and the positions and starts of its message groups."""
    for keys in chain(_own_keys(tx, place), _redriven_keys(tx, place)):
        deliveries.remove(tx.conn, [(place.group_id, key) for key in keys])
    for names in _pages(tx, _BEHIND, place, ""):
        _execute(tx, _REMOVE_BEHIND, place, names)
    moving_starts.end_all(tx.conn, place.group_id, place.queue_id)


def _own_keys(tx: Transaction, place: GroupInQueue) -> Iterator[Sequence[int]]:
    return delivered.pages(tx.conn, place.group_id, place.first, place.end)


def _redriven_keys(tx: Transaction, place: GroupInQueue) -> Iterator[Sequence[int]]:
    """The new message keys of redriven messages; their deliveries may have ended since."""
    return redrives.pages_of_places(tx.conn, place.group_id, place.first, place.end)


def _pages(tx: Transaction, query: Select[T], place: GroupInQueue, after: T) -> Iterator[Sequence[T]]:
    """Pages of the values after `after`, sorted; values are unique."""
    names = place.names | {"limit": STEP_ROWS_MAX, "after": after}
    while page := tx.conn.execute(query, names).scalars().all():
        yield page
        names["after"] = page[-1]


def _execute(tx: Transaction, statement: Any, place: GroupInQueue, keys: Sequence[int | str]) -> None:
    tx.conn.execute(statement, place.names | {"keys": encode_column(keys)})


_LIMIT: BindParameter[int] = bindparam("limit", type_=Integer)
_BEHIND_HERE = behind.c.group_id == bindparam("for_group"), behind.c.queue_id == bindparam("of_queue")
_BEHIND = (
    select(behind.c.message_group)
    .where(*_BEHIND_HERE, behind.c.message_group > bindparam("after"))
    .order_by(behind.c.message_group)
    .limit(_LIMIT)
)
_NAMES = rows_parameter("keys", text=("message_group",))
_REMOVE_BEHIND = delete(behind).where(*_BEHIND_HERE, behind.c.message_group.in_(select(_NAMES.c.message_group)))
