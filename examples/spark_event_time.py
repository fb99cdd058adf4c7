"""Departures per carrier and ten seconds, by the time at which each was stored: aggregation with event time.

    python -m examples.spark_event_time [ENDPOINTS [FOLDER]]

Start a broker first: popmq serve. Needs pip install '.[spark,demo]' and Java 17 or newer.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from examples.flights.data import flights
from popclient import Message, Producer
from popclient.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TOPIC = "departures"
FLIGHTS = 1_000


def main(endpoints: str, folder: Path) -> None:
    from pyspark.sql.functions import window

    send(endpoints)
    spark = session("event time")
    departures = (
        spark.readStream.format("popmq")
        .options(endpoints=endpoints, topic=TOPIC, consumerGroup="departures-per-carrier", maxOffsetsPerTrigger=500)
        .load()
    )
    # The time at which a message was stored never changes and never goes back within a queue: a good event time. A row
    # more than a minute behind the newest is late, and Spark may forget the windows before that.
    counts = (
        departures.withWatermark("store_timestamp", "1 minute")
        .groupBy(window("store_timestamp", "10 seconds"), "tag")
        .count()
        .selectExpr("CAST(window.start AS STRING) AS start", "tag", "count")
    )
    query = (
        counts.writeStream.outputMode("update")
        .foreachBatch(partial(into_table, folder / "departures.db"))
        .option("checkpointLocation", str(folder / "departures-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
    show(folder / "departures.db")


def send(endpoints: str) -> None:
    with Producer(endpoints, TOPIC) as producer:
        rows = islice(flights(whole_year=False), FLIGHTS)
        producer.send_many(Message(TOPIC, json.dumps(row), tag=row["carrier"]) for row in rows).raise_for_failures()


def into_table(file: Path, counts: DataFrame, _batch: int) -> None:
    """A window's newest count replaces the one before it, so the table is right if Spark repeats a batch."""
    values = [tuple(row) for row in counts.collect()]
    with closing(sqlite3.connect(file)) as table, table:
        table.execute("CREATE TABLE IF NOT EXISTS departure (start, carrier, flights, PRIMARY KEY (start, carrier))")
        table.executemany("INSERT OR REPLACE INTO departure VALUES (?, ?, ?)", values)


def show(file: Path) -> None:
    with closing(sqlite3.connect(file)) as table:
        per_carrier = table.execute(
            "SELECT carrier, sum(flights) FROM departure GROUP BY 1 ORDER BY 2 DESC, 1"
        ).fetchall()
    for carrier, count in per_carrier[:3]:
        print(f"{carrier}: {count:,}")
    print(f"{len(per_carrier)} carriers: {sum(count for _, count in per_carrier):,}")


if __name__ == "__main__":
    given = [*sys.argv[1:], *("127.0.0.1:8081", "spark-out")[len(sys.argv) - 1 :]]
    main(given[0], Path(given[1]).absolute())
