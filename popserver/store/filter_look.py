"""Looks for what a SQL filter is asked about: a message's key, its tag, and the properties that the filter names.

A whole result travels as one row (see `store.message_look`): a JSON list for each column. On SQLite the store picks the
properties that the filter names out of all that a message has; Postgres sends all of them, as they are stored.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, Text, bindparam, cast, func, select

from popserver.domain.filtering import SqlFilter
from popserver.domain.filtering.sql import TAG_PROPERTY
from popserver.store.schema import AnyRow, message

# Of a filter that names more the properties are fetched whole.
PICKED_MAX = 16

# Message key, tag, properties; of a property that is missing there may be a None.
Judged = tuple[int, str | None, Mapping[str, str | None]]


class Unjudged(NamedTuple):
    """Messages, and at most how many characters their tags and properties have together."""

    rows: Sequence[Judged]
    characters: int


class FilterLook:
    """A query for messages: `narrow` adds conditions, order and limit to a select."""

    def __init__(self, narrow: Callable[[Select[Any]], Select[Any]]) -> None:
        self.query = narrow(select(message.c.message_key, message.c.tag, message.c.properties))
        found = self.query.subquery()
        properties = func.coalesce(found.c.properties, "{}")
        self._by_sqlite = [_lists_by_sqlite(found, _picked(found, count)) for count in _COUNTS]
        self._whole_by_sqlite = _lists_by_sqlite(found, func.json(properties))
        self._by_postgres = _lists_by_postgres(found, properties)

    def rows(self, conn: Connection, wanted: SqlFilter, names: Mapping[str, Any]) -> Unjudged:
        """What it finds, in its order."""
        columns = self._columns(conn, wanted, names)
        return Unjudged(list(zip(*map(json.loads, columns), strict=True)), sum(map(len, columns)))

    def _columns(self, conn: Connection, wanted: SqlFilter, names: Mapping[str, Any]) -> AnyRow:
        if conn.dialect.name != "sqlite":
            return conn.execute(self._by_postgres, names).one()
        named = [each for each in wanted.names if each != TAG_PROPERTY]
        if len(named) not in _COUNTS:
            return conn.execute(self._whole_by_sqlite, names).one()
        return conn.execute(self._by_sqlite[len(named)], {**names, **_picks(named)}).one()


_COUNTS = range(PICKED_MAX + 1)


def _lists_by_sqlite(found: Any, properties: Any) -> Select[Any]:
    return select(*map(func.json_group_array, (found.c.message_key, found.c.tag, properties)))


def _lists_by_postgres(found: Any, properties: Any) -> Select[Any]:
    # What is JSON already is only put together: to read it costs as much as everything else.
    keys, whole = (func.string_agg(each, ",") for each in (cast(found.c.message_key, Text), properties))
    tags = cast(func.coalesce(func.json_agg(found.c.tag), func.json_build_array()), Text)
    lists: list[Any] = [func.concat("[", keys, "]"), tags, func.concat("[", whole, "]")]
    return select(*lists)


def _picked(found: Any, count: int) -> Any:
    """An object of so many properties."""
    pairs: list[Any] = []
    for number in range(count):
        pairs += [bindparam(f"name_{number}"), func.json_extract(found.c.properties, bindparam(f"path_{number}"))]
    return func.json_object(*pairs)


def _picks(named: Sequence[str]) -> dict[str, str]:
    """Each property by its name, and as a path: letters, digits, _ and $ have no meaning inside the quotes."""
    picks: dict[str, str] = {}
    for number, name in enumerate(named):
        picks |= {f"name_{number}": name, f"path_{number}": f'$."{name}"'}
    return picks
