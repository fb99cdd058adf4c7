"""Dead letters as a stream: what died since the last batch, in the order of ids.

An offset is `{"v": 1, "id": n}`: everything up to n has been read. A batch is the ids after its start up to its end, so
it can be read again from its two offsets alone, by whichever process comes after a crash. Ids become visible in their
order (docs/design/0017), so nothing ever appears behind an offset. A message that is sent back and dies again comes
again, with a new id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from sqlalchemy import Connection

from popclient.spark.checkpoint import VERSION, numbers_of
from popclient.spark.dead_letters.choosing import Ids
from popclient.spark.dead_letters.fetching import PAGE_ROWS_MAX
from popclient.spark.dead_letters.looking import KeptConnection
from popclient.spark.dead_letters.options import DeadLetterOptions
from popclient.spark.dead_letters.reading import ViewPages, split

# Without a trigger of its own Spark asks some ninety times a second whether there is something new.
LOOK_AGAIN_S: Final = (0.05, 1.0)  # the first pause, and the longest that it grows to


class DeadLetterStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Where offsets are asked for, a connection is kept while there is nothing new; workers open one per partition."""

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
        self._now = now
        self._sleep = sleep
        self._initial: int | None = None
        self._last_of_all: int | None = None  # where a query that reads what is available now ends
        self._looked: _LastLook | None = None

    def initialOffset(self) -> dict[str, int]:
        """Before the first dead letter that the options ask for. Spark asks twice, and must hear the same."""
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
        self._pause(after)
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = self._database.ask(lambda conn: self._end(conn, after, rows))
        if end is None:
            return start
        self._database.close()
        return _offset(end)

    def reportLatestOffset(self) -> dict[str, int] | None:
        """The newest dead letter that the last look saw, for the query's progress."""
        return None if self._looked is None else _offset(self._looked.newest)

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
        """Nothing to do: reading leaves no mark on a dead letter."""

    def stop(self) -> None:
        self._database.close()

    def _first(self, conn: Connection) -> int:
        """Where it begins. The newest is looked for before the first: what dies in between is then read."""
        ids = Ids(conn, self._options)
        newest, first = ids.newest(), ids.first()
        return newest if first is None else first - 1

    def _pause(self, after: int) -> None:
        """Where the last look from here has found nothing: longer each time."""
        pause = self._pause_after(after)
        if self._looked is not None and pause is not None and self._last_of_all is None:
            self._sleep(max(0.0, self._looked.at + pause - self._now()))

    def _pause_after(self, after: int) -> float | None:
        return self._looked.pause if self._looked is not None and self._looked.after == after else None

    def _end(self, conn: Connection, after: int, rows: int | None) -> int | None:
        """The id that the next batch ends with; what the last look passed over is not looked at again."""
        found = Ids(conn, self._options)
        newest = found.newest()
        if self._last_of_all is not None:
            newest = min(newest, self._last_of_all)
        passed = self._looked.passed if self._looked is not None and self._looked.after == after else after
        end = found.nth(passed, newest, rows) if rows is not None else None
        end = found.last(passed, newest) if end is None else end
        passed = max(passed, newest) if end is None else after
        pause = _next_pause(self._pause_after(after)) if end is None else None
        self._looked = _LastLook(after, passed, newest, self._now(), pause)
        return end


class _LastLook(NamedTuple):
    """A look for what came after an id: nothing up to `passed` was asked for, `newest` was the newest of all.

    pause: until the next look, if it has found nothing.
    """

    after: int
    passed: int
    newest: int
    at: float
    pause: float | None


def _next_pause(pause: float | None) -> float:
    first, longest = LOOK_AGAIN_S
    return first if pause is None else min(pause * 2, longest)


def _offset(number: int) -> dict[str, int]:
    return {"v": VERSION, "id": number}


def _id(offset: dict[str, Any]) -> int:
    """Raises `ValueError` for the offset of another source."""
    return numbers_of(offset, "dead letters", {"id": 12})["id"]
