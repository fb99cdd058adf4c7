# ruff: noqa: S608 - the words in the statements are our own
"""How the queries of the invariants are put together: for whole tables, for pages, for one row, for one message."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Connection, TextClause, text

from popserver.database.dialect import dialect_of
from popserver.model.retry import MINUTE_MS
from popserver.model.states import PendingKind
from popserver.model.topic import OFFSET_BITS

LATE_MS = MINUTE_MS  # what is due since then is late: a database under load is late by seconds


class StuckRow(NamedTuple):
    """A row that breaks an invariant. `row_id`: the message key of a delivery, the id of a pending message.

    What a row does not have is 0, or empty. The message group may be a lite topic.
    """

    group_id: int
    queue_id: int
    topic_id: int
    message_group: str
    row_id: int


class Moments(NamedTuple):
    """The server's time, and the time of day, which delayed messages go by."""

    now_ms: int
    calendar_ms: int

    @property
    def names(self) -> dict[str, int]:
        """The parameters of all queries."""
        late = {"late_ms": self.now_ms - LATE_MS, "late_calendar_ms": self.calendar_ms - LATE_MS}
        return self._asdict() | late


@dataclass(frozen=True)
class StuckTable:
    """Where the rows of an invariant are: table `b` of its query, and the columns of a `StuckRow` in it.

    `key`: the order of its pages. `is_one` finds a `StuckRow` again. Only rows that are `restricted` are looked at.
    """

    name: str
    key: tuple[str, ...]
    found: tuple[str, str, str, str, str]
    is_one: str
    columns: str = "b.*"
    restricted: str = ""


class StuckIn(Enum):
    """The tables whose rows are looked at, in the order of locks."""

    QUEUES = StuckTable("queue", ("queue_id",), ("0", "b.queue_id", "b.topic_id", "''", "0"), "b.queue_id = :queue_id")
    DELAYED = StuckTable(
        "pending",
        ("due_at_ms", "pending_id"),
        ("0", "0", "b.topic_id", "''", "b.pending_id"),
        "b.pending_id = :row_id",
        "b.pending_id, b.topic_id, b.kind, b.due_at_ms, b.stored_at_ms",
        f"b.kind = '{PendingKind.DELAY}' AND b.due_at_ms < :late_calendar_ms",
    )
    PLACES = StuckTable(
        "progress",
        ("group_id", "queue_id"),
        ("b.group_id", "b.queue_id", "q.topic_id", "''", "0"),
        "b.group_id = :group_id AND b.queue_id = :queue_id",
    )
    SUBSCRIPTIONS = StuckTable(
        "lite_subscription",
        ("group_id", "topic_id", "lite_topic", "client_id"),
        ("b.group_id", "b.queue_id", "b.topic_id", "b.lite_topic", "0"),
        "b.group_id = :group_id AND b.topic_id = :topic_id AND b.lite_topic = :message_group",
    )
    DELIVERIES = StuckTable(
        "delivery",
        ("group_id", "message_key"),
        (
            "b.group_id",
            f"(b.message_key >> {OFFSET_BITS})",
            "b.topic_id",
            "COALESCE(b.message_group, '')",
            "b.message_key",
        ),
        "b.group_id = :group_id AND b.message_key = :row_id",
    )
    POSITIONS = StuckTable(
        "message_group_progress",
        ("group_id", "queue_id", "message_group"),
        ("b.group_id", "b.queue_id", "b.topic_id", "b.message_group", "0"),
        "b.group_id = :group_id AND b.queue_id = :queue_id AND b.message_group = :message_group",
    )


_ALL_OF_GROUP = (
    "GROUP_OF(b) = :group_id AND b.topic_id = :topic_id AND b.message_group = :message_group"
    " AND b.message_key <= :row_id"
)


