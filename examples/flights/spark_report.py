"""The dead letters in Spark, as a separate process: `python -m examples.flights.spark_report DATABASE_URL PARQUET`.

It starts Spark and says `ready`. At a line on its input it reads the dead letters, sorts them into classes, writes them
as Parquet and answers with one JSON document; at a second line, the server's endpoint, it repairs the cancelled
flights, sends them back and answers with another. Where Spark cannot start, the first document says why and how to get
it.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from examples.flights.groups import ARRIVALS
from examples.spark_dead_letters import CLASSES, REPAIRED
from popclient.spark import JavaMissing, dlq, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLAN = "cancelled"


def main(database_url: str, parquet: str) -> None:
    try:
        spark = session("popmq demo")
    except (JavaMissing, ModuleNotFoundError) as missing:
        print(json.dumps({"missing": str(missing)}), flush=True)
        return
    try:
        dead = dlq.classify(dlq.read(spark, database_url, consumerGroup=ARRIVALS), CLASSES)
        print("ready", flush=True)
        if sys.stdin.readline():
            print(json.dumps(report(spark, dead, parquet)), flush=True)
        if endpoint := sys.stdin.readline().strip():
            print(json.dumps(send_back(dead, endpoint)), flush=True)
    finally:
        spark.stop()


def report(spark: SparkSession, dead: DataFrame, parquet: str) -> dict[str, Any]:
    """Cancellations as [carrier, origin, count], and how many rows the Parquet files hold when read back."""
    dead.write.mode("overwrite").partitionBy(dlq.CLASS).parquet(parquet)
    cancelled = dead.groupBy("tag", dead.properties["origin"]).count()
    return {"counts": [list(row) for row in cancelled.collect()], "written": spark.read.parquet(parquet).count()}


def send_back(dead: DataFrame, endpoint: str) -> dict[str, Any]:
    """The number of messages per class, and how many were redriven."""
    repaired = dlq.repair(dead.where("class = 'cancelled'"), body=REPAIRED)
    classes = {row[dlq.CLASS]: row.messages for row in dlq.counts(dead).collect()}
    return {"classes": classes, "redriven": dlq.redrive(repaired, endpoint, group=ARRIVALS, plan_id=PLAN).redriven}


if __name__ == "__main__":
    main(*sys.argv[1:])
