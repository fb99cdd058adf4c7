# ruff: noqa: S608 - the words in the statements are our own
"""The queries of the invariants: of a whole table, of a page, of one row, and of one message."""

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

LATE_MS = MINUTE_MS  # after its due time a row counts as late; a database under load is late by seconds


class StuckRow(NamedTuple):
    """A row that breaks an invariant. `row_id`: the message key of a delivery, the id of a pending message.

    Fields that the row's table does not have are 0 or empty. The message group may be a lite topic.
    """

    group_id: int
    queue_id: int
    topic_id: int
    message_group: str
    row_id: int


class Moments(NamedTuple):
    """The server time, and the time of the system clock, by which delayed messages are due."""

    now_ms: int
    calendar_ms: int

    @property
    def names(self) -> dict[str, int]:
        """The parameters of all queries."""
        late = {"late_ms": self.now_ms - LATE_MS, "late_calendar_ms": self.calendar_ms - LATE_MS}
        return self._asdict() | late


@dataclass(frozen=True)
class StuckTable:
    """The table `b` in the query of an invariant, and its columns for a `StuckRow`.

    `key`: the order of pages. `is_one`: the condition that finds a `StuckRow` again. `restricted`: the condition for
    the rows that are read.
    """

    name: str
    key: tuple[str, ...]
    found: tuple[str, str, str, str, str]
    is_one: str
    columns: str = "b.*"
    restricted: str = ""


class StuckIn(Enum):
    """The tables of the invariants, in the order of locks."""

    QUEUES = StuckTable("queue", ("queue_id",), ("0", "b.queue_id", "b.topic_id", "''", "0"), "b.queue_id = :queue_id")
    DELAYED = StuckTable(
        "pending",
        ("due_at_ms", "pending_id"),
        ("0", "0", "b.topic_id", "''", "b.pending_id"),
        "b.pending_id = :row_id",
        "b.pending_id, b.topic_id, b.kind, b.due_at_ms, b.stored_at_ms",
        f"b.kind = '{PendingKind.DELAY}' AND b.due_at_ms < :late_calendar_ms",
    )
    PROGRESS = StuckTable(
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

    `broken`: the SQL after `FROM … b`. `symptom` ends a sentence about such a message. `effect`: what the statements of
    `repair` do; their parameters are the fields of a `StuckRow` and the times. `at`: the columns for the `StuckRow`, if
    they differ from those of the source. `is_late`: a breach by time, so it is checked only while a server runs.
    """

    name: str
    source: StuckIn
    broken: str
    symptom: str
    effect: str
    repair: tuple[str, ...]
    at: tuple[str, str, str, str, str] | None = None
    is_one: str = ""
    is_late: bool = False

    def count(self) -> str:
        """The query that counts the rows of the whole table."""
        return f"SELECT COUNT(*) FROM ({self._rows(self.source.value.name)}) s"

    def page(self) -> str:
        """The query for the rows of a page."""
        table = self.source.value
        return self._rows(f"({_page(table, table.columns)})")

    def one(self) -> str:
        """The query that finds a `StuckRow` again, if it still breaks the invariant."""
        return self._where(self.is_one or self.source.value.is_one)

    def of_message(self, *, in_order: bool) -> str:
        """The query for the rows that keep back one message; `in_order`: it has a message group."""
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
    """The statement of a query or a repair for this database. GROUP_OF(t) becomes the group id as indexes have it."""
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
