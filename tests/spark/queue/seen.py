"""A topic as mode `queue` sees it, called as Spark calls it; no Spark is started."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from popclient import Message, Producer
from popclient.spark.columns import schema_of
from popclient.spark.queue.options import parse
from popclient.spark.queue.source import QueueReader, QueueStream
from popclient.spark.streams import OlderStream, ReadAllAvailable

QUEUES = 4
COUNT = 1_000
ALL = ReadAllAvailable()


class Seen:
    """What a test's source says and reads."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def send(self, count: int = COUNT, topic: str = "flights", first: int = 0) -> None:
        with Producer(self.endpoint) as producer:
            for start in range(first, first + count, 50):  # requests of a few
                some = range(start, min(start + 50, first + count))
                producer.send_many(flight(topic, number) for number in some).raise_for_failures()

    def options(self, **more: Any) -> dict[str, str]:
        given = {"endpoints": self.endpoint, "consumerGroup": "reports", "topic": "flights", **more}
        return {name: str(value) for name, value in given.items() if value is not None}

    def schema(self, wanted: str = "", **more: Any) -> StructType:
        return struct_of(wanted or schema_of(parse(self.options(**more)).columns))

    def batch(self, wanted: str = "", **more: Any) -> QueueReader:
        return QueueReader(parse(self.options(**more)), self.schema(wanted, **more))

    def stream(self, **more: Any) -> QueueStream:
        clock = more.pop("clock", None) or Clock()
        options = parse(self.options(**more))
        return QueueStream(options, self.schema(**more), clock.now, clock.sleep)

    def rows(
        self, source: QueueReader | QueueStream | OlderStream, parts: Iterable[InputPartition]
    ) -> list[dict[str, Any]]:
        return [row for part in parts for batch in source.read(part) for row in batch.to_pylist()]

    def read(self, wanted: str = "", **more: Any) -> list[dict[str, Any]]:
        source = self.batch(wanted, **more)
        return self.rows(source, source.partitions())


_PAIR = StructType().add("key", StringType()).add("value", BinaryType())
_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "array<string>": ArrayType(StringType()),
    "int": IntegerType(),
    "bigint": LongType(),
    "binary": BinaryType(),
    "map<string,string>": MapType(StringType(), StringType()),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(_PAIR),
}


def struct_of(ddl: str) -> StructType:
    """Without Spark's own parser, which needs a JVM."""
    struct = StructType()
    for column in ddl.split(", "):
        name, kind = column.split(" ")
        struct.add(name, _TYPES[kind])
    return struct


class Clock:
    """A monotonic clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.at = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds


def flight(topic: str, number: int) -> Message:
    if number % 10 == 0:
        return Message(topic, f"flight {number}")
    properties = {"origin": ("JFK", "LGA")[number % 2], "distance": str(number)}
    return Message(
        topic, f"flight {number}", tag=("UA", "DL", "B6")[number % 3], keys=(f"{number}", "ü"), properties=properties
    )


def numbers(rows: Iterable[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"].decode().removeprefix("flight ")) for row in rows)


def next_offset(source: QueueStream, start: dict[str, Any], limit: Any = ALL) -> dict[str, Any]:
    return source.latestOffset(start, limit)


def of(offset: dict[str, Any]) -> int:
    return sum(offset["q"].values())
