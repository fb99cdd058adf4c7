"""Queries for many messages as columns.

A result has one row for all messages: each column is one JSON text, and the bodies are concatenated. Postgres sends it
in its binary format, because as text a body is twice as long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, case, func, literal_column, select

from popserver.database.database import IN_BINARY
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.schema import message
from popserver.model.message import BodyEncoding

# The size of a message for limits of pages. Properties count in characters, because the two databases have different
# functions for bytes.
SIZE: ColumnElement[int] = func.length(message.c.body) + func.coalesce(
    func.length(message.c.properties), literal_column("0")
)
# Sources that are computed from other columns.
_MADE: dict[str, ColumnElement[Any]] = {
    "is_packed": case((message.c.body_encoding == literal_column(f"'{BodyEncoding.GZIP}'"), 1), else_=0),
    "body_size": func.length(message.c.body),
    "size": SIZE,
}
# Columns with stored JSON, and the value for null. The query returns their texts unchanged, because decoding is slow.
_JSON = {"keys": "[]", "properties": "{}"}


class ColumnQuery:
    """A query for messages: `narrow` adds conditions, order and limit to a select."""

    def __init__(self, narrow: Callable[[Select[Any]], Select[Any]]) -> None:
        self._narrow = narrow
        self._queries: dict[tuple[str, ...], PerDialect[Select[Any]]] = {}

    def columns(self, conn: Connection, sources: Iterable[str], names: Mapping[str, Any]) -> Columns:
        """The messages that the query finds, in its order. `sources` are those of `bulk.rules`, and `size`."""
        asked = {"message_key", *sources}
        if "body" in asked:
            asked.add("body_size")
        listed = tuple(sorted(asked))
        row = conn.execute(self._query(listed).of(conn), names).one()
        found = dict(zip(listed, row, strict=True))
        bodies = found.pop("body", None) or b""
        values = {name: json.loads(json_text(name, value)) for name, value in found.items()}
        return Columns(values.pop("message_key"), values, bodies, values.pop("body_size", ()))

    def _query(self, sources: tuple[str, ...]) -> PerDialect[Select[Any]]:
        """One row, with a column for each source."""
        if sources not in self._queries:
            found = self._narrow(select(*(_source(name).label(name) for name in sources))).subquery()
            self._queries[sources] = PerDialect(
                lambda dialect: select(
                    *(column_as_one_value(dialect, name, found.c[name]) for name in sources)
                ).execution_options(**{IN_BINARY: True})
            )
        return self._queries[sources]


def column_as_one_value(dialect: Dialect, source: str, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """All values of a source as one value: bodies concatenated, others in the form that `json_text` takes."""
    if source in _JSON:
        return dialect.joined(func.coalesce(column, _JSON[source]))
    if source == "body":
        return dialect.joined_bytes(column)
    return dialect.json_list(dialect.id_text(column) if source == "message_id" else column)


def json_text(source: str, value: str | None) -> str:
    """The values of a source as a JSON list."""
    return f"[{value or ''}]" if source in _JSON else value or "[]"


def _source(name: str) -> ColumnElement[Any]:
    return _MADE[name] if name in _MADE else message.c[name]


class Columns(NamedTuple):
    """Messages as columns by source, in the order of `keys`; with the concatenated bodies, and the size of each.

    `shown_keys` are those that consumers see, if some differ from `keys`: a redriven message shows its first key.
    """

    keys: Sequence[int]  # model.topic.message_key
    values: Mapping[str, Sequence[Any]]
    bodies: bytes = b""
    body_sizes: Sequence[int] = ()
    shown_keys: Sequence[int] = ()
