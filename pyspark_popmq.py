"""Makes `spark.read.format("popmq")` known to Spark, which looks for modules of this name by itself.

Every Spark session on this machine imports it at its first look-up of a format, so it imports the rest only when used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The dead letters of a PopMQ database, in a batch.

    Options: url (of the database; needed), namespace, consumerGroup, topic, startingTimestamp, endingTimestamp (when it
    died; epoch milliseconds or ISO 8601 with a zone, the end excluded), numPartitions (4).
    Raises `ValueError`, naming the option, its value and what is allowed.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        from popclient.spark.dead_letters.options import parse

        self._chosen = parse(options)

    @classmethod
    def name(cls) -> str:
        return "popmq"

    def schema(self) -> str:
        from popclient.spark.dead_letters.columns import SCHEMA

        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from popclient.spark.dead_letters.reading import DeadLetterReader

        return DeadLetterReader(self._chosen, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from popclient.spark.dead_letters.streaming import DeadLetterStream

        return DeadLetterStream(self._chosen, schema)
