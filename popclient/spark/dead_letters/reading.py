"""Reads a view of a PopMQ database, SQLite or Postgres, in parallel and in pages.

The upper bound is fixed when Spark first plans a data frame, so all its actions see the same rows. A page is one short
statement, so a slow job or a large table does not stop SQLite from checkpointing, or Postgres from vacuuming. No filter
is pushed down: Spark would apply it to later queries of the same data frame too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from popclient.spark.bodies import unpacked
from popclient.spark.columns import pick, record_batch
from popclient.spark.dead_letters.columns import BODY, BODY_ENCODING, PROPERTIES, Page, ViewSource, view_of
from popclient.spark.dead_letters.database import PATIENCE_S, DatabaseGone, Patience, connected
from popclient.spark.dead_letters.fetching import pages
from popclient.spark.dead_letters.options import DeadLetterOptions
from popclient.spark.dead_letters.queries import Ids, require_existing
from popclient.spark.versions import arrow_schema


class IdRange(InputPartition):
    """Rows with first <= key <= last."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))
        self.first = first
        self.last = last


class ViewReader(DataSourceReader):
    """Holds no connection: Spark pickles it and sends it to its workers."""

    def __init__(self, options: DeadLetterOptions, schema: StructType) -> None:
        options.refuse_in_a_batch()
        self._options = options
        self._pages = ViewPages(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of ids of equal width; later dead letters belong to the next data frame."""
        with connected(self._options.url) as conn:
            ids = Ids(conn, self._options)
            first, last = ids.first(), ids.last()
            if first is None:
                require_existing(conn, self._options)
        return [] if first is None or last is None else split(first, last, self._options.num_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._pages.read(partition)


class ViewPages:
    """The rows of a range of ids, page by page, in a batch and in a stream."""

    def __init__(self, options: DeadLetterOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._view = view_of(options.view, options.properties_as)
        self._columns = pick(schema, self._view.columns, self._view.name, {PROPERTIES: "choose with propertiesAs"})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, IdRange):  # Spark's placeholder if there are no partitions
            return
        schema = arrow_schema(self._schema)
        sources = self._view.sources_of(self._columns)
        for page in self._pages(sources, partition):
            for part in _unpacked(page):
                yield record_batch(self._columns, schema, part, len(next(iter(part.values()))))

    def _pages(self, sources: Sequence[ViewSource], ids: IdRange) -> Iterator[Page]:
        """A failover between two pages does not end the read: the next page comes from the new primary.

        A failover before the first page does not end it either, because the driver has read from the database before.
        Spark may try a task only once.
        """
        first = ids.first
        patience = Patience(PATIENCE_S)
        while True:
            try:
                with connected(self._options.url) as conn:
                    for page in pages(conn, self._options, sources, first, ids.last):
                        first = page[sources[0]][-1].as_py() + 1
                        patience.succeeded()
                        yield page
                return
            except DatabaseGone:
                if not patience.wait():
                    raise


def _unpacked(page: Page) -> Iterator[Page]:
    """A page with its bodies decompressed; in parts if they are larger than a batch may be."""
    if BODY not in page:
        yield page
        return
    begun = 0
    for bodies in unpacked(page[BODY], page[BODY_ENCODING]):
        yield {source: array.slice(begun, len(bodies)) for source, array in page.items()} | {BODY: bodies}
        begun += len(bodies)


def split(first: int, last: int, parts: int) -> list[IdRange]:
    """At most `parts` ranges that cover first to last, none empty."""
    count = last - first + 1
    parts = min(parts, count)
    starts = [first + count * part // parts for part in range(parts + 1)]
    return [IdRange(start, following - 1) for start, following in pairwise(starts)]
