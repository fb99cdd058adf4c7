"""The dead letters in Spark: `python -m examples.flights.spark_report DATABASE_URL PARQUET`, a process of its own.

It starts Spark and says `ready`, waits for a line on its input, reads the dead letters, writes them as Parquet and
answers with one JSON document. Where Spark cannot start, the document says why and how to get it.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from examples.flights.groups import ARRIVALS
from popclient.spark import JavaMissing, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def main(database_url: str, parquet: str) -> None:
    try:
        spark = session("popmq demo")
    except (JavaMissing, ModuleNotFoundError) as missing:
        print(json.dumps({"missing": str(missing)}), flush=True)
        return
    try:
        dead = spark.read.format("popmq").option("url", database_url).option("consumerGroup", ARRIVALS).load()
        print("ready", flush=True)
        if sys.stdin.readline():
            print(json.dumps(report(spark, dead, parquet)), flush=True)
    finally:
        spark.stop()


def report(spark: SparkSession, dead: DataFrame, parquet: str) -> dict[str, Any]:
    """Cancellations as [carrier, origin, count], and how many rows the Parquet files hold when read back."""
    dead.write.mode("overwrite").parquet(parquet)
    cancelled = dead.groupBy("tag", dead.properties["origin"]).count()
    return {"counts": [list(row) for row in cancelled.collect()], "written": spark.read.parquet(parquet).count()}


if __name__ == "__main__":
    main(*sys.argv[1:])
