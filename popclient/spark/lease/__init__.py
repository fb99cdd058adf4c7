"""Mode `lease`: messages received under names that can be asked for again, and acked when Spark has committed them.

A batch is up to so many receives of popmq.v1.Bulk, each under an attempt id that follows from the option leaseOwner and
the batch's number. As long as the messages are held, whoever repeats a receive under its attempt id gets the same ones
and nothing new; so a batch that is replayed is the same batch. A thread keeps them held while it runs. They are acked
in `latestOffset(start)`: when Spark asks it, the batch that ends in `start` stands in its commit log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

from popclient.spark.lease.options import parse
from popclient.spark.message_columns import schema_of

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType


def schema(options: Mapping[str, str]) -> str:
    return schema_of(parse(options).columns)


def reader(options: Mapping[str, str], schema: StructType) -> NoReturn:
    raise ValueError(
        "option mode='lease' is for streams; use spark.readStream, with trigger(availableNow=True) for all that is"
        " there, or mode='queue'"
    )


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    from popclient.spark.lease.source import LeaseStream

    return LeaseStream(parse(options), schema)
