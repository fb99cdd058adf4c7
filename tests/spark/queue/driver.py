"""A driver that carries a topic into a table, and dies on its way, once, where it is told to:

    python -m tests.spark.queue.driver ENDPOINT TOPIC FOLDER read|sink|plan

Its process must lead a group of its own: that group is killed, the JVM with it. The table is FOLDER/table.db; a batch
is written in one transaction with a marker, so that it is in there once.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popclient.spark import session
from popclient.spark.queue.source import QueueStream
from pyspark_popmq import DefaultSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from popclient.spark.streams import ReadLimit

PER_BATCH = 400
Die = Callable[[str], None]


def dying_at(point: str, folder: Path) -> Die:
    """To be called wherever it could die. It is the second batch that meets its end: something is done by then."""
    driver, marker = os.getpgrp(), folder / f"died at {point}"

    def here(name: str) -> None:
        if name == point and not marker.exists() and rows_of(folder):
            marker.touch()
            os.killpg(driver, signal.SIGKILL)

    return here


def nowhere(_name: str) -> None:
    """For who lives on."""


def rows_of(folder: Path) -> list[tuple[int, str]]:
    """Batch and body of every row in the table."""
    if not (folder / "table.db").exists():
        return []
    with closing(sqlite3.connect(folder / "table.db", timeout=10)) as table:
        _make(table)
        return list(table.execute("SELECT batch, body FROM flight ORDER BY rowid"))


def _make(table: sqlite3.Connection) -> None:
    table.execute("CREATE TABLE IF NOT EXISTS flight (batch INTEGER, body TEXT)")
    table.execute("CREATE TABLE IF NOT EXISTS done (query TEXT, batch INTEGER, PRIMARY KEY (query, batch))")


def into_table(folder: Path, die: Die) -> Callable[[DataFrame, int], None]:
    def write(rows: DataFrame, batch: int) -> None:
        bodies = [(batch, bytes(row.body).decode()) for row in rows.select("body").collect()]
        with closing(sqlite3.connect(folder / "table.db", timeout=10)) as table:
            _make(table)
            with table:
                new = table.execute("INSERT OR IGNORE INTO done VALUES ('flights', ?)", (batch,)).rowcount
                if new:
                    table.executemany("INSERT INTO flight VALUES (?, ?)", bodies)
        if batch:
            die("sink")

    return write


def dying_in_read(die: Die) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            die("read")
            yield batch

    return rows


def dying_in_plan(die: Die) -> type[DefaultSource]:
    class Planning(QueueStream):
        def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
            end = super().latestOffset(start, limit)
            die("plan")
            return end

    class Dying(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "dying"

        def streamReader(self, schema: StructType) -> Any:  # noqa: N802
            reader = super().streamReader(schema)
            reader.__class__ = Planning
            return reader

    return Dying


def run(spark: SparkSession, endpoint: str, topic: str, folder: Path, die: Die = nowhere) -> None:
    """To the end of what is there; returns when that is in the table."""
    if die is not nowhere:
        spark.dataSource.register(dying_in_plan(die))
    options: dict[str, str | int] = {
        "endpoints": endpoint,
        "topic": topic,
        "consumerGroup": "table",
        "maxOffsetsPerTrigger": PER_BATCH,
    }
    flights = spark.readStream.format("popmq" if die is nowhere else "dying").options(**options).load()
    query = (
        flights.mapInArrow(dying_in_read(die), flights.schema)
        .writeStream.foreachBatch(into_table(folder, die))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def main(endpoint: str, topic: str, folder: Path, point: str) -> None:
    run(session("dying", memory="512m"), endpoint, topic, folder, dying_at(point, folder))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
