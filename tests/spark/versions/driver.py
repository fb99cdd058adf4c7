"""A driver that carries a topic into Parquet until it is killed, and dies while its second batch is read, once:

    python -m tests.spark.versions.driver ENDPOINT TOPIC FOLDER

Its process must lead a group of its own: that group is killed, the JVM with it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popclient.spark import session
from pyspark_popmq import DefaultSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType


class Dying(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamReader(self, schema: StructType) -> Any:  # noqa: N802
        reader = super().streamReader(schema)
        folder, driver = Path(os.environ["DYING_FOLDER"]), int(os.environ["DYING_GROUP"])

        class DyingStream(type(reader)):
            def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
                for batch in super().read(partition):
                    if (folder / "checkpoint" / "commits" / "0").exists() and not (folder / "died").exists():
                        (folder / "died").touch()
                        os.killpg(driver, signal.SIGKILL)
                    yield batch

        reader.__class__ = DyingStream
        return reader


def main(endpoint: str, topic: str, folder: Path) -> None:
    os.environ |= {"DYING_FOLDER": str(folder), "DYING_GROUP": str(os.getpgrp())}
    spark = session("dying", memory="512m")
    spark.dataSource.register(Dying)
    rows = spark.readStream.format("dying").options(endpoints=endpoint, topic=topic, consumerGroup="killed").load()
    writing = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writing.start(str(folder / "rows")).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
