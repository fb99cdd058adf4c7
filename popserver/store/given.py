"""Rows handed to a statement as one parameter.

Set-based statements want many small rows without a text that grows with their number. They travel as one JSON array
of arrays; each database reads it with its own function, and this file is the only one that knows which.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Subquery, Text, bindparam, cast, column, literal_column, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeEngine


def rows_parameter(parameter: str, *names: str, text: Sequence[str] = ()) -> Subquery:
    """The rows of `parameter` as a subquery: these columns of integers, then those of text."""
    rows = _Rows(bindparam(parameter, type_=Text)).table_valued(column("value"))
    fields = [rows.c.value.op("->>")(literal_column(str(index))) for index in range(len(names) + len(text))]
    types: list[TypeEngine[Any]] = [BigInteger()] * len(names) + [Text()] * len(text)
    columns = [cast(field, kind).label(name) for field, kind, name in zip(fields, types, [*names, *text], strict=True)]
    return select(*columns).subquery(f"given_{parameter}")


def rows_as_json(*columns: ColumnElement[Any]) -> ColumnElement[str]:
    """The rows of a query as one text, which a `rows_parameter` takes as it is; null where there are none."""
    return _RowsAsJson(*columns)


def encode_rows(rows: Iterable[Sequence[int | str | None]]) -> str:
    """The value for a `rows_parameter`."""
    return _as_json(list(rows))


# Made once: json.dumps makes an encoder per call as soon as one of its options is used.
_as_json = json.JSONEncoder(separators=(",", ":")).encode


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
    return f"jsonb_array_elements(CAST({compiler.process(rows.clauses, **kw)} AS jsonb))"


@compiles(_RowsAsJson, "sqlite")
def _rows_as_json_by_sqlite(rows: _RowsAsJson, compiler: SQLCompiler, **kw: Any) -> str:
    return f"json_group_array(json_array({compiler.process(rows.clauses, **kw)}))"


@compiles(_RowsAsJson, "postgresql")
def _rows_as_json_by_postgres(rows: _RowsAsJson, compiler: SQLCompiler, **kw: Any) -> str:
    return f"CAST(jsonb_agg(jsonb_build_array({compiler.process(rows.clauses, **kw)})) AS text)"
