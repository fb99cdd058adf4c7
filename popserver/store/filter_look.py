"""Queries for what a SQL filter reads: a message's key, its tag, and the properties that the filter names.

A whole result travels as one row (see `store.column_look`). Where that is cheaper the database picks the properties
that the filter names out of all that a message has.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, func, select

from popserver.domain.filtering import SqlFilter
from popserver.domain.filtering.sql import TAG_PROPERTY
from popserver.store.column_look import column_as_one_value, json_text
from popserver.store.dialect import PerDialect, dialect_of
from popserver.store.schema import message

# Of a filter that names more the properties are fetched whole.
PICKED_MAX = 16
_SOURCES = ("message_key", "tag", "properties")

# Message key, tag, properties; of a property that is missing there may be a None.
Judged = tuple[int, str | None, Mapping[str, str | None]]


class Unjudged(NamedTuple):
    """Messages, and at most how many characters their tags and properties have together."""

    rows: Sequence[Judged]
    characters: int


class FilterQuery:
    """A query for messages: `narrow` adds conditions, order and limit to a select."""

    def __init__(self, narrow: Callable[[Select[Any]], Select[Any]]) -> None:
        found = narrow(select(*(message.c[name] for name in _SOURCES))).subquery()
        self._whole = PerDialect(
            lambda dialect: select(*(column_as_one_value(dialect, name, found.c[name]) for name in _SOURCES))
        )
        self._picked = [_picking(found, count) for count in range(PICKED_MAX + 1)]

    def rows(self, conn: Connection, wanted: SqlFilter, names: Mapping[str, Any]) -> Unjudged:
        """What it finds, in its order."""
        named = [each for each in wanted.names if each != TAG_PROPERTY]
        if dialect_of(conn).picks_json and len(named) <= PICKED_MAX:
            columns: Sequence[str] = conn.execute(self._picked[len(named)], {**names, **_picks(named)}).one()
        else:
            columns = list(map(json_text, _SOURCES, conn.execute(self._whole.of(conn), names).one()))
        return Unjudged(list(zip(*map(json.loads, columns), strict=True)), sum(map(len, columns)))


def _picking(found: Any, count: int) -> Select[Any]:
    """JSON lists; in place of the properties stands an object of so many of them."""
    pairs: list[Any] = []
    for number in range(count):
        pairs += [bindparam(f"name_{number}"), func.json_extract(found.c.properties, bindparam(f"path_{number}"))]
    return select(*map(func.json_group_array, (found.c.message_key, found.c.tag, func.json_object(*pairs))))


def _picks(named: Sequence[str]) -> dict[str, str]:
    """Each property by its name, and as a path: letters, digits, _ and $ have no meaning inside the quotes."""
    picks: dict[str, str] = {}
    for number, name in enumerate(named):
        picks |= {f"name_{number}": name, f"path_{number}": f'$."{name}"'}
    return picks
