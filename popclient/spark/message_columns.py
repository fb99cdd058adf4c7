"""The columns of messages, with the names of the wire's fields, or those of Spark's Kafka source.

Messages arrive one by one, or as Arrow tables from popmq.v1.Bulk; both become record batches of the schema that Spark
expects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pyarrow as pa

from popclient.message import FilterExpression, MessageView
from popclient.spark.bodies import BATCH_BYTES_MAX, in_parts, unpack
from popclient.spark.columns import Column, pick, record_batch, unchanged
from popclient.spark.options import Option, OptionReader
from popclient.spark.versions import arrow_schema
from popproto.v2 import definition_pb2 as pb

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

LAYOUTS: Final = ("popmq", "kafka")
# Of one record batch.
BATCH_ROWS_MAX: Final = 10_000

_TEXT: Final = pa.string()
_TEXTS: Final = pa.list_(_TEXT)
_PROPERTIES: Final = pa.map_(_TEXT, _TEXT)
_TIME: Final = pa.timestamp("us", tz="UTC")
_LOG_APPEND_TIME: Final = 1  # Kafka's number for a timestamp that the server has set


class Source(NamedTuple):
    """A field of a message: its Arrow type, and how it is read from the wire."""

    type: pa.DataType
    read: Callable[[pb.Message], Any]


# ---- Messages on the wire ----


def _micros(
    name: Literal["born_timestamp", "store_timestamp", "delivery_timestamp"],
) -> Callable[[pb.Message], int | None]:
    def read(wire: pb.Message) -> int | None:
        system = wire.system_properties
        return getattr(system, name).ToMicroseconds() if system.HasField(name) else None

    return read


def _optional(name: Literal["tag", "message_group", "lite_topic"]) -> Callable[[pb.Message], str | None]:
    def read(wire: pb.Message) -> str | None:
        system = wire.system_properties
        return getattr(system, name) if system.HasField(name) else None

    return read


def body_of(wire: pb.Message) -> bytes:
    return unpack(wire.body) if wire.system_properties.body_encoding == pb.GZIP else wire.body


SOURCES: Final[dict[str, Source]] = {
    "message_id": Source(_TEXT, lambda wire: wire.system_properties.message_id),
    "topic": Source(_TEXT, lambda wire: wire.topic.name),
    "tag": Source(_TEXT, _optional("tag")),
    "keys": Source(_TEXTS, lambda wire: list(wire.system_properties.keys)),
    "message_group": Source(_TEXT, _optional("message_group")),
    "message_type": Source(_TEXT, lambda wire: pb.MessageType.Name(wire.system_properties.message_type)),
    "queue_id": Source(pa.int32(), lambda wire: wire.system_properties.queue_id),
    "queue_offset": Source(pa.int64(), lambda wire: wire.system_properties.queue_offset),
    "body": Source(pa.binary(), body_of),
    "properties": Source(_PROPERTIES, lambda wire: list(wire.user_properties.items())),
    "born_timestamp": Source(_TIME, _micros("born_timestamp")),
    "store_timestamp": Source(_TIME, _micros("store_timestamp")),
    "delivery_timestamp": Source(_TIME, _micros("delivery_timestamp")),
    "delivery_attempt": Source(pa.int32(), lambda wire: wire.system_properties.delivery_attempt),
    "lite_topic": Source(_TEXT, _optional("lite_topic")),
}


def _origin_topic(wire: pb.Message) -> str | None:
    system = wire.system_properties
    return system.dead_letter_queue.topic if system.HasField("dead_letter_queue") else None


# What a journal keeps of a message: also where a dead letter came from.
KEPT: Final[dict[str, Source]] = {**SOURCES, "origin_topic": Source(_TEXT, _origin_topic)}

# ---- Columns of Spark ----


def _kafka_key(keys: pa.Array, groups: pa.Array) -> pa.Array:
    both = zip(keys.to_pylist(), groups.to_pylist(), strict=True)
    words = [several[0] if several else group for several, group in both]
    return pa.array([None if word is None else word.encode() for word in words], pa.binary())


def _kafka_headers(properties: pa.Array) -> pa.Array:
    rows = [[{"key": key, "value": value.encode()} for key, value in each or ()] for each in properties.to_pylist()]
    return pa.array(rows, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))


def _log_append_time(array: pa.Array) -> pa.Array:
    return pa.array([_LOG_APPEND_TIME] * len(array), pa.int32())


_SPARK: Final = {
    _TEXT: "string",
    _TEXTS: "array<string>",
    _PROPERTIES: "map<string,string>",
    _TIME: "timestamp",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.binary(): "binary",
}
KEPT_COLUMNS: Final = tuple(Column(name, _SPARK[each.type], (name,), unchanged) for name, each in KEPT.items())
_OWN: Final = tuple(each for each in KEPT_COLUMNS if each.name in SOURCES)
_KAFKA: Final = (
    Column("key", "binary", ("keys", "message_group"), _kafka_key),
    Column("value", "binary", ("body",), unchanged),
    Column("topic", "string", ("topic",), unchanged),
    Column("partition", "int", ("queue_id",), unchanged),
    Column("offset", "bigint", ("queue_offset",), unchanged),
    Column("timestamp", "timestamp", ("store_timestamp",), unchanged),
    Column("timestampType", "int", ("queue_id",), _log_append_time),
)
_KAFKA_HEADERS: Final = Column("headers", "array<struct<key:string,value:binary>>", ("properties",), _kafka_headers)


def columns_of(layout: str, *, include_headers: bool = False) -> tuple[Column, ...]:
    """All columns of a layout. include_headers: with the properties, in Kafka's layout."""
    if layout == "popmq":
        return _OWN
    return (*_KAFKA, _KAFKA_HEADERS) if include_headers else _KAFKA


