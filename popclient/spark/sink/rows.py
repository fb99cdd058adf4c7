"""Checks the columns of rows that are sent, and makes messages and message ids of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from popclient.message import Message
from popclient.spark.bodies import BATCH_BYTES_MAX, in_parts
from popclient.spark.versions import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_QUERY_BYTES: Final = 3
_BATCH_BYTES: Final = 4
_DIGEST_BYTES: Final = 9
_ROWS_MAX: Final = 1_024  # of a batch that is made of rows


class Part(NamedTuple):
    """One partition of one batch.

    query: the query's id in its checkpoint, or the write's. batch_id: 0 for a write that is no stream's.
    """

    query: str
    batch_id: int
    partition: int


class MessageIds:
    """Makes the ids of a partition's rows from their content, so that a server which drops repeats stores each once.

        01  | query | batch | digest
        1 B | 3 B   | 4 B   | 9 B      big-endian, the shape of a version 1 id

    The digest is of query, batch, partition, the row's content, and the number of equal rows before it. It is not of
    the row's place: after a shuffle Spark promises no order, and the server would drop another row's message. A
    repetition must have the same partitions with the same rows. The batch is before the digest because an index takes
    growing ids much faster than random ones. Keeps a few dozen bytes for each row.
    """

    def __init__(self, part: Part) -> None:
        query = hashlib.blake2b(part.query.encode(), digest_size=_QUERY_BYTES).hexdigest()
        batch = part.batch_id % (1 << 8 * _BATCH_BYTES)
        self._head = f"01{query}{batch:0{2 * _BATCH_BYTES}x}".upper()
        self._part_hash = hashlib.blake2b(json.dumps(part).encode(), digest_size=_DIGEST_BYTES)
        self._like: Counter[bytes] = Counter()

    def of(self, body: bytes, others: str) -> str:
        """The id of the next row; `others`: its other columns, as text."""
        row = hashlib.blake2b(body, digest_size=16)
        row.update(b"%d " % len(body))
        row.update(others.encode())
        content = row.digest()
        before = self._like[content]
        self._like[content] = before + 1
        digest = self._part_hash.copy()
        digest.update(content)
        digest.update(b"%d" % before)
        return self._head + digest.hexdigest().upper()


# Columns and their allowed types.
COLUMNS: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "keys": ("array<string>",),
    "message_group": ("string",),
    "lite_topic": ("string",),
    "delivery_timestamp": ("timestamp",),
    "priority": ("int", "smallint", "tinyint"),
    "properties": ("map<string,string>",),
    "message_id": ("string",),
}
# How to make each, for errors; else a cast does it. The first beginning of the given type counts.
_WAYS: Final = {
    "body": (("struct", "to_json(body)"), ("map", "to_json(body)"), ("array", "to_json(body)"), ("", "string(body)")),
    "keys": (("array", "CAST(keys AS array<string>)"), ("", "array(string(keys))")),
    "delivery_timestamp": (
        ("bigint", "timestamp_millis(delivery_timestamp)"),
        ("int", "timestamp_seconds(delivery_timestamp)"),
        ("string", "to_timestamp(delivery_timestamp)"),
    ),
    "properties": (
        ("string", "from_json(properties, 'map<string,string>')"),
        ("struct", "from_json(to_json(properties), 'map<string,string>')"),
        ("array", "map_from_entries(properties)"),
    ),
}
# Columns of Spark's Kafka sink, and of messages that were read.
_NAMED_ELSEWHERE: Final = {
    "value": "body",
    "key": "keys",
    "headers": "properties",
    "timestamp": "delivery_timestamp",
    "tags": "tag",
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check(schema: StructType, topic: str | None) -> None:
    """Raises `ValueError` for an unknown column, a wrong type, or a missing body or topic."""
    names = set()
    for field in schema.fields:
        name, kind = field.name.lower(), field.dataType.simpleString()
        allowed = COLUMNS.get(name)
        if allowed is None:
            alike = _NAMED_ELSEWHERE.get(name) or next(iter(get_close_matches(name, COLUMNS, 1)), None)
            meant = "" if alike is None else f"did you mean {alike}? "
            way_out = f"{meant}a row that is sent has {', '.join(COLUMNS)}; rename it, or drop it"
            raise ValueError(f"column {field.name!r} is unknown; {way_out}")
        if name in names:
            raise ValueError(f"column {field.name!r} is there twice; drop one of them")
        if kind not in allowed:
            raise ValueError(f"column {field.name!r} is {kind}, allowed: {' or '.join(allowed)}; {_way(name, kind)}")
        names.add(name)
    if "body" not in names:
        raise ValueError("column 'body' is missing; it has the body of the message, binary or string")
    if topic is None and "topic" not in names:
        raise ValueError("there is no topic to send to; give the option topic, or a column 'topic'")


def _way(column: str, kind: str) -> str:
    """How to make the column's type from another one."""
    if kind == "void":
        return f"it is always NULL: drop it, or write CAST(NULL AS {COLUMNS[column][0]})"
    ways = (way for begin, way in _WAYS.get(column, ()) if kind.startswith(begin))
    return f"write {next(ways, f'CAST({column} AS {COLUMNS[column][0]})')} AS {column}"


