"""Looks for whole messages, and how they are fetched.

SQLite's driver lets go of the interpreter for every row it fetches, and the event loop takes it each time: under load
a batch of 32 rows costs more in hand-overs than in work. So on SQLite a whole result travels as one row: the columns
as one JSON text, the bodies behind one another. Postgres sends the result in one piece anyway.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NamedTuple

from sqlalchemy import Connection, LargeBinary, Select, case, cast, func, literal, select

from popserver.store.given import given
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
    """Which bodies a look fetches."""

    ALL = "all"
    SMALL = "small"  # in place of the others is `LATER`
    NONE = "none"  # all are empty


class Later(bytes):
    """Stands for a body that was not fetched."""


LATER = Later()
# A body up to this size costs little beside the rest of its message.
SMALL_BODY_BYTES = 16 * 1024
COLUMNS = tuple(message.c[name] for name in MessageRow._fields)
_BLOBS = ("message_id", "digest")
_NO_BODY = literal(b"", LargeBinary).label("body")
_SMALL_BODY = case((func.length(message.c.body) <= SMALL_BODY_BYTES, message.c.body)).label("body")


class MessageLook:
    """A query for messages: `narrow` adds conditions, order and limit to a select of `COLUMNS`."""

    def __init__(self, narrow: Callable[[Select[Any]], Select[Any]]) -> None:
        self.query = narrow(select(*COLUMNS))
        self._queries = {
            Bodies.ALL: self.query,
            Bodies.SMALL: narrow(select(*COLUMNS[:-1], _SMALL_BODY)),
            Bodies.NONE: narrow(select(*COLUMNS[:-1], _NO_BODY)),
        }
        self._as_one_row = {bodies: _as_one_row(query) for bodies, query in self._queries.items()}

    def rows(self, conn: Connection, names: Mapping[str, Any], *, bodies: Bodies = Bodies.ALL) -> list[MessageRow]:
        """What it finds, in its order."""
        if conn.dialect.name != "sqlite":
            return [_with_body(MessageRow._make(row)) for row in conn.execute(self._queries[bodies], names)]
        columns, joined = conn.execute(self._as_one_row[bodies], names).one()
        return _unpack(json.loads(columns), joined)


def _as_one_row(query: Select[Any]) -> Select[Any]:
    found = query.subquery()
    columns = [func.hex(found.c[name]) if name in _BLOBS else found.c[name] for name in MessageRow._fields[:-1]]
    packed = func.json_group_array(func.json_array(*columns, func.length(found.c.body)))
    # group_concat joins the bytes as they are; it only calls the outcome a text.
    return select(packed, cast(func.group_concat(found.c.body, ""), LargeBinary))


def _with_body(row: MessageRow) -> MessageRow:
    return row._replace(body=LATER) if row.body is None else row


def _unpack(listed: list[list[Any]], bodies: bytes | None) -> list[MessageRow]:
    rows: list[MessageRow] = []
    start = 0
    for columns in listed:
        size = columns[-1] or 0
        columns[-1] = LATER if columns[-1] is None else bodies[start : start + size] if bodies else b""
        columns[_ID], columns[_DIGEST] = bytes.fromhex(columns[_ID]), bytes.fromhex(columns[_DIGEST])
        rows.append(MessageRow._make(columns))
        start += size
    return rows


_ID, _DIGEST = (MessageRow._fields.index(name) for name in _BLOBS)

_KEYS = given("keys", "message_key")
# The messages with these `keys`, by key.
BY_KEY = MessageLook(
    lambda every: every.where(message.c.message_key.in_(select(_KEYS.c.message_key))).order_by(message.c.message_key)
)
