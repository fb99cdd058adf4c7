"""Faults of a migration, planted into a server of this checkout: an upgrade has to find each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection

from popserver.database import migrate
from popserver.database.database import Database


def _also(statement: str) -> Callable[[], None]:
    """The migration does one more thing, within its transaction."""

    def plant() -> None:
        run = migrate._run

        def more(step: Any, conn: Connection, to: str) -> None:
            run(step, conn, to)
            conn.exec_driver_sql(statement)

        migrate._run = more

    return plant


def _in_two_transactions() -> None:
    """It commits in its middle, so a kill after that leaves half of it."""
    run = migrate._run

    def halves(step: Any, conn: Connection, to: str) -> None:
        conn.exec_driver_sql("ALTER TABLE topic ADD COLUMN half_done INTEGER")
        conn.exec_driver_sql("COMMIT")
        conn.exec_driver_sql("BEGIN")
        run(step, conn, to)

    migrate._run = halves


def _upgrades_again() -> None:
    """What it does to rows it does at every start, also at one that was killed."""
    upgrade = migrate.upgrade

    def twice(database: Database, to: str = migrate.HEAD) -> str | None:
        with database.writing.connect() as conn:
            conn.exec_driver_sql("UPDATE delivery SET attempt = attempt + 1")
        return upgrade(database, to)

    migrate.upgrade = twice


FAULTS: dict[str, Callable[[], None]] = {
    "dead letters are lost": _also("DELETE FROM dead_letter"),
    "messages that wait are lost": _also("DELETE FROM delivery WHERE state = 'WAITING_RETRY'"),
    "half messages are lost": _also("DELETE FROM pending WHERE kind <> 'DELAY'"),
    "holds are forgotten": _also("UPDATE delivery SET state = 'READY', visible_at_ms = 0 WHERE state = 'INFLIGHT'"),
    "offsets go back": _also("UPDATE progress SET next_offset = 0"),
    "it commits in its middle": _in_two_transactions,
    "it runs twice": _upgrades_again,
}
