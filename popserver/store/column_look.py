"""Looks for many messages as columns, and how they are fetched.

No message becomes a row of its own on the way: each column travels as one JSON text, and the bodies behind one another
in one piece (see `store.message_look`). On Postgres in its binary form: as text a body is twice as long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    LargeBinary,
    Select,
    Text,
    case,
    cast,
    func,
    literal,
    literal_column,
    select,
)

from popserver.domain.bulk import Columns
from popserver.domain.message import BodyEncoding
from popserver.store.database import IN_BINARY
from popserver.store.schema import message

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


class ColumnLook:
    """A query for messages: `narrow` adds conditions, order and limit to a select."""

    def __init__(self, narrow: Callable[[Select[Any]], Select[Any]]) -> None:
        self._narrow = narrow
        self._queries: dict[tuple[bool, tuple[str, ...]], Select[Any]] = {}

    def columns(self, conn: Connection, sources: Iterable[str], names: Mapping[str, Any]) -> Columns:
        """What it finds, in its order; of `sources` those of `domain.bulk`, and `size`."""
        asked = {"message_key", *sources}
        if "body" in asked:
            asked.add("body_size")
        listed = tuple(sorted(asked))
        row = conn.execute(self.query(listed, is_sqlite=conn.dialect.name == "sqlite"), names).one()
        found = dict(zip(listed, row, strict=True))
        bodies = found.pop("body", None) or b""
        values = {name: _read(name, value) for name, value in found.items()}
        return Columns(values.pop("message_key"), values, bodies, values.pop("body_size", ()))

    def query(self, sources: tuple[str, ...], *, is_sqlite: bool) -> Select[Any]:
        """One row, with a column for each source."""
        key = (is_sqlite, sources)
        if key not in self._queries:
            found = self._narrow(select(*(_source(name).label(name) for name in sources))).subquery()
            gather = _by_sqlite if is_sqlite else _by_postgres
            gathered = select(*(gather(name, found.c[name]) for name in sources))
            self._queries[key] = gathered.execution_options(**{IN_BINARY: True})
        return self._queries[key]


def _source(name: str) -> ColumnElement[Any]:
    return _MADE[name] if name in _MADE else message.c[name]


def _read(name: str, value: str | None) -> list[Any]:
    listed: list[Any] = json.loads(f"[{value or ''}]" if name in _JSON else value or "[]")
    return listed


def _by_sqlite(name: str, column: ColumnElement[Any]) -> ColumnElement[Any]:
    if name in _JSON:
        return func.group_concat(func.coalesce(column, _JSON[name]), ",")
    if name == "body":
        # group_concat joins the bytes as they are; it only calls the outcome a text.
        return cast(func.group_concat(column, ""), LargeBinary)
    if name == "message_id":
        is_text = func.hex(func.substr(column, 1, 1)) == literal_column("'00'")
        return func.json_group_array(case((is_text, cast(func.substr(column, 2), Text)), else_=func.hex(column)))
    return func.json_group_array(column)


def _by_postgres(name: str, column: ColumnElement[Any]) -> ColumnElement[Any]:
    if name in _JSON:
        return func.string_agg(func.coalesce(column, _JSON[name]), ",")
    if name == "body":
        return func.string_agg(column, literal(b"", LargeBinary))
    if name == "message_id":
        is_text = func.get_byte(column, literal_column("0")) == literal_column("0")
        text = func.convert_from(func.substr(column, literal_column("2")), "UTF8")
        column = case((is_text, text), else_=func.upper(func.encode(column, "hex")))
    return cast(func.json_agg(column), Text)
