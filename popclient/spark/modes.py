"""The ways to read messages and dead letters with `spark.read` and `spark.readStream`.

The modules of a mode are imported at their first use: a worker that reads does not need those of the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from popclient.spark.cluster.sending import guarded
from popclient.spark.versions import has_admission_control, needs_newer

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType


class Mode(NamedTuple):
    """One way to read. Its methods raise `ValueError` with the option and what is allowed.

    name: of the package popclient.spark.<name>, whose module `options` has `parse`. batch, stream: its readers, as
    module.Class; "" if it has none for batches. limit: the option that limits a batch of a stream; "" if the stream
    cannot do without limits, and so needs admission control.
    """

    name: str
    batch: str
    stream: str
    limit: str = ""

    def schema(self, options: Mapping[str, str]) -> str:
        """All columns, as Spark's DDL."""
        ddl: str = self._options(options).schema
        return ddl

    def reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceReader:
        if not self.batch:
            raise ValueError(
                f"option mode='{self.name}' is for streams; use spark.readStream, with trigger(availableNow=True) to"
                " read all that is stored, or mode='queue'"
            )
        made: DataSourceReader = self._part(self.batch)(self._options(options), schema)
        return guarded(made)

    def stream_reader(self, options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
        made: Any = self._part(self.stream)(self._options(options), schema)
        return guarded(made if has_admission_control() else self._older(made))

    def _older(self, stream: Any) -> DataSourceStreamReader:
        from popclient.spark.streams import OlderStream, ReadMaxRows

        limit = stream.getDefaultReadLimit()
        if isinstance(limit, ReadMaxRows):
            raise needs_newer(self.limit, limit.max_rows, "leave it out: a batch then has all that is there")
        return OlderStream(stream)

    def _options(self, options: Mapping[str, str]) -> Any:
        if not self.limit and not has_admission_control():
            raise needs_newer("mode", self.name, "use mode='queue', or a newer Spark")
        return self._part("options.parse")(options)

    def _part(self, path: str) -> Any:
        module, _, name = path.partition(".")
        return getattr(import_module(f"popclient.spark.{self.name}.{module}"), name)


# By the option `mode`.
MODES: Final = {
    "queue": Mode("queue", "source.QueueReader", "source.QueueStream", "maxOffsetsPerTrigger"),
    "lease": Mode("lease", "", "source.LeaseStream"),
    "journal": Mode("journal", "", "source.JournalStream"),
}
DEAD_LETTERS: Final = Mode("dead_letters", "reading.ViewReader", "streaming.DeadLetterStream", "maxRowsPerTrigger")
