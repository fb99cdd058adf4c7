"""Set the server time back to the system clock at once. This is possible only while no server runs.

Durations keep their remaining time. Stored times after the system clock's time become this time. The order of messages
stays, and times within a queue do not go back. Idempotency keys keep their end times, because these may come from the
right clock.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import Connection

from popserver.catalog import queue_offsets
from popserver.cluster.sql import forget_servers, newest_heartbeat_ms
from popserver.database.check import check_unused
from popserver.database.database import Database
from popserver.delivery import deliveries
from popserver.engine.transaction import STEP_ROWS_MAX
from popserver.fifo import moving_positions
from popserver.maintenance import clock_notes
from popserver.members import locks
from popserver.messages import parts, pending_messages, stored
from popserver.messages.seek import newest_stored_at_ms
from popserver.model.topic import message_key


class ClockState(NamedTuple):
    """The system clock, and the time at which a server would start: the latest stored time, if it is later."""

    system_ms: int
    server_ms: int

    @property
    def ahead_ms(self) -> int:
        return self.server_ms - self.system_ms


def clock_state(conn: Connection, system_ms: int) -> ClockState:
    """The clocks while no server runs."""
    last = clock_notes.last(conn) or clock_notes.Reading(0, 0)
    newest_ms = max(each(conn) for each in (newest_stored_at_ms, newest_heartbeat_ms, locks.newest_lock_ms))
    return ClockState(system_ms, max(system_ms, last.server_ms, newest_ms))


def reset(database: Database, conn: Connection, before: ClockState) -> int:
    """Let the server time start at the system clock. Returns how many messages get another stored-at time.

    Raises `StoreUnavailable` while a server uses the database. It may be interrupted and repeated.
    """
    check_unused(database, conn)
    messages = 0
    # In steps, from the last message to the first: after an interruption, no time goes back within a queue.
    for queue_id in queue_offsets.ahead_of(conn, before.system_ms):
        messages += _reset_queue(database, conn, queue_id, before.system_ms)
    database.begin(conn)
    moving_positions.turn_back(conn, before.system_ms)
    queue_offsets.turn_back(conn, before.system_ms)
    deliveries.turn_back(conn, before.system_ms, before.ahead_ms)
    locks.turn_back(conn, before.system_ms, before.ahead_ms)
    pending_messages.turn_back(conn, before.system_ms, before.ahead_ms)
    forget_servers(conn)
    clock_notes.confirm(conn, before.system_ms)
    database.commit(conn)
    return messages


def _reset_queue(database: Database, conn: Connection, queue_id: int, now_ms: int) -> int:
    end, changed = message_key(queue_id + 1, 0), 0
    while True:
        rows = parts.page(conn, message_key(queue_id, 0), end, STEP_ROWS_MAX, newest_first=True)
        keys = [row.message_key for row in rows if row.stored_at_ms > now_ms]
        if not keys:
            return changed
        database.begin(conn)
        changed += stored.set_stored_at(conn, keys, now_ms)
        database.commit(conn)
        end = keys[-1]
