"""What Spark 4.2 brought for streams, and streams on Spark 4.0 and 4.1, which lack it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from popclient.spark.versions import has_admission_control

if TYPE_CHECKING:
    import pyarrow as pa

if TYPE_CHECKING or has_admission_control():
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:

    class ReadLimit:
        """How much a batch may read."""

    class ReadAllAvailable(ReadLimit):
        """All that is there."""

    class ReadMaxRows(ReadLimit):
        """At most `max_rows` rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:
        """Nothing: Spark then ends an availableNow query at the offset that it asks for first."""


__all__ = ["OlderStream", "ReadAllAvailable", "ReadLimit", "ReadMaxRows", "SupportsTriggerAvailableNow"]


class LimitedStream(Protocol):
    """A stream with admission control whose batches can be read again from their two offsets alone."""

    def initialOffset(self) -> dict[str, Any]: ...

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]: ...

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...

    def stop(self) -> None: ...


class OlderStream(DataSourceStreamReader):
    """The stream for Spark 4.0 and 4.1: a batch has all that is there.

    These ask for the latest offset without saying where the query is. But they have said it before, in this process:
    with `partitions`, which a restarted query calls with its last offset twice, or by asking for the initial offset.
    """

    def __init__(self, stream: LimitedStream) -> None:
        self._stream = stream
        self._position: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        return self._stream.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # as Spark 4.0 and 4.1 call it
        """The end of the next batch; the last one while there is nothing new."""
        start = self._position or self.initialOffset()
        self._position = self._stream.latestOffset(start, ReadAllAvailable())
        return self._position

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._position = end
        return self._stream.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._stream.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the stream sees in `latestOffset` what Spark has committed."""

    def stop(self) -> None:
        self._stream.stop()
