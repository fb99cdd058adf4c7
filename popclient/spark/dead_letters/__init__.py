"""Dead letters, straight from a PopMQ database: in a batch, or as a stream; and the record of what was sent back.

The option `view` names what is read: `dead_letters`, or `lineage`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from popclient.spark.dead_letters.columns import view_of
from popclient.spark.dead_letters.options import parse
from popclient.spark.dead_letters.reading import ViewReader
from popclient.spark.dead_letters.streaming import DeadLetterStream


def schema(options: Mapping[str, str]) -> str:
    chosen = parse(options)
    return view_of(chosen.view, chosen.properties_as).schema


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    return ViewReader(parse(options), schema)


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    return DeadLetterStream(parse(options), schema)
