"""The stream of mode `lease`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from popclient.spark.checkpoint import next_pause
from popclient.spark.lease.backlog import AvailableNowEnd, LeaseBacklog
from popclient.spark.lease.holding import Lease, LeaseCalls, LeaseKeeper
from popclient.spark.lease.options import LeaseOptions
from popclient.spark.message_columns import MessageColumns
from popclient.spark.streams import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow


class Chunks(InputPartition):
    """Messages as Arrow IPC streams."""

    def __init__(self, chunks: tuple[bytes, ...]) -> None:
        super().__init__(None)
        self.chunks = chunks


class LeaseStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Calls no server before its first method: Spark makes another instance for the workers, by pickling."""

    def __init__(self, options: LeaseOptions, schema: StructType) -> None:
        self._options = options
        self._columns = MessageColumns(schema, options.columns)
        self._keeper: LeaseKeeper | None = None
        self._end: AvailableNowEnd | None = None
        self._backlog = LeaseBacklog(options)
        self._pause_s: float | None = None

    # ---- Offsets ----

    def initialOffset(self) -> dict[str, Any]:
        return Lease().offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = AvailableNowEnd(self._options)
        self._end.note()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Acks the batch that ends in `start`, which Spark has committed, and receives the next one.

        Raises LeaseLost with failOnLeaseLoss=true, LeaseTaken, and PopError.
        """
        done = Lease.of(start)
        holding = self._held()
        if holding.lease.seq == done.seq + 1:  # the second call for the same batch
            return holding.lease.offset()
        holding.settle(done)
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_messages
        found = holding.receive(done.seq + 1, most, new=self._may_receive())
        self._pause_if_idle(found)
        return found.offset() if found.messages else start

    def reportLatestOffset(self) -> dict[str, Any]:
        """How far behind the group is."""
        return self._backlog.facts()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The messages themselves; after a restart they are received again by the attempt ids of `end`."""
        if start == end:
            return []
        chunks = self._held().chunks(Lease.of(end))
        share = -(-len(chunks) // self._options.num_partitions) or 1
        return [Chunks(chunks[first : first + share]) for first in range(0, len(chunks), share)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Chunks)
        for chunk in partition.chunks:
            yield from self._columns.of_chunk(chunk)

    def stop(self) -> None:
        """Spark calls it only when the driver ends."""
        if self._keeper is not None:
            self._keeper.close()

    # ---- Whether to receive ----

    def _held(self) -> LeaseKeeper:
        if self._keeper is None:
            self._keeper = LeaseKeeper(self._options, LeaseCalls(self._options, self._columns.sources))
        return self._keeper

    def _may_receive(self) -> bool:
        return self._end is None or not self._end.is_passed()

    def _pause_if_idle(self, found: Lease) -> None:
        if found.messages:
            self._pause_s = None
        elif self._end is None:
            self._pause_s = next_pause(self._pause_s)
            time.sleep(self._pause_s)
