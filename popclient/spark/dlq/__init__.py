"""Work with dead letters in Spark: read, classify, repair, preview, redrive, archive, purge.

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

from popclient.spark.dlq.frames import CLASS, classify, counts, lineage, read
from popclient.spark.dlq.repairing import REPAIR, messages, plan, repair
from popclient.spark.dlq.server import Redriven, purge, redrive

__all__ = [
    "CLASS",
    "REPAIR",
    "Redriven",
    "classify",
    "counts",
    "lineage",
    "messages",
    "plan",
    "purge",
    "read",
    "redrive",
    "repair",
]
