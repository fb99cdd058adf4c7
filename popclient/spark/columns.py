"""Columns of Spark that are made from Arrow arrays: their schema, their choice, and their record batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Column(NamedTuple):
    """make: from the arrays of `sources` to Spark's column; its result is cast to Spark's type."""

    name: str
    type: str
    sources: tuple[Any, ...]
    make: Callable[..., pa.Array]


def unchanged(array: pa.Array) -> pa.Array:
    return array


def schema_of(columns: Iterable[Column]) -> str:
    """As Spark's DDL."""
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def pick(
    schema: StructType, there: Sequence[Column], of: str, way_out: Mapping[str, str] | None = None
) -> tuple[Column, ...]:
    """The columns of a schema, in its order; raises `ValueError` for an unknown name or another type.

    of: what has these columns, for the error. way_out: what to do about another type of a column; by default a cast.
    """
    by_name = {column.name.lower(): column for column in there}
    picked = []
    for field in schema.fields:
        column, kind = by_name.get(field.name.lower()), field.dataType.simpleString()
        if column is None:
            raise ValueError(f"column {field.name!r} is unknown; {of} has {', '.join(each.name for each in there)}")
        if kind != column.type:
            advice = (way_out or {}).get(column.name, "cast it after reading")
            raise ValueError(f"column {field.name!r} is {column.type}, not {kind}; {advice}")
        picked.append(column)
    return tuple(picked)


def record_batch(
    columns: Sequence[Column], schema: pa.Schema, arrays: Mapping[Any, pa.Array], count: int
) -> pa.RecordBatch:
    """A batch of these columns; without columns it has only the number of rows. arrays: by source."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    made = [
        column.make(*(arrays[source] for source in column.sources)).cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(made, schema=schema)
