"""A driver that sends FOLDER/rows to a topic, a file at a time, and dies on its way, once, where it is told to:

    python -m tests.spark.sink_driver ENDPOINT TOPIC FOLDER write|commit|nowhere

Its process must lead a group of its own: that group is killed, the JVM with it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popclient.spark import session
from popclient.spark.sink.writer import Stored, StreamWriter
from pyspark_popmq import DefaultSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType

ROWS_PER_FILE = 2_000
ROWS_BEFORE_DEATH = 1_500  # more than a writer hands over at once: the first of them are stored


def dying_at(point: str, folder: Path) -> Callable[[str], None]:
    """To be called wherever it could die."""
    driver, marker = os.getpgrp(), folder / f"died at {point}"

    def here(name: str) -> None:
        if name == point and not marker.exists():
            marker.touch()
            os.killpg(driver, signal.SIGKILL)

    return here


def dying(die: Callable[[str], None]) -> type[DefaultSource]:
    """The format as it is, with a death in it."""

    class DyingWriter(StreamWriter):
        def write(self, iterator: Iterator[pa.RecordBatch]) -> Stored:
            return super().write(until_death(iterator))

        def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
            super().commit(messages, batchId)
            die("commit")

    def until_death(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, ROWS_BEFORE_DEATH)
            die("write")
            yield batch.slice(ROWS_BEFORE_DEATH)

    class Dying(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            writer.__class__ = DyingWriter
            return writer

    return Dying


def main(endpoint: str, topic: str, folder: Path, point: str) -> None:
    spark = session("dying", memory="512m")
    spark.dataSource.register(dying(dying_at(point, folder)))
    rows = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).parquet(str(folder / "rows"))
    query = (
        rows.writeStream.format("dying")
        .options(endpoints=endpoint, topic=topic, checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
