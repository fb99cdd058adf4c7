"""Queries for many messages as columns.

No message becomes a row of its own on the way: each column travels as one JSON text, and the bodies in one piece, one
behind the other. On Postgres in its binary form: as text a body is twice as long.
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

# What a message takes of a page. Of its properties these are characters: not both databases count a text's bytes.
SIZE: ColumnElement[int] = func.length(message.c.body) + func.coalesce(
    func.length(message.c.properties), literal_column("0")
)
# Sources that are not a column of that name.
_MADE: dict[str, ColumnElement[Any]] = {
    "is_packed": case((message.c.body_encoding == literal_column(f"'{BodyEncoding.GZIP}'"), 1), else_=0),
    "body_size": func.length(message.c.body),
    "size": SIZE,
}
# JSON already: to read and write it again costs as much as everything else. What stands for none:
_JSON = {"keys": "[]", "properties": "{}"}


class ColumnQuery:
    """A query for messages: `narrow` adds conditions, order and limit to a select."""

    def __init__(self, narrow: Callable[[Select[Any]], Select[Any]]) -> None:
        self._narrow = narrow
        self._queries: dict[tuple[str, ...], PerDialect[Select[Any]]] = {}

    def columns(self, conn: Connection, sources: Iterable[str], names: Mapping[str, Any]) -> Columns:
        """What it finds, in its order; of `sources` those of `bulk.rules`, and `size`."""
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
    """All values of a source's column: bodies one behind the other, anything else as `json_text` takes it."""
    if source in _JSON:
        return dialect.joined(func.coalesce(column, _JSON[source]))
    if source == "body":
        return dialect.joined_bytes(column)
    return dialect.json_list(dialect.id_text(column) if source == "message_id" else column)


def json_text(source: str, value: str | None) -> str:
    """A JSON list of the values of a source's column."""
    return f"[{value or ''}]" if source in _JSON else value or "[]"


def _source(name: str) -> ColumnElement[Any]:
    return _MADE[name] if name in _MADE else message.c[name]


class Columns(NamedTuple):
    """Messages as columns, by source, in the order of `keys`; all bodies in one piece, and the size of each.

    `places` are the keys of the places that the messages are told to have, where some have another: a redriven message
    has its first one.
    """

    keys: Sequence[int]  # model.topic.message_key
    values: Mapping[str, Sequence[Any]]
    bodies: bytes = b""
    body_sizes: Sequence[int] = ()
    places: Sequence[int] = ()
