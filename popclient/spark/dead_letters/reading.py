"""Reads the view `dead_letters` of a PopMQ database, SQLite or Postgres, in parallel and in pages.

The upper bound is fixed when a data frame is first planned, so that all its actions see the same rows. A page is one
short statement: neither a slow Spark nor a large table keeps the server's SQLite from checkpointing, or Postgres from
cleaning up. No filter is pushed down: Spark 4.3 applies a pushed filter to later queries of the same data frame too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from sqlalchemy import Connection, Select

from popclient.spark.dead_letters.choosing import Ids, chosen, letter_id
from popclient.spark.dead_letters.columns import Column, pick, sources_of, to_arrow
from popclient.spark.dead_letters.database import connected
from popclient.spark.dead_letters.options import Options

PAGE_ROWS_MAX = 4_096
PAGE_BYTES_MAX = 16 * 1024 * 1024
FETCH_ROWS = 64  # few, because a body may have 4 MiB


class IdRange(InputPartition):
    """Dead letters with first <= id <= last."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))
        self.first = first
        self.last = last


class DeadLetterReader(DataSourceReader):
    """Holds no connection: Spark pickles it and sends it to its workers."""

    def __init__(self, options: Options, schema: StructType) -> None:
        options.refuse_in_a_batch()
        self._options = options
        self._pages = DeadLetterPages(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Ranges of ids of equal width; what dies after this moment belongs to the next data frame."""
        with connected(self._options.url) as conn:
            ids = Ids(conn, self._options)
            first, last = ids.first(), ids.last()
        return [] if first is None or last is None else split(first, last, self._options.num_partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._pages.read(partition)


class DeadLetterPages:
    """The dead letters of a range of ids, page by page, in a batch and in a stream."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._columns = pick(schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, IdRange):  # Spark's stand-in where there is nothing to read
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with connected(self._options.url) as conn:
            for rows in _pages(conn, self._options, self._columns, partition):
                yield to_arrow(rows, self._columns, schema)


def split(first: int, last: int, parts: int) -> list[IdRange]:
    """At most `parts` ranges that cover first to last, none empty."""
    count = last - first + 1
    parts = min(parts, count)
    starts = [first + count * part // parts for part in range(parts + 1)]
    return [IdRange(start, following - 1) for start, following in pairwise(starts)]


def _pages(conn: Connection, options: Options, columns: Sequence[Column], ids: IdRange) -> Iterator[list[Any]]:
    sources = sources_of(columns)
    body = sources.index("body") if "body" in sources else None
    query = chosen(options, sources).where(letter_id <= ids.last).order_by(letter_id).limit(PAGE_ROWS_MAX)
    first = ids.first
    while rows := _page(conn, query.where(letter_id >= first), body):
        yield rows
        first = rows[-1][0] + 1


def _page(conn: Connection, query: Select[Any], body: int | None) -> list[Any]:
    """The next rows, as far as a page's bytes go; statement and transaction end before Spark sees them."""
    rows: list[Any] = []
    size = 0
    with conn.begin(), conn.execute(query, execution_options={"yield_per": FETCH_ROWS}) as result:
        for fetched in result.partitions():
            rows.extend(fetched)
            if body is not None:
                size += sum(len(row[body]) for row in fetched)
            if size >= PAGE_BYTES_MAX:
                break
    return rows
