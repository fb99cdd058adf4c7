"""Spark writes flights, then reads them in three modes, into Parquet and into a table, each flight once.

    python -m examples.spark_modes [ENDPOINTS [FOLDER [MODE ...]]]

Start a broker first: popmq serve. Needs pip install '.[spark,demo]' and Java 17 or newer. Run it again, or kill it
and run it again: nothing is written, read or stored twice. With the mode journal alone it works with any RocketMQ 5
server; that stores the flights again when it is run again.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights.data import flights
from popclient.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

TOPIC = "spark-flights"
FLIGHTS = 1_000
MODES = ("queue", "lease", "journal")


def main(endpoints: str, folder: Path, modes: Sequence[str] = MODES) -> None:
    spark = session("three modes")
    write(spark, endpoints)
    for mode in modes:
        rows = read(spark, endpoints, folder, mode, "files")
        run(rows.writeStream.format("parquet").option("path", str(folder / mode)), folder, f"{mode}-files")
        rows = read(spark, endpoints, folder, mode, "table")
        run(rows.writeStream.foreachBatch(partial(into_table, folder / "flights.db", mode)), folder, f"{mode}-table")
        in_files = spark.read.parquet(str(folder / mode)).count()
        print(f"{mode}: {in_files:,} flights in Parquet, {in_table(folder / 'flights.db', mode):,} in the table")
    spark.stop()


def write(spark: SparkSession, endpoints: str) -> None:
    """With the id of this write the flights are stored once, however often it runs."""
    rows = [(json.dumps(row), row["carrier"]) for row in islice(flights(whole_year=False), FLIGHTS)]
    made = spark.createDataFrame(rows, "body string, tag string")
    made.write.format("popmq").mode("append").options(endpoints=endpoints, topic=TOPIC, writeId="storm").save()


def read(spark: SparkSession, endpoints: str, folder: Path, mode: str, purpose: str) -> DataFrame:
    """A stream of the topic for a separate group, with the options that each mode needs."""
    needs: dict[str, dict[str, str | int]] = {
        "queue": {"maxOffsetsPerTrigger": 500},
        "lease": {"maxMessagesPerTrigger": 500, "leaseOwner": purpose},
        "journal": {"journalPath": str(folder / f"{purpose}-journal")},
    }
    options = {"endpoints": endpoints, "topic": TOPIC, "consumerGroup": f"{mode}-{purpose}", "mode": mode}
    return spark.readStream.format("popmq").options(**options, **needs[mode]).load()


def run(writer: DataStreamWriter, folder: Path, name: str) -> None:
    """Run until all messages that existed at the start are written."""
    checkpoint = str(folder / "checkpoints" / name)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def into_table(file: Path, mode: str, rows: DataFrame, batch: int) -> None:
    """Store rows, query id and batch number in one transaction, so that a batch that Spark repeats is stored once.

    The id comes from the checkpoint: with a new checkpoint a query starts again with batch 0, which is a new batch.
    """
    query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    values = [(mode, row.message_id, row.tag) for row in rows.select("message_id", "tag").collect()]
    with closing(sqlite3.connect(file)) as table, table:
        table.execute("CREATE TABLE IF NOT EXISTS batch (query TEXT, number INTEGER, PRIMARY KEY (query, number))")
        table.execute("CREATE TABLE IF NOT EXISTS flight (mode TEXT, message_id TEXT, carrier TEXT)")
        if table.execute("INSERT OR IGNORE INTO batch VALUES (?, ?)", (query, batch)).rowcount:
            table.executemany("INSERT INTO flight VALUES (?, ?, ?)", values)


def in_table(file: Path, mode: str) -> int:
    with closing(sqlite3.connect(file)) as table:
        count: int = table.execute("SELECT count(*) FROM flight WHERE mode = ?", (mode,)).fetchone()[0]
    return count


if __name__ == "__main__":
    given = [*sys.argv[1:], *("127.0.0.1:8081", "spark-out")[len(sys.argv) - 1 :]]
    main(given[0], Path(given[1]).absolute(), given[2:] or MODES)