@dataclass(frozen=True)
class Stuck:
    """An invariant whose breach keeps messages from being delivered.

    `broken` goes on after `FROM … b`; `says` ends a sentence about such a message; `does` is what the statements of
    `repair` do, which have the fields of a `StuckRow` and the times as parameters. `at` are the columns of the row
    where they are not those of the source. `is_late`: by time, so it is said only of a store with a server.
    """

    name: str
    source: StuckIn
    broken: str
    says: str
    does: str
    repair: tuple[str, ...]
    at: tuple[str, str, str, str, str] | None = None
    is_one: str = ""
    is_late: bool = False

    def count(self) -> str:
        """The query that counts the rows of the whole table."""
        return f"SELECT COUNT(*) FROM ({self._rows(self.source.value.name)}) s"

    def page(self) -> str:
        """The rows of a page, see `pages`."""
        table = self.source.value
        return self._rows(f"({_page(table, table.columns)})")

    def one(self) -> str:
        """A row that was found before, if it still breaks the invariant."""
        return self._where(self.is_one or self.source.value.is_one)

    def of_message(self, *, in_order: bool) -> str:
        """The rows that keep one message back; `in_order`: it has a message group."""
        is_ordered = in_order and self.source is StuckIn.DELIVERIES
        return self._where(_ALL_OF_GROUP if is_ordered else self.is_one or self.source.value.is_one)

    def _where(self, condition: str) -> str:
        table = self.source.value
        also = f" AND {table.restricted}" if table.restricted else ""
        rows = self._rows(f"(SELECT {table.columns} FROM {table.name} b WHERE {condition}{also})")
        return f"SELECT * FROM ({rows}) s WHERE s.group_id IN (0, :group_id) AND s.queue_id IN (0, :queue_id)"

    def _rows(self, table: str) -> str:
        columns = zip(self.at or self.source.value.found, StuckRow._fields, strict=True)
        return f"SELECT {', '.join(f'{each} AS {name}' for each, name in columns)} FROM {table} b {self.broken}"


def found(conn: Connection, query: str, names: dict[str, Any]) -> list[StuckRow]:
    """The rows of a query of an invariant."""
    return [StuckRow(*row) for row in conn.execute(statement(conn, query), names)]


def statement(conn: Connection, query: str) -> TextClause:
    """A query or a repair in the words of the database: GROUP_OF(t) is the group of a row as its indexes have it."""
    return _statement(query, dialect_of(conn).has_other_writers)


def first_page(source: StuckIn, size: int) -> dict[str, Any]:
    """The parameters of the first page of a table: of at most `size` rows."""
    return {"size": size} | {f"after_{index}": each for index, each in enumerate(_first(source.value))}


def next_page(conn: Connection, source: StuckIn, names: dict[str, Any]) -> dict[str, Any] | None:
    """The parameters of the page after this one; None if it is the last one."""
    table = source.value
    page = _page(table, ", ".join(f"b.{each}" for each in table.key))
    row = conn.execute(statement(conn, f"SELECT * FROM ({page}) s LIMIT 1 OFFSET :size - 1"), names).first()
    return None if row is None else names | {f"after_{index}": each for index, each in enumerate(row)}


def _first(table: StuckTable) -> tuple[Any, ...]:
    return tuple("" if each in ("message_group", "lite_topic", "client_id") else -1 for each in table.key)


def _page(table: StuckTable, columns: str) -> str:
    key = ", ".join(f"b.{each}" for each in table.key)
    after = ", ".join(f":after_{index}" for index in range(len(table.key)))
    also = f" AND {table.restricted}" if table.restricted else ""
    return f"SELECT {columns} FROM {table.name} b WHERE ({key}) > ({after}){also} ORDER BY {key} LIMIT :size"


@cache
def _statement(query: str, is_postgres: bool) -> TextClause:
    for each in ("b", "d"):
        query = query.replace(f"GROUP_OF({each})", f"({each}.group_id + 0)" if is_postgres else f"{each}.group_id")
    return text(query)
