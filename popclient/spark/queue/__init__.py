"""Mode `queue`: topics by offsets, in a batch or as a stream. Spark's checkpoint is where a stream stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


def schema(options: Mapping[str, str]) -> str:
    from popclient.spark.message_columns import schema_of
    from popclient.spark.queue.options import parse

    return schema_of(parse(options).columns)


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    from popclient.spark.queue.batch import QueueReader
    from popclient.spark.queue.options import parse

    return QueueReader(parse(options), schema)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    from popclient.spark.queue.options import parse
    from popclient.spark.queue.stream import QueueStream

    return QueueStream(parse(options), schema)
