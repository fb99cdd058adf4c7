"""What a writer can be told: `df.write.format("popmq").option(…)`, and `df.writeStream` likewise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from popclient.config import ClientConfig
from popclient.spark.options import OptionReader, OptionTable, text
from popclient.spark.server import SERVER

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

TABLE: Final = OptionTable(
    {"server": SERVER, "topic": text("topic"), "write_id": text("writeId")},
    elsewhere=(),
    of_spark=("checkpointLocation", "queryName"),
)


class SinkOptions(NamedTuple):
    """Where to send. topic: of the rows that name none. write_id: names a write, so that it can be repeated."""

    server: ClientConfig
    topic: str | None
    write_id: str | None


def writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceArrowWriter:
    """Of `df.write`. Raises `ValueError` naming the option or the column, its value and what is allowed."""
    from popclient.spark.sink.writer import Writer

    return Writer(_parse(options, overwrite), schema)


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> DataSourceStreamArrowWriter:
    """Of `df.writeStream`. Raises as `writer` does."""
    from popclient.spark.sink.writer import StreamWriter

    given = OptionReader(options)
    if "writeId" in given:
        raise given.refuse("writeId", "it names a batch write; what a query sends is named by its checkpoint: drop it")
    return StreamWriter(_parse(options, overwrite), schema)


def _parse(options: Mapping[str, str], overwrite: bool) -> SinkOptions:
    if overwrite:
        raise ValueError('a topic is only ever appended to; say mode("append"), or outputMode("append") of a query')
    given = OptionReader(options)
    if "url" in given:
        raise given.refuse("url", "a database is read, not written: give endpoints, the server's host:port")
    return SinkOptions(**TABLE.read(options))
