"""The nightly work on dead letters, as a process of its own:

    python -m tests.spark.redrive_driver DATABASE ENDPOINT FOLDER RATE

Reads what has died since the last run, archives what cannot be repaired, and sends the rest back, mended. The plan's
name is the batch's, so that a batch that is done again sends nothing twice. Its process must lead a group of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from popclient.spark import dlq, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "arrivals"
KIND = "CASE WHEN contains(decode(body, 'UTF-8'), 'NaN') THEN 'mendable' ELSE 'hopeless' END"
MENDED = "replace(decode(body, 'UTF-8'), 'NaN', 'null')"


def nightly(
    spark: SparkSession, database_url: str, endpoint: str, folder: Path, rate: float | None
) -> list[dlq.Redriven]:
    """One run over what there is; what it has sent back, batch by batch."""
    done: list[dlq.Redriven] = []

    def work(batch: DataFrame, batch_id: int) -> None:
        kinds = dlq.classify(batch, KIND)
        archived = kinds.where("class = 'hopeless'")
        archived.write.mode("overwrite").parquet(str(folder / "archive" / f"batch={batch_id}"))
        mended = dlq.repair(kinds.where("class = 'mendable'"), body=MENDED)
        done.append(dlq.redrive(mended, endpoint, group=GROUP, plan_id=f"nightly-{batch_id}", rate=rate))

    dead = spark.readStream.format("popmq").option("url", database_url).option("consumerGroup", GROUP).load()
    writing = dead.writeStream.foreachBatch(work).option("checkpointLocation", str(folder / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()
    return done


if __name__ == "__main__":
    url, server, place, pace = sys.argv[1:]
    nightly(session("nightly", memory="512m"), url, server, Path(place), float(pace))
