"""Rows that a statement takes as one parameter, and queries that return typed rows.

The rows are one JSON array of arrays, so the text of a statement does not grow with their number. Each database reads
the array with its own JSON function.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Executable,
    Select,
    Subquery,
    Text,
    TextClause,
    bindparam,
    cast,
    column,
    literal_column,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine

from popserver.database.dialect import PerDialect
from popserver.database.statement import Statement


def rows_parameter(parameter: str, *names: str, text: Sequence[str] = ()) -> Subquery:
    """The rows of a parameter as a subquery: first the integer columns `names`, then the text columns `text`."""
    rows = _Rows(bindparam(parameter, type_=Text)).table_valued(column("value"))
    fields = [rows.c.value.op("->>")(literal_column(str(index))) for index in range(len(names) + len(text))]
    types: list[TypeEngine[Any]] = [BigInteger()] * len(names) + [Text()] * len(text)
    columns = [cast(field, kind).label(name) for field, kind, name in zip(fields, types, [*names, *text], strict=True)]
    return select(*columns).subquery(f"given_{parameter}")


def rows_as_json(*columns: ColumnElement[Any]) -> ColumnElement[str]:
    """The rows of a query as one text that a `rows_parameter` accepts; null without rows."""
    return _RowsAsJson(*columns)


# The value for a `rows_parameter`. Made once, because json.dumps with options makes a new encoder for each call.
encode_rows: Callable[[Sequence[Sequence[int | str | None]]], str] = json.JSONEncoder(separators=(",", ":")).encode


def encode_column(values: Iterable[int | str | None]) -> str:
    """The value for a `rows_parameter` of one column."""
    return encode_rows([(each,) for each in values])


class _Rows(FunctionElement[Any]):
    inherit_cache = True


class _RowsAsJson(FunctionElement[str]):
    type = Text()
    inherit_cache = True


@compiles(_Rows, "sqlite")
def _rows_of_sqlite(rows: _Rows, compiler: SQLCompiler, **kw: Any) -> str:
    return f"json_each({compiler.process(rows.clauses, **kw)})"


@compiles(_Rows, "postgresql")
def _rows_of_postgres(rows: _Rows, compiler: SQLCompiler, **kw: Any) -> str:
    # Postgres expects 100 rows of the function. For so many keys it would read a whole table that it believes to be
    # small, although the table may have thousands of old versions. Behind an equality it expects few rows, and so it
    # searches the index for each key.
    elements = f"jsonb_array_elements(CAST({compiler.process(rows.clauses, **kw)} AS jsonb))"
    return f"(SELECT value FROM {elements} WHERE jsonb_typeof(value) = 'array')"  # noqa: S608


@compiles(_RowsAsJson, "sqlite")
def _rows_as_json_by_sqlite(rows: _RowsAsJson, compiler: SQLCompiler, **kw: Any) -> str:
    return f"json_group_array(json_array({compiler.process(rows.clauses, **kw)}))"


@compiles(_RowsAsJson, "postgresql")
def _rows_as_json_by_postgres(rows: _RowsAsJson, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST(jsonb_agg(jsonb_build_array({compiler.process(rows.clauses, **kw)})) AS text)"


# Statements with typed rows, whose columns are the fields of a NamedTuple.

Row = TypeVar("Row", bound=NamedTuple)


class RowStatement(Generic[Row]):
    """A statement whose columns are the fields of `kind`, in that order. It may lock or change rows."""

    def __init__(self, kind: type[Row], statement: Executable) -> None:
        _check_columns(kind, statement)
        self._make = kind._make
        self._statement = Statement(statement)

    def rows(self, conn: Connection, names: Mapping[str, Any]) -> list[Row]:
        """The rows that it returns."""
        return list(map(self._make, self._statement.execute(conn, names).fetchall()))

    def first(self, conn: Connection, names: Mapping[str, Any]) -> Row | None:
        """The first row; None without rows."""
        row = self._statement.execute(conn, names).fetchone()
        return None if row is None else self._make(row)


class RowQuery(Generic[Row]):
    """A query with many narrow rows, which it fetches in the fastest way of each database."""

    def __init__(self, kind: type[Row], query: Select[Any]) -> None:
        _check_columns(kind, query)
        self._make = kind._make
        self._readers = PerDialect(lambda dialect: dialect.reader(query))

    def rows(self, conn: Connection, names: Mapping[str, Any]) -> list[Row]:
        """The rows that it finds."""
        return list(map(self._make, self._readers.of(conn)(conn, names)))


def _check_columns(kind: type[NamedTuple], statement: Any) -> None:
    """Check the columns of a statement, except for text statements, whose columns are unknown."""
    if not isinstance(statement, TextClause):
        found = tuple(statement.exported_columns.keys())
        assert found == kind._fields, f"columns {found} are not the fields of {kind.__name__}"
