"""The last stored reading of the clocks. A starting server compares the system clock with it.

There is one row. It is written at starts and stops and every few minutes, not in each transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import Connection, bindparam, insert, select, update

from popserver.database.schema import clock
from popserver.engine.transaction import Phase, Request, Transaction, carries_out
from popserver.model.errors import PopError
from popserver.model.retry import HOUR_MS

DOUBT_MS = 1 * HOUR_MS  # after so long the server accepts a jump that was not taken back


class Reading(NamedTuple):
    """The clocks at one moment.

    `doubted_ms`: the length of a jump in `system_ms` that the server does not accept yet; after running for
    `doubt_left_ms` more it will. `confirmed` counts how often an operator has confirmed the system clock.
    """

    system_ms: int
    server_ms: int
    doubted_ms: int = 0
    doubt_left_ms: int = 0
    confirmed: int = 0


@dataclass(frozen=True, slots=True)
class Note(Request[Reading]):
    """Store a reading. With `confirms` no server doubts a jump any more."""

    phase: ClassVar = Phase.CLOCK
    reading: Reading
    confirms: bool = False


def last(conn: Connection) -> Reading | None:
    """The reading that was stored last; None for a new database."""
    row = conn.execute(_LAST).first()
    return None if row is None else Reading(*row)


@carries_out(Note)
def note(tx: Transaction, requests: Sequence[Note]) -> list[Reading | PopError]:
    """Store readings. Returns the stored one, without a doubt if an operator confirmed the clock at another server."""
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


def confirm(conn: Connection, system_ms: int) -> None:
    """Set the server time to the system clock, without a doubt."""
    conn.execute(_CONFIRM, {"now_ms": system_ms})


_COLUMNS = (clock.c.system_ms, clock.c.server_ms, clock.c.doubted_ms, clock.c.doubt_left_ms, clock.c.confirmed)
_LAST = select(*_COLUMNS)
_VALUES: dict[str, Any] = {column.name: bindparam(column.name) for column in _COLUMNS}
_FIRST = insert(clock).values(clock_id=1, **_VALUES)
_NEXT = update(clock).values(**_VALUES)
_CONFIRM = update(clock).values(
    system_ms=bindparam("now_ms"),
    server_ms=bindparam("now_ms"),
    doubted_ms=0,
    doubt_left_ms=0,
    confirmed=clock.c.confirmed + 1,
)
