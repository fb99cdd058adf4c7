"""Where the clocks stood when they were last looked at: what a start compares the system's clock with.

There is one row. It is written at starts and stops and every few minutes, not with each transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import Connection, bindparam, func, insert, select, update

from popserver.cluster.sql import SERVER_LAPSE_MS
from popserver.database.schema import clock, server
from popserver.engine.transaction import Phase, Request, Transaction, carries_out
from popserver.model.errors import PopError
from popserver.model.retry import HOUR_MS

DOUBT_MS = 1 * HOUR_MS  # of running: then a jump that nothing took back is believed


class Reading(NamedTuple):
    """The clocks at one moment.

    `doubted_ms` is how much of `system_ms` is a jump that is not believed yet, for `doubt_left_ms` more of running.
    `confirmed` counts how often an operator has said that the system's clock is right.
    """

    system_ms: int
    server_ms: int
    doubted_ms: int = 0
    doubt_left_ms: int = 0
    confirmed: int = 0


@dataclass(frozen=True, slots=True)
class Note(Request[Reading]):
    """Write a reading down. With `confirms` nothing is doubted any more, by this server and the others."""

    phase: ClassVar = Phase.CLOCK
    reading: Reading
    confirms: bool = False


def last(conn: Connection) -> Reading | None:
    """The reading that was last written down; None for a database that has none yet."""
    row = conn.execute(_LAST).first()
    return None if row is None else Reading(*row)


@carries_out(Note)
def note(tx: Transaction, requests: Sequence[Note]) -> list[Reading | PopError]:
    """Returns what is written down now: nothing is doubted where another server was told that the clock is right."""
    found: list[Reading | PopError] = []
    for request in requests:
        row = tx.conn.execute(_LAST.with_for_update()).first()
        confirmed = 0 if row is None else row.confirmed
        reading = request.reading
        if request.confirms or confirmed != reading.confirmed:
            confirmed += request.confirms
            reading = reading._replace(doubted_ms=0, doubt_left_ms=0, confirmed=confirmed)
        tx.conn.execute(_FIRST if row is None else _NEXT, reading._asdict())
        found.append(reading)
    return found


def ahead_ms(conn: Connection, system_ms: int) -> int | None:
    """How far the time of the servers that are there is ahead of the database's clock; None where there is none."""
    furthest_ms: int | None = conn.execute(_AHEAD, {"since_ms": system_ms - SERVER_LAPSE_MS}).scalar()
    return furthest_ms


_COLUMNS = (clock.c.system_ms, clock.c.server_ms, clock.c.doubted_ms, clock.c.doubt_left_ms, clock.c.confirmed)
_LAST = select(*_COLUMNS)
_VALUES: dict[str, Any] = {column.name: bindparam(column.name) for column in _COLUMNS}
_FIRST = insert(clock).values(clock_id=1, **_VALUES)
_NEXT = update(clock).values(**_VALUES)
_AHEAD = select(func.max(server.c.ahead_ms)).where(
    server.c.last_seen_ms - server.c.ahead_ms > bindparam("since_ms"), server.c.address != ""
)
