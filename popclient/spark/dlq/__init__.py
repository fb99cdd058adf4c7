"""What is done with dead letters in Spark: read, sort into classes, repair, look at the plan, send back, archive.

from popclient.spark import dlq

dead = dlq.read(spark, "postgresql://popmq@db/popmq", consumerGroup="arrivals")
sorted_out = dlq.classify(dead, by="reason")
sorted_out.write.partitionBy("class").parquet("dead/2013-02-08")
repaired = dlq.repair(sorted_out.where("class = 'bad json'"), body="replace(decode(body, 'UTF-8'), 'NaN', 'null')")
dlq.plan(repaired).show()  # moves nothing
dlq.redrive(repaired, "broker:8081", group="arrivals", plan_id="nightly-2013-02-08", rate=200)
dlq.lineage(spark, "postgresql://popmq@db/popmq", plan_id="nightly-2013-02-08").show()
"""

from __future__ import annotations

from popclient.spark.dlq.classifying import CLASS, classify, counts
from popclient.spark.dlq.purging import purge
from popclient.spark.dlq.reading import lineage, read
from popclient.spark.dlq.redriving import Redriven, redrive
from popclient.spark.dlq.repairing import REPAIR, plan, repair

__all__ = [
    "CLASS",
    "REPAIR",
    "Redriven",
    "classify",
    "counts",
    "lineage",
    "plan",
    "purge",
    "read",
    "redrive",
    "repair",
]
