"""Dead letters, straight from the view `dead_letters` of a PopMQ database: in a batch, or as a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


def schema(options: Mapping[str, str]) -> str:
    from popclient.spark.dead_letters.columns import SCHEMA
    from popclient.spark.dead_letters.options import parse

    parse(options)
    return SCHEMA


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    from popclient.spark.dead_letters.options import parse
    from popclient.spark.dead_letters.reading import DeadLetterReader

    return DeadLetterReader(parse(options), schema)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    from popclient.spark.dead_letters.options import parse
    from popclient.spark.dead_letters.streaming import DeadLetterStream

    return DeadLetterStream(parse(options), schema)
