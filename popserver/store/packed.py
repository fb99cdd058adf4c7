"""Looks for many narrow rows, and how they are fetched.

SQLite's driver lets go of the interpreter for every row it fetches (see `store.message_look`); a whole result there
travels as one JSON text. So no column of such a look may be a blob.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Select, func, select

Row = TypeVar("Row", bound=NamedTuple)


class PackedLook(Generic[Row]):
    """A query whose columns are the fields of `kind`."""

    def __init__(self, kind: type[Row], query: Select[Any]) -> None:
        self.query = query
        self._kind = kind
        found = query.subquery()
        self._as_one_row = select(func.json_group_array(func.json_array(*found.c)))

    def rows(self, conn: Connection, names: Mapping[str, Any]) -> list[Row]:
        """What it finds, in its order."""
        if conn.dialect.name != "sqlite":
            return [self._kind(*row) for row in conn.execute(self.query, names)]
        return [self._kind(*each) for each in json.loads(conn.execute(self._as_one_row, names).scalar_one())]
