"""Queue locks: which member may consume a queue, for members that consume in order (requirements F2, F3).

One statement takes or renews a lock and compares holder and time, so two members never have the same lock. A lock lasts
60 s from its last renewal, also if its holder disconnects, because the holder may still process messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Connection, Integer, and_, bindparam, cast, delete, func, or_, select, tuple_

from popserver.catalog.groups import EXISTING
from popserver.catalog.queues import STORED
from popserver.database.dialect import Dialect, PerDialect, dialect_of
from popserver.database.rows import encode_column, encode_rows, rows_parameter
from popserver.database.schema import queue_lock
from popserver.engine.transaction import LockOrder, Locks, Phase, Request, Transaction, carries_out, in_steps
from popserver.engine.upkeep import remove_step, sooner
from popserver.model.errors import PopError
from popserver.model.group import Group, Mode
from popserver.model.retry import MINUTE_MS
from popserver.model.topic import MessageQueue

LAPSE_MS = 1 * MINUTE_MS


@dataclass(frozen=True, slots=True)
class Lock(Request[list[MessageQueue]]):
    """Take or renew the locks of these queues, except those that other clients hold."""

    phase: ClassVar = Phase.LOCK_QUEUES
    group: Group
    client_id: str
    queues: Sequence[MessageQueue]

    def locks(self) -> Iterable[Locks]:
        return (Locks(LockOrder.QUEUE_LOCKS, _lock_groups, (self.group.group_id,)),)


@dataclass(frozen=True, slots=True)
class Unlock(Request[None]):
    """Free those of these queues that the client has locked."""

    phase: ClassVar = Phase.UNLOCK_QUEUES
    group: Group
    client_id: str
    queues: Sequence[MessageQueue]

    def locks(self) -> Iterable[Locks]:
        return (Locks(LockOrder.QUEUE_LOCKS, _lock_groups, (self.group.group_id,)),)


_QueueKey = tuple[int, int]  # group id, queue id


@carries_out(Lock)
def lock(tx: Transaction, requests: Sequence[Lock]) -> list[list[MessageQueue] | PopError]:
    """For each request, the queues that its client has locked now; none if the group is deleted or not in mode PULL.

    Requests for the same queue run one after the other. Each statement takes its rows in one order, and a later
    statement touches only rows that an earlier one has locked.
    """
    taken: list[set[_QueueKey]] = [set() for _ in requests]
    for turn in _turns(requests):
        for step in in_steps([(*key, requests[index].client_id) for key, index in sorted(turn.items())]):
            names = {"locks": encode_rows(step), "now_ms": tx.now_ms, "until_ms": tx.now_ms + LAPSE_MS}
            for row in tx.conn.execute(_TAKE.of(tx.conn), names):
                key = (row.group_id, row.queue_id)
                taken[turn[key]].add(key)
    return [
        [each for each in request.queues if (request.group.group_id, each.queue_id) in keys]
        for request, keys in zip(requests, taken, strict=True)
    ]


@carries_out(Unlock)
def unlock(tx: Transaction, requests: Sequence[Unlock]) -> list[PopError | None]:
    """Free locks. Waits for other transactions that try to take them, so that they are free when this is answered.

    Runs before `lock` in a transaction, so that it cannot free a lock that the client takes again in the same batch.
    """
    rows = sorted({(each.group.group_id, queue.queue_id, each.client_id) for each in requests for queue in each.queues})
    for step in in_steps(rows):
        tx.conn.execute(_GIVE_UP, {"locks": encode_rows(step)})
    return [None] * len(requests)


def _lock_groups(tx: Transaction, group_ids: Iterable[int]) -> None:
    """Wait until no other server frees or takes locks of these groups.

    The order of the keys does not prevent deadlocks, because a transaction may free some rows and then take others.
    """
    numbers = sorted({each & _GROUP_MASK for each in group_ids})
    dialect_of(tx.conn).lock(tx.conn, _ONE_AT_A_TIME, {"groups": encode_column(numbers)})


def holders(conn: Connection, group_id: int, now_ms: int) -> dict[int, str]:
    """The client that has each locked queue of the group, by queue id."""
    rows = conn.execute(_HOLDERS, {"for_group": group_id, "now_ms": now_ms})
    return {row.queue_id: row.client_id for row in rows}


def newest_lock_ms(conn: Connection) -> int:
    """When a lock was last taken or renewed; 0 for never. A clock that starts earlier would keep locks for too long."""
    newest: int | None = conn.execute(select(func.max(queue_lock.c.locked_until_ms))).scalar()
    return 0 if newest is None else newest - LAPSE_MS


def forget_group(conn: Connection, group_id: int) -> int:
    """Remove a step of the locks of a deleted group; returns how many."""
    return remove_step(conn, queue_lock.c.queue_id, queue_lock.c.group_id == group_id)


def forget_queue(conn: Connection, queue_id: int) -> None:
    """Remove the locks of a queue of a deleted topic."""
    conn.execute(_FORGET_QUEUE, {"of_queue": queue_id})


def turn_back(conn: Connection, now_ms: int, by_ms: int) -> None:
    """The server's time was set back by `by_ms`, to `now_ms`. Move the ends of locks too, so that none lasts longer."""
    conn.execute(_TURN_BACK, {"now_ms": now_ms, "by_ms": by_ms})


