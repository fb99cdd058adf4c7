"""Rows handed to a statement as one parameter.

Set-based statements want many small rows of integers without a text that grows with their number. They travel as one
JSON array of arrays; each database reads it with its own function, and this file is the only one that knows which.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import BigInteger, Subquery, Text, bindparam, cast, column, literal_column, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


def given(parameter: str, *names: str) -> Subquery:
    """The rows of `parameter` as a subquery with these integer columns."""
    rows = _Rows(bindparam(parameter, type_=Text)).table_valued(column("value"))
    fields = [rows.c.value.op("->>")(literal_column(str(index))) for index in range(len(names))]
    columns = [cast(field, BigInteger).label(name) for field, name in zip(fields, names, strict=True)]
    return select(*columns).subquery(f"given_{parameter}")


def as_given(rows: Iterable[Sequence[int]]) -> str:
    """The value for a `given` parameter."""
    return json.dumps(list(rows), separators=(",", ":"))


class _Rows(FunctionElement[Any]):
    inherit_cache = True


@compiles(_Rows, "sqlite")
def _rows_of_sqlite(rows: _Rows, compiler: SQLCompiler, **kw: Any) -> str:
    return f"json_each({compiler.process(rows.clauses, **kw)})"


@compiles(_Rows, "postgresql")
def _rows_of_postgres(rows: _Rows, compiler: SQLCompiler, **kw: Any) -> str:
    return f"jsonb_array_elements(CAST({compiler.process(rows.clauses, **kw)} AS jsonb))"
