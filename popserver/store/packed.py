"""Statements with typed rows: their columns are the fields of a NamedTuple."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import Connection, Executable, Select, TextClause

from popserver.store.dialect import PerDialect

Row = TypeVar("Row", bound=NamedTuple)


class RowStatement(Generic[Row]):
    """A statement whose columns are the fields of `kind`, in their order. It may lock or change what it returns."""

    def __init__(self, kind: type[Row], statement: Executable) -> None:
        _check_columns(kind, statement)
        self._make = kind._make
        self._statement = statement

    def rows(self, conn: Connection, names: Mapping[str, Any]) -> list[Row]:
        """What it returns, in its order."""
        return list(map(self._make, conn.execute(self._statement, names)))

    def first(self, conn: Connection, names: Mapping[str, Any]) -> Row | None:
        """The first row; None where there is none."""
        row = conn.execute(self._statement, names).first()
        return None if row is None else self._make(row)


class RowQuery(Generic[Row]):
    """The same for a query of many narrow rows, fetched the fastest way each database has."""

    def __init__(self, kind: type[Row], query: Select[Any]) -> None:
        _check_columns(kind, query)
        self._make = kind._make
        self._readers = PerDialect(lambda dialect: dialect.reader(query))

    def rows(self, conn: Connection, names: Mapping[str, Any]) -> list[Row]:
        """What it finds, in its order."""
        return list(map(self._make, self._readers.of(conn)(conn, names)))


def _check_columns(kind: type[NamedTuple], statement: Any) -> None:
    """Of a statement that is a text the columns are not known."""
    if not isinstance(statement, TextClause):
        found = tuple(statement.exported_columns.keys())
        assert found == kind._fields, f"columns {found} are not the fields of {kind.__name__}"