def _turns(requests: Sequence[Lock]) -> list[dict[_QueueKey, int]]:
    """The requests' indexes by queue. Each turn has at most one request for a queue, in the order of arrival."""
    turns: list[dict[_QueueKey, int]] = []
    asked: dict[_QueueKey, int] = {}
    for index, request in enumerate(requests):
        for key in {(request.group.group_id, each.queue_id) for each in request.queues}:
            turn = asked.get(key, 0)
            asked[key] = turn + 1
            if turn == len(turns):
                turns.append({})
            turns[turn][key] = index
    return turns


_LOCKS = rows_parameter("locks", "group_id", "queue_id", text=("client_id",))
# Joined with group and queue, so that a deleted group or queue gets no row.
_WANTED = (
    select(_LOCKS.c.group_id, _LOCKS.c.queue_id, _LOCKS.c.client_id, bindparam("until_ms", type_=BigInteger))
    .join(EXISTING, EXISTING.c.group_id == _LOCKS.c.group_id)
    .join(STORED, STORED.c.queue_id == _LOCKS.c.queue_id)
    .where(EXISTING.c.mode == Mode.PULL.value)
    .order_by(_LOCKS.c.group_id, _LOCKS.c.queue_id)
)


def _take(dialect: Dialect) -> Any:
    new = dialect.upsert(queue_lock).from_select(["group_id", "queue_id", "client_id", "locked_until_ms"], _WANTED)
    is_free = or_(
        queue_lock.c.client_id == new.excluded.client_id,
        queue_lock.c.locked_until_ms <= bindparam("now_ms", type_=BigInteger),
    )
    return new.on_conflict_do_update(
        index_elements=[queue_lock.c.group_id, queue_lock.c.queue_id],
        set_={"client_id": new.excluded.client_id, "locked_until_ms": new.excluded.locked_until_ms},
        where=is_free,
    ).returning(queue_lock.c.group_id, queue_lock.c.queue_id)


_TAKE = PerDialect(_take)
_HOLDERS = select(queue_lock.c.queue_id, queue_lock.c.client_id).where(
    queue_lock.c.group_id == bindparam("for_group"), queue_lock.c.locked_until_ms > bindparam("now_ms")
)
_FORGET_QUEUE = delete(queue_lock).where(queue_lock.c.queue_id == bindparam("of_queue"))
_TURN_BACK = sooner(queue_lock.c.locked_until_ms)
_OWN = (
    select(queue_lock.c.group_id, queue_lock.c.queue_id)
    .join(
        _LOCKS,
        and_(
            queue_lock.c.group_id == _LOCKS.c.group_id,
            queue_lock.c.queue_id == _LOCKS.c.queue_id,
            queue_lock.c.client_id == _LOCKS.c.client_id,
        ),
    )
    .order_by(queue_lock.c.group_id, queue_lock.c.queue_id)
    .with_for_update(of=queue_lock)
    .correlate(None)
)
_GIVE_UP = delete(queue_lock).where(tuple_(queue_lock.c.group_id, queue_lock.c.queue_id).in_(_OWN))
_GROUP_MASK = (1 << 31) - 1  # groups with the same number only wait for each other
# The first number is arbitrary; every server must use the same one, and no other lock may use it.
_GROUPS = rows_parameter("groups", "number")
_ONE_AT_A_TIME = select(func.pg_advisory_xact_lock(482851945, cast(_GROUPS.c.number, Integer)))