class MessageColumns:
    """The columns of a schema, in its order; raises `ValueError` for an unknown name or another type."""

    def __init__(self, schema: StructType, there: Sequence[Column] = _OWN) -> None:
        self._columns = pick(schema, there, "a message")
        self.arrow: pa.Schema = arrow_schema(schema)

    @property
    def sources(self) -> list[str]:
        """The fields of a message that these columns need, each once; at least one."""
        needed = dict.fromkeys(source for column in self._columns for source in column.sources)
        return list(needed) or ["queue_id"]

    def of_messages(self, messages: Iterable[MessageView]) -> Iterator[pa.RecordBatch]:
        """In batches of a limited size, counted with decompressed bodies; a larger body is a batch by itself."""
        is_read = "body" in self.sources
        wires = (message._wire for message in messages)
        both = ((wire, body_of(wire) if is_read else wire.body) for wire in wires)
        for part in in_parts(both, lambda row: len(row[1]), BATCH_BYTES_MAX, BATCH_ROWS_MAX):
            yield self._of_wire(*zip(*part, strict=True))

    def of_chunk(self, chunk: bytes) -> Iterator[pa.RecordBatch]:
        """From an Arrow IPC stream with these columns' sources, as popmq.v1.Bulk sends it and a journal keeps it. What
        the journal of an earlier PopMQ lacks is NULL."""
        with pa.ipc.open_stream(chunk) as reader:
            there = set(reader.schema.names)
            for batch in reader:
                if batch.num_rows:
                    arrays = {
                        name: batch.column(name) if name in there else pa.nulls(batch.num_rows, KEPT[name].type)
                        for name in self.sources
                    }
                    yield record_batch(self._columns, self.arrow, arrays, batch.num_rows)

    def _of_wire(self, rows: Sequence[pb.Message], bodies: Sequence[bytes]) -> pa.RecordBatch:
        arrays = {
            name: pa.array(bodies if name == "body" else map(KEPT[name].read, rows), KEPT[name].type)
            for name in self.sources
        }
        return record_batch(self._columns, self.arrow, arrays, len(rows))


# ---- Options of several modes ----

# For modes that take messages, not offsets.
ALIASES: Final = {
    "subscribe": "topic",
    "subExpression": "filterExpression",
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "minPartitions": "numPartitions",
}


def filter_of(given: OptionReader) -> FilterExpression:
    """The filter of the options; by default all messages. Raises `ValueError` with the option."""
    kind = given.choice("filterType", "TAG", ("TAG", "SQL92", "SQL"))
    if kind != "TAG" and "filterExpression" not in given:
        raise given.refuse("filterType", "give it together with filterExpression")
    return FilterExpression(given.text("filterExpression") or "*", "TAG" if kind == "TAG" else "SQL")


def columns_from(given: OptionReader) -> tuple[Column, ...]:
    """All columns of the layout; raises `ValueError` with the option."""
    layout = given.choice("columns", LAYOUTS[0], LAYOUTS)
    include_headers = given.flag("includeHeaders", default=False)
    if include_headers and layout != "kafka":
        raise given.refuse("includeHeaders", "give it together with columns=kafka; else see the column properties")
    return columns_of(layout, include_headers=include_headers)


FILTER: Final = Option(("filterExpression", "filterType"), filter_of)
COLUMNS: Final = Option(("columns", "includeHeaders"), columns_from)