class Row(NamedTuple):
    """A message and the number of its row in the partition, from 0."""

    number: int
    message: Message


class Rows:
    """Makes messages of one partition's Arrow batches. topic: for rows without a topic."""

    def __init__(self, topic: str | None, part: Part) -> None:
        self._topic = topic
        self._part = part
        self._ids = MessageIds(part)
        self._count = 0

    def of(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """The rows of a batch; raises `ValueError` for the first row that cannot be a message."""
        names = [name.lower() for name in batch.schema.names]
        for values in zip(*map(_values, batch.columns), strict=True):
            try:
                yield Row(self._count, self._message(dict(zip(names, values, strict=True))))
            except (TypeError, ValueError) as defect:
                raise ValueError(f"{self.name(self._count)} is no message: {defect}") from None
            self._count += 1

    def name(self, number: int) -> str:
        return f"row {number} of partition {self._part.partition}"

    def _message(self, row: dict[str, Any]) -> Message:
        body, topic = row["body"], row.get("topic") or self._topic
        if body is None:
            raise ValueError("its body is NULL; leave such rows out")
        if not topic:
            raise ValueError("its topic is NULL; fill the column, or give the option topic")
        keys = row.get("keys") or ()
        if None in keys:
            raise ValueError("one of its keys is NULL; take it out with array_compact")
        properties = dict(sorted(row.get("properties") or ()))
        for name, value in properties.items():
            if value is None:
                raise ValueError(
                    f"its property {name!r} is NULL; take it out with map_filter(properties, (k, v) -> v IS NOT NULL),"
                    " or fill it with transform_values"
                )
        fields: dict[str, Any] = {
            "tag": row.get("tag"),
            "keys": tuple(keys),
            "properties": properties,
            "message_group": row.get("message_group"),
            "delivery_timestamp": _time(row.get("delivery_timestamp")),
            "priority": row.get("priority"),
        }
        if row.get("lite_topic") is not None:
            # Only then, so that the ids of all other rows stay as they were before there were lite topics.
            fields["lite_topic"] = row["lite_topic"]
        content = body.encode() if isinstance(body, str) else body
        message_id = row.get("message_id") or self._ids.of(content, json.dumps([topic, *fields.values()], default=str))
        return Message(topic, content, message_id=message_id, **fields)


def in_arrow(rows: Iterable[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Batches of a limited size from Spark's rows, as Spark 4.2 and newer give them by themselves."""
    arrow, body = arrow_schema(schema), [name.lower() for name in schema.names].index("body")
    for part in in_parts(rows, lambda row: len(row[body] or b""), BATCH_BYTES_MAX, _ROWS_MAX):
        columns = zip(*part, strict=True)
        arrays = [pa.array(map(_of_row, column), field.type) for column, field in zip(columns, arrow, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _of_row(value: Any) -> Any:
    """A row has maps as dicts, and times without a zone, in that of the machine."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return list(value.items()) if isinstance(value, dict) else value


def _values(column: pa.Array) -> list[Any]:
    """Timestamps as microseconds, because Spark has times that Python's datetime has not."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def _time(micros: int | None) -> datetime | None:
    if micros is None:
        return None
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        raise ValueError(
            f"its delivery_timestamp, {micros} microseconds from 1970, is not within the years 1 to 9999; give a time"
            " that comes, or NULL"
        ) from None
