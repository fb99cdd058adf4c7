"""Makes `format("popmq")` known to Spark, which looks for modules of this name by itself.

Every Spark session on this machine imports it at its first look-up of a format, so it imports the rest only when used.
What is read follows from the options: `url` reads the dead letters of a database; `endpoints` reads topics from a
server, in the mode that `mode` names. What is written is sent to the server at `endpoints`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
    from pyspark.sql.types import StructType

    from popclient.spark.modes import Mode


class DefaultSource(DataSource):
    """PopMQ's messages and dead letters, in batches and streams; a sink for messages. See docs/spark-options.md."""

    @classmethod
    def name(cls) -> str:
        return "popmq"

    def schema(self) -> str:
        return self._mode().schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._mode().reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self._mode().stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        _refuse_other_spark()
        from popclient.spark.cluster.sending import guarded
        from popclient.spark.sink.writer import writer

        return guarded(writer(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        _refuse_other_spark()
        from popclient.spark.cluster.sending import guarded
        from popclient.spark.sink.writer import stream_writer

        return guarded(stream_writer(self.options, schema, overwrite=overwrite))

    def _mode(self) -> Mode:
        """The way to read that the options ask for."""
        _refuse_other_spark()
        from popclient.spark.modes import DEAD_LETTERS, MODES
        from popclient.spark.options import OptionReader

        given = OptionReader(self.options)
        if "url" not in given and "endpoints" not in given:
            given.refuse_near("endpoints", "url")
        if "url" not in given and ("topic" in given or "subscribe" in given or "mode" in given):
            given.needed("endpoints", "the server to read topics from, host:port; or url, a database, for dead letters")
        if "url" not in given and "endpoints" not in given:
            raise given.refuse("url", "give the database to read dead letters from, or endpoints, a server's host:port")
        if "url" in given and "endpoints" in given:
            raise given.refuse("endpoints", "it reads topics, and url reads dead letters: give one of them")
        return DEAD_LETTERS if "url" in given else MODES[given.choice("mode", "queue", MODES)]


def _refuse_other_spark() -> None:
    from popclient.spark.versions import refuse_other_spark

    refuse_other_spark()
