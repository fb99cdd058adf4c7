"""Queries for many narrow rows; how they are fetched is the dialect's matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Select

from popserver.store.dialect import PerDialect

Row = TypeVar("Row", bound=NamedTuple)


class RowQuery(Generic[Row]):
    """A query whose columns are the fields of `kind`."""

    def __init__(self, kind: type[Row], query: Select[Any]) -> None:
        self._make = kind._make
        self._readers = PerDialect(lambda dialect: dialect.reader(query))

    def rows(self, conn: Connection, names: Mapping[str, Any]) -> list[Row]:
        """What it finds, in its order."""
        return list(map(self._make, self._readers.of(conn)(conn, names)))
