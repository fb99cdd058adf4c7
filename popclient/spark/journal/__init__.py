"""Mode `journal`: a push consumer writes what it receives to files, acks it, and the stream reads the files.

Speaks the standard RPCs alone, so it works with any RocketMQ 5 proxy. A message is lost at no moment: it is acked when
the segment that holds it, and the folder's entry for it, are durable; a segment is removed when Spark will never ask
for it again. What the server hands out a second time, because it did not hear the ack, is dropped by its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from popclient.spark.journal.options import parse
from popclient.spark.message_columns import schema_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType


def schema(options: Mapping[str, str]) -> str:
    return schema_of(parse(options).columns)


def reader(options: Mapping[str, str], schema: StructType) -> NoReturn:
    raise ValueError(
        "option mode='journal' is for streams; use spark.readStream, with trigger(availableNow=True) for all that is"
        " there, or mode='queue'"
    )


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    from popclient.spark.journal.source import JournalStream

    return JournalStream(parse(options), schema)
