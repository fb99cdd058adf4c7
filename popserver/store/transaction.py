"""One transaction of the writer: what its verbs share, and what is to happen once it is committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Table

# No statement touches more rows than this; longer work comes in steps with requests in between.
STEP_ROWS_MAX = 1_000
_INSERT_ROWS_MAX = 64


@dataclass(slots=True)
class Transaction:
    """A connection inside a transaction, its one moment in time, and its effects after COMMIT.

    `careful` is set when an optimistic run met a repeated message id: verbs then look before they insert.
    """

    conn: Connection
    now_ms: int
    careful: bool = False
    rings: set[int] = field(default_factory=set)
    due_ms: int | None = None

    def ring(self, topic_id: int) -> None:
        """Once committed, something of this topic can be granted."""
        self.rings.add(topic_id)

    def due(self, at_ms: int) -> None:
        """Once committed, something falls due at `at_ms`."""
        if self.due_ms is None or at_ms < self.due_ms:
            self.due_ms = at_ms


def insert_rows(conn: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert whole rows, columns in the table's order, in few statements of many rows.

    A driver lets go of the interpreter once per statement, so one statement per row would make the writer and the
    event loop take turns for every message. Row counts are powers of two: few texts, each prepared once.
    """
    start = 0
    while start < len(rows):
        count = min(_INSERT_ROWS_MAX, 1 << (len(rows) - start).bit_length() - 1)
        parameters = tuple(value for row in rows[start : start + count] for value in row)
        conn.exec_driver_sql(_insert_text(table, count, conn.dialect.paramstyle), parameters)
        start += count


@lru_cache(maxsize=256)
def _insert_text(table: Table, count: int, paramstyle: str) -> str:
    mark = "?" if paramstyle == "qmark" else "%s"
    row = f"({', '.join([mark] * len(table.columns))})"
    columns = ", ".join(column.name for column in table.columns)
    return f"INSERT INTO {table.name} ({columns}) VALUES {', '.join([row] * count)}"  # noqa: S608 - names are ours
