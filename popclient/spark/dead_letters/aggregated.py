"""A page in one row of Postgres: each column is aggregated to one value.

Numbers are eight bytes each, with the smallest number for NULL; binary values are joined, beside their lengths; texts
are joined by a control character, with another one for NULL. If a text has one of these characters, the counts differ,
and the page is fetched by rows.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import ColumnElement, Select, func, literal_column, select

from popclient.spark.dead_letters.columns import ViewSource

_NULL: Final = "\x01"
_NEXT: Final = "\x02"
_NULL_NUMBER: Final = -(2**63)
_NO_BYTES: Final[ColumnElement[int]] = literal_column("-1")


def aggregates(rows: Select[Any], sources: Sequence[ViewSource]) -> Select[Any]:
    """The query for one row: the number of rows, and their columns."""
    page = rows.subquery("page")
    return select(func.count(), *(each for source in sources for each in _aggregates_of(page.c[source.name], source)))


def _aggregates_of(column: ColumnElement[Any], source: ViewSource) -> Iterator[ColumnElement[Any]]:
    no_bytes: ColumnElement[Any] = literal_column("''::bytea")
    if source.kind == pa.int64():
        yield func.string_agg(func.int8send(func.coalesce(column, literal_column(f"({_NULL_NUMBER})"))), no_bytes)
    elif source.kind == pa.binary():
        yield func.string_agg(column, no_bytes)
        yield func.string_agg(func.int8send(func.coalesce(func.octet_length(column), _NO_BYTES)), no_bytes)
    else:
        yield func.string_agg(func.coalesce(column, literal_column(r"E'\x01'")), literal_column(r"E'\x02'"))
        yield func.count(column)


def arrays_of(count: int, values: Sequence[Any], sources: Sequence[ViewSource]) -> dict[ViewSource, pa.Array] | None:
    """The columns of such a row; None if a text has one of the control characters."""
    values_left = iter(values)
    arrays = {}
    for source in sources:
        if source.kind == pa.int64():
            found = _numbers(next(values_left))
        elif source.kind == pa.binary():
            found = _bytes(next(values_left), next(values_left))
        else:
            found = _texts(count, next(values_left), next(values_left))
        if found is None:
            return None
        arrays[source] = found
    return arrays


def _numbers(sent: bytes) -> pa.Array:
    numbers = _int64(sent)
    null = pc.equal(numbers, _NULL_NUMBER)
    return pc.if_else(null, None, numbers) if pc.any(null).as_py() else numbers


def _bytes(joined: bytes | None, lengths: bytes) -> pa.Array:
    values_left = _int64(lengths)
    null = pc.less(values_left, 0)
    ends = pc.cumulative_sum(pc.if_else(null, 0, values_left)).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    found = pa.Array.from_buffers(pa.binary(), len(ends), [None, offsets.buffers()[1], pa.py_buffer(joined or b"")])
    return pc.if_else(null, None, found) if pc.any(null).as_py() else found


def _texts(count: int, joined: str, present: int) -> pa.Array | None:
    texts = pc.split_pattern(pa.array([joined], pa.string()), _NEXT)[0].values
    null = pc.equal(texts, _NULL)
    if len(texts) != count or pc.sum(null).as_py() != count - present:
        return None
    return texts if present == count else pc.if_else(null, None, texts)


def _int64(sent: bytes) -> pa.Array:
    numbers = array("q", sent)
    if sys.byteorder == "little":
        numbers.byteswap()
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
