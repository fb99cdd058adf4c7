"""A driver that sends rows to a topic: ENDPOINT TOPIC ROWS PORT_OF_THE_GATE."""

from __future__ import annotations

import sys
from typing import Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

from popclient.spark import register
from tests.spark.cluster import gate
from tests.spark.sink_driver import ROWS_BEFORE_DEATH


def main(endpoint: str, topic: str, count: int, port: int) -> None:
    # The writer gets rows in portions of this number, and sends 1,024 at once: it has sent some when the task waits.
    settings: dict[str, Any] = {"spark.sql.execution.arrow.maxRecordsPerBatch": "100"}
    spark = SparkSession.builder.appName("writing").config(map=settings).getOrCreate()
    register(spark)
    register_pickle_by_value(gate)
    # Spark moves rows between its processes in portions of 64 KiB.
    padding = "map('padding', repeat('x', 400)) AS properties"
    rows = spark.range(0, count, 1, 2).selectExpr("concat('row ', id) AS body", padding)
    waiting = spark.createDataFrame(rows.rdd.mapPartitions(gate.gated(port, 0, ROWS_BEFORE_DEATH)), rows.schema)
    waiting.write.format("popmq").mode("append").options(endpoints=endpoint, topic=topic, writeId="once").save()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
