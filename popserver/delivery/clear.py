"""Reads, locks and removes a group's deliveries in a queue, in steps.

Each step first reads a page of keys, and then uses the keys: a planner may run a subquery with a LIMIT again for each
row. The deliveries of redriven messages have keys in another queue. The records of redrives find them, by first keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from popserver.delivery import delivered, deliveries
from popserver.delivery.deliveries import DeliveryRow
from popserver.engine.transaction import Transaction
from popserver.fifo import moving_positions, moving_starts
from popserver.messages import redrives


class GroupInQueue(NamedTuple):
    """One queue of a group; its message keys are `first` up to, but not including, `end`."""

    group_id: int
    queue_id: int
    first: int
    end: int


def held(tx: Transaction, queue: GroupInQueue, limit: int) -> list[DeliveryRow]:
    """Up to `limit` deliveries: first those of the queue, then those of redriven messages."""
    rows = delivered.states(tx.conn, queue.group_id, queue.first, queue.end, limit)
    return [*rows, *delivered.redriven_states(tx.conn, queue.group_id, queue.first, queue.end, limit - len(rows))]


def lock(tx: Transaction, queue: GroupInQueue) -> bool:
    """Lock the group's deliveries in the queue without waiting. False if another transaction has locked one of them."""
    if not tx.has_other_writers:
        return True
    for keys in _own_keys(tx, queue):
        if len(delivered.lock(tx, queue.group_id, keys)) < len(keys):
            return False
    for keys in _redriven_keys(tx, queue):
        if len(delivered.lock(tx, queue.group_id, keys)) < len(delivered.among(tx.conn, queue.group_id, keys)):
            return False
    return True


def clear(tx: Transaction, queue: GroupInQueue) -> None:
    """Remove the group's deliveries in the queue, and the positions and starts of message groups there."""
    for keys in chain(_own_keys(tx, queue), _redriven_keys(tx, queue)):
        deliveries.remove(tx.conn, [(queue.group_id, key) for key in keys])
    moving_positions.end_all(tx.conn, queue.group_id, queue.queue_id)
    moving_starts.end_all(tx.conn, queue.group_id, queue.queue_id)


def _own_keys(tx: Transaction, queue: GroupInQueue) -> Iterator[Sequence[int]]:
    return delivered.pages(tx.conn, queue.group_id, queue.first, queue.end)


def _redriven_keys(tx: Transaction, queue: GroupInQueue) -> Iterator[Sequence[int]]:
    """The new message keys of redriven messages; their deliveries may have ended since."""
    return redrives.pages_of_redriven_keys(tx.conn, queue.group_id, queue.first, queue.end)
