"""Queries for whole messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, LargeBinary, Select, case, func, literal, select

from popserver.store.given import rows_parameter
from popserver.store.packed import RowQuery
from popserver.store.schema import message


class MessageRow(NamedTuple):
    """One stored message as it lies in the table; `keys` and `properties` are JSON texts."""

    message_key: int
    origin_key: int
    message_id: bytes
    stored_at_ms: int
    born_at_ms: int
    tag: str | None
    keys: str | None
    properties: str | None
    message_group: str | None
    priority: int | None
    message_type: str
    body_encoding: str
    born_host: str
    trace_context: str | None
    digest: bytes
    deliver_at_ms: int | None
    body: bytes


class Bodies(Enum):
    """Which bodies a query fetches."""

    ALL = "all"
    SMALL = "small"  # in place of the others is `LATER`
    NONE = "none"  # all are empty


class Later(bytes):
    """Stands for a body that was not fetched."""


LATER = Later()
# A body up to this size costs little beside the rest of its message.
SMALL_BODY_BYTES = 16 * 1024
COLUMNS = tuple(message.c[name] for name in MessageRow._fields)
_BODIES: dict[Bodies, ColumnElement[Any]] = {
    Bodies.ALL: message.c.body,
    Bodies.SMALL: case((func.length(message.c.body) <= SMALL_BODY_BYTES, message.c.body)).label("body"),
    Bodies.NONE: literal(b"", LargeBinary).label("body"),
}


class MessageQuery:
    """A query for messages: `narrow` adds conditions, order and limit to a select of `COLUMNS`."""

    def __init__(self, narrow: Callable[[Select[Any]], Select[Any]]) -> None:
        self._queries = {
            bodies: RowQuery(MessageRow, narrow(select(*COLUMNS[:-1], body))) for bodies, body in _BODIES.items()
        }

    def rows(self, conn: Connection, names: Mapping[str, Any], *, bodies: Bodies = Bodies.ALL) -> list[MessageRow]:
        """What it finds, in its order."""
        rows = self._queries[bodies].rows(conn, names)
        if bodies is not Bodies.SMALL:
            return rows
        return [row if row.body is not None else row._replace(body=LATER) for row in rows]


_KEYS = rows_parameter("keys", "message_key")
# The messages with these `keys`, by key.
BY_KEY = MessageQuery(
    lambda every: every.where(message.c.message_key.in_(select(_KEYS.c.message_key))).order_by(message.c.message_key)
)
