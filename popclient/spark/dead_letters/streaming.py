"""Dead letters as a stream, in the order of their ids.

An offset is `{"v": 1, "id": n}`: all dead letters up to n have been read. A batch has the ids after its start up to its
end, so any process can read it again from its two offsets. Ids become visible in their order (docs/design/0017), so no
dead letter appears behind an offset. A message that is redriven and dies again appears again, with a new id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from sqlalchemy import Connection

from popclient.spark.checkpoint import VERSION, IdlePauses, numbers_of
from popclient.spark.dead_letters.database import KeptConnection
from popclient.spark.dead_letters.fetching import PAGE_ROWS_MAX
from popclient.spark.dead_letters.options import DeadLetterOptions
from popclient.spark.dead_letters.queries import Ids, require_existing
from popclient.spark.dead_letters.reading import ViewPages, split
from popclient.spark.streams import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow


class DeadLetterStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver keeps a connection while it finds nothing new; workers open a connection for each partition."""

    def __init__(
        self,
        options: DeadLetterOptions,
        schema: StructType,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        options.refuse_in_a_stream()
        self._options = options
        self._pages = ViewPages(options, schema)
        self._database = KeptConnection(options.url)
        self._pauses = IdlePauses(now, sleep)
        self._initial: int | None = None
        self._last_of_all: int | None = None  # the end of an availableNow query
        self._last_scan: _LastScan | None = None

    def initialOffset(self) -> dict[str, int]:
        """Before the first dead letter that the options select. Spark asks twice and needs the same answer."""
        if self._initial is None:
            self._initial = self._database.ask(self._first)
        return _offset(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        self._last_of_all = self._database.ask(lambda conn: Ids(conn, self._options).newest())

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The end of the next batch; `start` itself while there is nothing new."""
        after = _id(start)
        if self._last_of_all is None:
            self._pauses.wait(after)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._database.ask(lambda conn: self._end(conn, after, rows))
        if end is None:
            return start
        self._database.close()
        return _offset(end)

    def reportLatestOffset(self) -> dict[str, Any]:
        """The newest dead letter of the last scan, for the query's progress, and whose dead letters they are."""
        if self._last_scan is None:
            newest = self._database.ask(lambda conn: Ids(conn, self._options).newest())
        else:
            newest = self._last_scan.newest
        return {**_offset(newest), "group": self._options.consumer_group, "topic": self._options.topic}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Ranges of ids of equal width, none narrower than a page; a first batch may be empty."""
        first, last = _id(start) + 1, _id(end)
        if first > last:
            return []
        pages = -(-(last - first + 1) // PAGE_ROWS_MAX)
        return split(first, last, min(self._options.num_partitions, pages))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._pages.read(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Does nothing: reading does not change a dead letter."""

    def stop(self) -> None:
        self._database.close()

    def _first(self, conn: Connection) -> int:
        """The initial offset. Asks for the newest id before the first one, so it skips none."""
        ids = Ids(conn, self._options)
        newest, first = ids.newest(), ids.first()
        if first is None:
            require_existing(conn, self._options)
        return newest if first is None else first - 1

    def _end(self, conn: Connection, after: int, rows: int | None) -> int | None:
        """The last id of the next batch; skips ids that the last scan has passed already."""
        found = Ids(conn, self._options)
        newest = found.newest()
        if self._last_of_all is not None:
            newest = min(newest, self._last_of_all)
        passed = self._last_scan.passed if self._last_scan is not None and self._last_scan.after == after else after
        end = found.nth(passed, newest, rows) if rows is not None else None
        end = found.last(passed, newest) if end is None else end
        passed = max(passed, newest) if end is None else after
        self._pauses.note(after, is_idle=end is None)
        self._last_scan = _LastScan(after, passed, newest)
        return end


class _LastScan(NamedTuple):
    """A scan for dead letters after an id. The options select none up to `passed`; `newest` was the newest of all."""

    after: int
    passed: int
    newest: int


def _offset(number: int) -> dict[str, int]:
    return {"v": VERSION, "id": number}


def _id(offset: dict[str, Any]) -> int:
    """Raises `ValueError` for the offset of another source."""
    return numbers_of(offset, "dead letters", {"id": 12})["id"]
