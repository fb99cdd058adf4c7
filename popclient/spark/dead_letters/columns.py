"""The columns of a dead letter, named as the wire names its fields, and how each is made from the database's."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# A packed body larger than this is handed over packed: 4 MiB can unpack to 4 GiB.
UNPACKED_BYTES_MAX = 64 * 1024 * 1024

Values = Sequence[Any]


class Column(NamedTuple):
    """`make` turns the values of `sources`, columns of the view `dead_letters`, into those Spark sees."""

    name: str
    type: str
    sources: tuple[str, ...]
    make: Callable[..., Iterable[Any]]


def message_id_from_bytes(stored: bytes) -> str:
    """A message id as its producer wrote it: 17 bytes are a version 1 id, a zero byte leads any other text."""
    return stored[1:].decode() if stored[:1] == b"\x00" else stored.hex().upper()


def _as_it_is(values: Values) -> Iterable[Any]:
    return values


def _message_ids(values: Values) -> Iterable[str]:
    return map(message_id_from_bytes, values)


def _lists(values: Values) -> Iterable[list[str]]:
    return (json.loads(value) if value else [] for value in values)


def _maps(values: Values) -> Iterable[list[tuple[str, str]]]:
    return (list(json.loads(value).items()) if value else [] for value in values)


def _microseconds(values: Values) -> Iterable[int]:
    return (value * 1_000 for value in values)


def _bodies(values: Values, encodings: Values) -> Iterable[bytes]:
    return (_unpack(v) if how == "GZIP" else v for v, how in zip(values, encodings, strict=True))


def _unpack(packed: bytes) -> bytes:
    """The body; as it was stored where it does not unpack, for that may be why it is a dead letter."""
    stream = zlib.decompressobj(47)  # a gzip or a zlib stream, whichever it is
    try:
        body = stream.decompress(packed, UNPACKED_BYTES_MAX)
    except zlib.error:
        return packed
    return body if stream.eof else packed


COLUMNS: tuple[Column, ...] = (
    Column("message_id", "string", ("message_id",), _message_ids),
    Column("topic", "string", ("topic",), _as_it_is),
    Column("consumer_group", "string", ("consumer_group",), _as_it_is),
    Column("tag", "string", ("tag",), _as_it_is),
    Column("keys", "array<string>", ("keys",), _lists),
    Column("properties", "map<string,string>", ("properties",), _maps),
    Column("message_group", "string", ("message_group",), _as_it_is),
    Column("message_type", "string", ("message_type",), _as_it_is),
    Column("queue_id", "int", ("queue_id",), _as_it_is),
    Column("queue_offset", "bigint", ("queue_offset",), _as_it_is),
    Column("body", "binary", ("body", "body_encoding"), _bodies),
    Column("born_timestamp", "timestamp", ("born_at_ms",), _microseconds),
    Column("store_timestamp", "timestamp", ("stored_at_ms",), _microseconds),
    Column("dead_timestamp", "timestamp", ("dead_at_ms",), _microseconds),
    Column("delivery_attempt", "int", ("delivery_attempt",), _as_it_is),
    Column("reason", "string", ("reason",), _as_it_is),
    Column("redrive_state", "string", ("redrive_state",), _as_it_is),
    Column("id", "bigint", ("id",), _as_it_is),
)
SCHEMA = ", ".join(f"{column.name} {column.type}" for column in COLUMNS)
_BY_NAME = {column.name: column for column in COLUMNS}


def pick(schema: StructType) -> tuple[Column, ...]:
    """The columns a schema asks for, in its order; raises `ValueError` for a name or a type there is not."""
    picked = []
    for field in schema.fields:
        column = _BY_NAME.get(field.name.lower())
        if column is None:
            raise ValueError(f"column {field.name!r} is unknown; a dead letter has {', '.join(_BY_NAME)}")
        if field.dataType.simpleString() != column.type:
            wanted = field.dataType.simpleString()
            raise ValueError(f"column {field.name!r} is {column.type}, not {wanted}; cast it after reading")
        picked.append(column)
    return tuple(picked)


def to_arrow(rows: Sequence[Sequence[Any]], columns: Sequence[Column], schema: pa.Schema) -> pa.RecordBatch:
    """One Arrow batch from rows of `sources_of(columns)`."""
    by_source = dict(zip(sources_of(columns), zip(*rows, strict=True), strict=True))
    arrays = [
        pa.array(column.make(*(by_source[source] for source in column.sources)), type=field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def sources_of(columns: Sequence[Column]) -> list[str]:
    """The view's columns that these need, each once; the id first, for it is where the next page begins."""
    return list(dict.fromkeys(["id", *(source for column in columns for source in column.sources)]))
