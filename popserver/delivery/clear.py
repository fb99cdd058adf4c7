"""Read, lock and remove a group's deliveries in a queue, step by step.

Each step first reads a page of keys and then uses them: a planner may run a subquery with a LIMIT again for each row.
The deliveries of redriven messages have other keys; they are found by the messages' first places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import BindParameter, Connection, Integer, Select, and_, bindparam, delete, select

from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import delivery
from popserver.database.schema import message_group_progress as behind
from popserver.delivery import moving_starts
from popserver.engine.transaction import STEP_ROWS_MAX, Transaction
from popserver.messages import redrives
from popserver.messages.redrives import REDRIVEN
from popserver.model.group import Group

T = TypeVar("T", int, str)


class _DeliveryRow(NamedTuple):
    message_key: int
    state: str
    attempt: int
    client_id: str


class GroupInQueue(NamedTuple):
    """One queue of a group; its message keys are `first` up to, but not including, `end`."""

    group_id: int
    queue_id: int
    first: int
    end: int

    @property
    def names(self) -> dict[str, Any]:
        return {"for_group": self.group_id, "of_queue": self.queue_id, "first": self.first, "end": self.end}


def held(tx: Transaction, place: GroupInQueue, limit: int) -> list[_DeliveryRow]:
    """Up to `limit` deliveries: first those of the queue, then those of redriven messages."""
    names = place.names | {"limit": limit}
    rows = _DELIVERIES.rows(tx.conn, names | {"after": place.first - 1})
    return [*rows, *_REDRIVEN.rows(tx.conn, names | {"limit": limit - len(rows)})]


def lock(tx: Transaction, place: GroupInQueue) -> bool:
    """Lock all its deliveries without waiting. Returns False if another transaction has locked one of them."""
    for keys in _own_keys(tx, place):
        if len(_found(tx, _LOCK_AVAILABLE, place, keys)) < len(keys):
            return False
    for keys in _redriven_keys(tx, place):
        if len(_found(tx, _LOCK_AVAILABLE, place, keys)) < len(_found(tx, _EXISTING, place, keys)):
            return False
    return True


def clear(tx: Transaction, place: GroupInQueue) -> None:
    """Remove its deliveries, and the positions and starts of its message groups."""
    for keys in chain(_own_keys(tx, place), _redriven_keys(tx, place)):
        _execute(tx, _REMOVE, place, keys)
    for names in _pages(tx, _BEHIND, place, ""):
        _execute(tx, _REMOVE_BEHIND, place, names)
    moving_starts.end_all(tx.conn, place.group_id, place.queue_id)


def redriven_to(conn: Connection, group: Group, origin_key: int) -> int | None:
    """The place of the redriven message's delivery in the group; None if it has none."""
    found: int | None = conn.execute(_REDRIVEN_TO, {"for_group": group.group_id, "for_origin": origin_key}).scalar()
    return found


def _own_keys(tx: Transaction, place: GroupInQueue) -> Iterator[Sequence[int]]:
    return _pages(tx, _KEYS_OF, place, place.first - 1)


def _redriven_keys(tx: Transaction, place: GroupInQueue) -> Iterator[Sequence[int]]:
    """The new message keys of redriven messages; their deliveries may have ended since."""
    return redrives.pages_of_places(tx.conn, place.group_id, place.first, place.end)


def _pages(tx: Transaction, query: Select[T], place: GroupInQueue, after: T) -> Iterator[Sequence[T]]:
    """Pages of the values after `after`, sorted; values are unique."""
    names = place.names | {"limit": STEP_ROWS_MAX, "after": after}
    while page := tx.conn.execute(query, names).scalars().all():
        yield page
        names["after"] = page[-1]


def _found(tx: Transaction, statement: Any, place: GroupInQueue, keys: Sequence[int]) -> Sequence[int]:
    return tx.conn.execute(statement, place.names | {"keys": encode_rows([(key,) for key in keys])}).scalars().all()


def _execute(tx: Transaction, statement: Any, place: GroupInQueue, keys: Sequence[int | str]) -> None:
    tx.conn.execute(statement, place.names | {"keys": encode_rows([(key,) for key in keys])})


_LIMIT: BindParameter[int] = bindparam("limit", type_=Integer)
_OF_GROUP = delivery.c.group_id == bindparam("for_group")
_KEYS = rows_parameter("keys", "message_key")
_own = _OF_GROUP, delivery.c.message_key > bindparam("after"), delivery.c.message_key < bindparam("end")
_DELIVERIES = RowStatement(
    _DeliveryRow,
    select(*(delivery.c[name] for name in _DeliveryRow._fields))
    .where(*_own)
    .order_by(delivery.c.message_key)
    .limit(_LIMIT),
)
_KEYS_OF = select(delivery.c.message_key).where(*_own).order_by(delivery.c.message_key).limit(_LIMIT)
_THESE = _OF_GROUP, delivery.c.message_key.in_(select(_KEYS.c.message_key))
_EXISTING = select(delivery.c.message_key).where(*_THESE)
_LOCK_AVAILABLE = _EXISTING.with_for_update(skip_locked=True)
_REMOVE = delete(delivery).where(*_THESE)
_IS_REDRIVEN = and_(delivery.c.group_id == REDRIVEN.c.group_id, delivery.c.message_key == REDRIVEN.c.redriven_key)
_REDRIVEN = RowStatement(
    _DeliveryRow,
    select(REDRIVEN.c.origin_key.label("message_key"), delivery.c.state, delivery.c.attempt, delivery.c.client_id)
    .join(delivery, _IS_REDRIVEN)
    .where(
        REDRIVEN.c.group_id == bindparam("for_group"),
        REDRIVEN.c.origin_key >= bindparam("first"),
        REDRIVEN.c.origin_key < bindparam("end"),
    )
    .distinct()
    .order_by(REDRIVEN.c.origin_key)
    .limit(_LIMIT),
)
_REDRIVEN_TO = (
    select(REDRIVEN.c.redriven_key)
    .join(delivery, _IS_REDRIVEN)
    .where(REDRIVEN.c.origin_key == bindparam("for_origin"), REDRIVEN.c.group_id == bindparam("for_group"))
    .order_by(REDRIVEN.c.dead_letter_id.desc())
    .limit(1)
)
_BEHIND_HERE = behind.c.group_id == bindparam("for_group"), behind.c.queue_id == bindparam("of_queue")
_BEHIND = (
    select(behind.c.message_group)
    .where(*_BEHIND_HERE, behind.c.message_group > bindparam("after"))
    .order_by(behind.c.message_group)
    .limit(_LIMIT)
)
_NAMES = rows_parameter("keys", text=("message_group",))
_REMOVE_BEHIND = delete(behind).where(*_BEHIND_HERE, behind.c.message_group.in_(select(_NAMES.c.message_group)))
