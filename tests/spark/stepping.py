"""Spark's order of calls on a stream's reader, one batch at a time, without a Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from popclient.spark.message_columns import SOURCES

ALL_COLUMNS = from_arrow_schema(pa.schema([(name, source.type) for name, source in SOURCES.items()]))


class Stepping:
    """A query with its checkpoint: `planned` are the offsets of its batches, the last one may not be committed."""

    def __init__(self) -> None:
        self.planned: list[dict[str, Any]] = []
        self.committed = 0
        self.rows: list[dict[str, Any]] = []

    def start(self, reader: Any, *, available_now: bool = False) -> None:
        """A new process of the query."""
        self.reader = reader
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        if not self.planned:
            self.planned.append(_as_json(self.reader.initialOffset()))

    def run(self) -> None:
        """Batches until there is nothing more."""
        while self.batch():
            pass

    def batch(self) -> list[dict[str, Any]]:
        """The rows of the next batch, or of the one that was begun; none, where there is nothing."""
        if self.committed == len(self.planned) - 1:
            start = self.planned[-1]
            end = _as_json(self.reader.latestOffset(start, self.reader.getDefaultReadLimit()))
            if end == start:
                return []
            self.planned.append(end)
            self.reader.commit(start)
        rows = self.read_again()
        self.committed = len(self.planned) - 1
        self.rows += rows
        return rows

    def read_again(self) -> list[dict[str, Any]]:
        """The batch that was planned last."""
        partitions = self.reader.partitions(*self.planned[-2:])
        return [row for part in partitions for batch in self.reader.read(part) for row in batch.to_pylist()]

    @property
    def bodies(self) -> list[str]:
        return [row["body"].decode() for row in self.rows]


def _as_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from Spark's log."""
    read: dict[str, Any] = json.loads(json.dumps(offset))
    return read
