"""A batch of messages by offsets. Its bounds are fixed when a data frame is first planned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from popclient.spark.queue.offsets import QueueOffsets, ranges
from popclient.spark.queue.options import QueueReadOptions
from popclient.spark.queue.places import QueueEnds
from popclient.spark.queue.planning import partitioned
from popclient.spark.queue.reading import RangeReader, Ranges


class QueueReader(DataSourceReader):
    """Holds no connection: Spark pickles it and sends it to its workers. No group's progress changes."""

    def __init__(self, options: QueueReadOptions, schema: StructType) -> None:
        options.refuse_in_a_batch()
        self._options = options
        self._reader = RangeReader(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """What is stored at this moment, between the bounds; what comes later belongs to the next data frame."""
        places = QueueEnds(self._options)
        ends = places.ends(places.topics())
        starting, ending = places.at(self._options.starting, ends), places.at(self._options.ending, ends)
        found = ranges(QueueOffsets(starting), QueueOffsets(ending))
        return [Ranges(each) for each in partitioned(found, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)
