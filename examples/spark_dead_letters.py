"""A nightly job for a group's dead letters: classify, archive as Parquet, repair, send back.

    python -m examples.spark_dead_letters [DATABASE_URL [ENDPOINTS [FOLDER]]]

It uses the flights of `make demo`: a cancelled flight has no arrival time, and its consumer fails without one. Needs
pip install '.[spark]' and Java 17 or newer. Run it every night: it continues behind the last dead letter it has read.
If it is killed, it continues where it was, and sends nothing back twice.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from popclient.spark import dlq, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP = "arrivals"
CLASSES = """
    CASE WHEN get_json_object(decode(body, 'UTF-8'), '$.dep_time') IS NULL THEN 'cancelled'
         WHEN get_json_object(decode(body, 'UTF-8'), '$.arr_time') IS NULL THEN 'lost on the way'
         ELSE reason END
"""
REPAIRED = """replace(decode(body, 'UTF-8'), '"arr_time": null', '"arr_time": "cancelled"')"""


def main(url: str, endpoints: str, folder: Path) -> None:
    spark = session("dead letters")
    dead = spark.readStream.format("popmq").options(url=url, consumerGroup=GROUP, maxRowsPerTrigger=100_000).load()
    night = (
        dead.writeStream.foreachBatch(partial(treat, endpoints, folder / "archive"))
        .option("checkpointLocation", str(folder / "dead-letters-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    night.awaitTermination()
    spark.read.parquet(str(folder / "archive")).groupBy("class").count().orderBy("class").show(truncate=False)
    dlq.lineage(spark, url, consumerGroup=GROUP).groupBy("plan_id", "change", "state").count().show(truncate=False)
    spark.stop()


def treat(endpoints: str, archive: Path, dead: DataFrame, batch: int) -> None:
    """A repeated batch writes the same files again, and its plan sends nothing twice."""
    classified = dlq.classify(dead, CLASSES).cache()
    classified.write.mode("overwrite").parquet(str(archive / f"batch={batch}"))
    repaired = dlq.repair(classified.where("class = 'cancelled'"), body=REPAIRED)
    done = dlq.redrive(repaired, endpoints, group=GROUP, plan_id=f"nightly-{batch}", rate=500)
    print(f"{done.plan_id}: {done.redriven} sent back, {done.repaired} of them repaired, {done.skipped} skipped")
    classified.unpersist()


if __name__ == "__main__":
    given = [*sys.argv[1:], *("sqlite:///popmq.db", "127.0.0.1:8081", "spark-out")[len(sys.argv) - 1 :]]
    main(given[0], given[1], Path(given[2]).absolute())
