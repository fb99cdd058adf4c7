"""The settings of a SQLite connection that PopMQ's SQL needs.

The defaults of pragmas are compiled into the library, and other code of the process changes them: a listener that an
application has for all its engines runs for ours too. So each connection sets them and reads them back. Settings that
the file stores are checked. docs/postgres.md has this table for users, and a test gives each pragma a bad value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from popserver.model.errors import StoreUnavailable


class Pragma(NamedTuple):
    """A pragma that each connection sets."""

    name: str
    value: str
    answer: object  # SQLite's answer when the pragma has this value; None: it has no answer
    why: str


BUSY_TIMEOUT_MS: Final = 5_000
PRAGMAS: Final[Sequence[Pragma]] = (
    Pragma("locking_mode", "NORMAL", "normal", "readers beside the writer"),
    Pragma("busy_timeout", str(BUSY_TIMEOUT_MS), BUSY_TIMEOUT_MS, "another program may lock the file for a moment"),
    Pragma("read_uncommitted", "OFF", 0, "a reader sees what is committed"),
    Pragma("reverse_unordered_selects", "OFF", 0, "rows without an order come in that of the table"),
    Pragma("case_sensitive_like", "OFF", None, "LIKE is as everywhere"),
    Pragma("automatic_index", "ON", 1, "a join of small lists is fast"),
    Pragma("foreign_keys", "OFF", 0, "the schema has none"),
    Pragma("recursive_triggers", "OFF", 0, "the schema has none"),
    Pragma("ignore_check_constraints", "OFF", 0, "a wrong state is refused"),
    Pragma("writable_schema", "OFF", 0, "the schema changes by its migrations alone"),
    Pragma("legacy_alter_table", "OFF", 0, "migrations rename tables together with their views"),
    Pragma("short_column_names", "ON", 1, "columns have their names"),
    Pragma("full_column_names", "OFF", 0, "columns have their names"),
    Pragma("mmap_size", "0", 0, "a file that is cut short would end the process"),
    Pragma("temp_store", "MEMORY", 2, "sorting writes no files"),
)
WAL_PAGES: Final = 4_000  # 16 MiB, because each checkpoint costs several fsyncs
_SYNCHRONOUS: Final = {"full": ("FULL", 2), "relaxed": ("NORMAL", 1)}  # by the server's setting `durability`
ENCODING: Final = "UTF-8"


def prepare_writer(conn: Any, durability: str) -> None:
    """Set up the writer's connection. Raises `StoreUnavailable` for a file that PopMQ cannot use."""
    _prepare(conn)
    (encoding,) = conn.execute("PRAGMA encoding").fetchone()
    if encoding != ENCODING:
        raise StoreUnavailable(
            f"the SQLite file has the encoding {encoding}, not {ENCODING}: another program made it, and PopMQ's ids"
            " would be read wrongly; use another file"
        )
    _set(conn, Pragma("journal_mode", "WAL", "wal", ""))
    _set(conn, Pragma("synchronous", *_SYNCHRONOUS[durability], ""))
    conn.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    conn.execute("PRAGMA cache_size = -65536")


def prepare_reader(conn: Any) -> None:
    _prepare(conn)
    _set(conn, Pragma("query_only", "ON", 1, ""))


def prepare_memory(conn: Any) -> None:
    """Set up the only connection to a database in memory."""
    _prepare(conn)


def _prepare(conn: Any) -> None:
    # A listener of other code may have set these.
    conn.isolation_level, conn.row_factory, conn.text_factory = None, None, str
    conn.execute("PRAGMA query_only = OFF")
    for each in PRAGMAS:
        _set(conn, each)


def _set(conn: Any, pragma: Pragma) -> None:
    """Set a pragma and read it back, because SQLite silently ignores values that it cannot use."""
    conn.execute(f"PRAGMA {pragma.name} = {pragma.value}")
    if pragma.answer is None:
        return
    row = conn.execute(f"PRAGMA {pragma.name}").fetchone()
    # A library that was compiled without this pragma answers with no row.
    if row is not None and row[0] != pragma.answer:
        raise StoreUnavailable(
            f"SQLite uses {pragma.name}={row[0]} instead of {pragma.value}; use a local disk with file locks"
        )
