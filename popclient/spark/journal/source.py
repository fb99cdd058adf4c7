"""The stream of a journal. An offset is `{"v": 1, "seq": n}`: the segments up to n."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from popclient.spark.checkpoint import VERSION, numbers_of
from popclient.spark.journal import files
from popclient.spark.journal.files import Segment
from popclient.spark.journal.folder import SEGMENT_MESSAGES, Journal, JournalFailed
from popclient.spark.journal.options import JournalOptions
from popclient.spark.journal.receiving import JournalWriter
from popclient.spark.message_columns import MessageColumns
from popclient.spark.streams import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

# Seconds that a trigger waits for a message; without it Spark asks about ninety times a second.
WAIT_S: Final = 0.5


class Segments(InputPartition):
    """Segments by their paths, in their order."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        super().__init__(paths)
        self.paths = paths


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Opens nothing before its first method: Spark makes another instance for the workers, by pickling."""

    def __init__(self, options: JournalOptions, schema: StructType) -> None:
        self._options = options
        self._columns = MessageColumns(schema, options.columns)
        self._journal: Journal | None = None
        self._writer: JournalWriter | None = None
        self._until_ms: int | None = None
        self._target: int | None = None
        self._planned = 0

    # ---- Offsets ----

    def initialOffset(self) -> dict[str, Any]:
        """Before the oldest segment: a query with a new checkpoint first reads what an earlier query has left."""
        return offset_of(self._opened().first - 1)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        self._until_ms = time.time_ns() // 1_000_000

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; Spark has committed everything up to `start`. Raises JournalFailed for the journal
        of another checkpoint, and for one that cannot be written."""
        seq = seq_of(start)
        journal = self._opened()
        journal.require(seq)
        if self._until_ms is None:
            self._receive(seq)
            journal.wait_beyond(seq, WAIT_S)
        elif self._target is None:
            self._wait_until_quiet_beyond(seq)
        if journal.failure is not None:
            raise journal.failure
        last = journal.last if self._target is None else min(self._target, journal.last)
        self._planned = _end_within(journal.between(seq, last), seq, limit)
        return offset_of(self._planned)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The journal's end, its group, and `lag`: the number of messages beyond the planned batch."""
        journal = self._opened()
        lag = journal.messages_after(max(self._planned, journal.first - 1))
        return {**offset_of(journal.last), "group": self._options.group, "lag": lag}

    def commit(self, end: dict[str, Any]) -> None:
        """Removes the batch's segments: Spark will not read them again."""
        self._opened().remove(seq_of(end))

    def stop(self) -> None:
        """Spark calls it only when the driver ends; gives back messages that are not acked."""
        if self._writer is not None:
            self._writer.close()

    # ---- Reading ----

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._planned = max(self._planned, seq_of(end))  # a repeated batch was planned by another process
        found = self._opened().between(seq_of(start), seq_of(end))
        paths = [str(each.path) for each in found]
        share = -(-len(paths) // self._options.num_partitions) or 1
        return [Segments(tuple(paths[first : first + share])) for first in range(0, len(paths), share)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Segments)
        for path in partition.paths:
            try:
                chunk = files.open_chunk(path)
            except FileNotFoundError:
                raise JournalFailed(
                    f"segment {path} is not on this machine; journalPath must be on storage of driver and workers"
                ) from None
            yield from self._columns.of_chunk(chunk)

    # ---- Receiving ----

    def _opened(self) -> Journal:
        if self._journal is None:
            segment_messages = min(SEGMENT_MESSAGES, self._options.max_messages)
            journal = Journal(self._options.path, self._options.dedupe_messages, segment_messages)
            journal.open()
            self._journal = journal
        return self._journal

    def _receive(self, committed: int) -> JournalWriter:
        if self._writer is None:
            self._writer = JournalWriter(self._options, self._opened())
            if self._until_ms is not None:
                self._writer.stop_after(self._until_ms)
        self._writer.tend(committed)
        return self._writer

    def _wait_until_quiet_beyond(self, seq: int) -> None:
        """Returns when there is a segment, or when there will be none: then the query ends at the journal's end."""
        receiving = self._receive(seq)
        while not receiving.is_quiet:
            if self._opened().wait_beyond(seq, 0.1):
                return
            receiving.tend(seq)
        receiving.close()
        self._target = self._opened().last


def offset_of(seq: int) -> dict[str, Any]:
    return {"v": VERSION, "seq": seq}


def seq_of(offset: dict[str, Any]) -> int:
    """Raises `ValueError` for the offset of another source."""
    return numbers_of(offset, "journals", {"seq": 12})["seq"]


def _end_within(found: Sequence[Segment], start: int, limit: ReadLimit) -> int:
    """The last segment within the limit, at least the first one; `start` if there is none."""
    most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
    end, messages = start, 0
    for each in found:
        messages += each.messages
        if most is not None and messages > most and end > start:
            break
        end = each.seq
    return end
