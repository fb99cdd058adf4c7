"""The columns of a row that is sent, and the message it becomes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from popclient.message import Message
from popclient.spark.sink.ids import MessageIds, Part

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# Name, and the types it may have.
COLUMNS: Final = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tag": ("string",),
    "keys": ("array<string>",),
    "message_group": ("string",),
    "delivery_timestamp": ("timestamp",),
    "priority": ("int", "smallint", "tinyint"),
    "properties": ("map<string,string>",),
    "message_id": ("string",),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def check(schema: StructType, topic: str | None) -> None:
    """Raises `ValueError` for a column there is not, for one of a wrong type, and without a body or a topic."""
    names = set()
    for field in schema.fields:
        name, kind = field.name.lower(), field.dataType.simpleString()
        allowed = COLUMNS.get(name)
        if allowed is None:
            raise ValueError(f"column {field.name!r} is unknown; a row that is sent has {', '.join(COLUMNS)}; drop it")
        if name in names:
            raise ValueError(f"column {field.name!r} is there twice; drop one of them")
        if kind not in allowed:
            raise ValueError(f"column {field.name!r} is {kind}, allowed: {' or '.join(allowed)}; cast it")
        names.add(name)
    if "body" not in names:
        raise ValueError("column 'body' is missing: what the message says, binary or string")
    if topic is None and "topic" not in names:
        raise ValueError("there is no topic to send to; give the option topic, or a column 'topic'")


class Row(NamedTuple):
    """A message and its place, counted from 0, in its partition."""

    number: int
    message: Message


class Rows:
    """Makes messages of one partition's Arrow batches. topic: of the rows that name none."""

    def __init__(self, topic: str | None, part: Part) -> None:
        self._topic = topic
        self._part = part
        self._ids = MessageIds(part)
        self._count = 0

    def of(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """The rows of a batch; raises `ValueError` naming the first that is no message."""
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
        fields: dict[str, Any] = {
            "tag": row.get("tag"),
            "keys": tuple(keys),
            "properties": dict(sorted(row.get("properties") or ())),
            "message_group": row.get("message_group"),
            "delivery_timestamp": _time(row.get("delivery_timestamp")),
            "priority": row.get("priority"),
        }
        content = body.encode() if isinstance(body, str) else body
        message_id = row.get("message_id") or self._ids.of(content, json.dumps([topic, *fields.values()], default=str))
        return Message(topic, content, message_id=message_id, **fields)


def _values(column: pa.Array) -> list[Any]:
    """Timestamps as microseconds: Spark's go beyond those that Python has."""
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
