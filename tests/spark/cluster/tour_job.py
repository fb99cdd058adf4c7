"""A driver that writes, reads what it has written, and reads dead letters: ENDPOINT TOPIC DATABASE [unregistered].

Prints how many rows it has found of each.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from popclient.spark import dlq, register

if __name__ == "__main__":
    endpoint, topic, url, *unregistered = sys.argv[1:]
    spark = SparkSession.builder.appName("tour").getOrCreate()
    if not unregistered:
        register(spark)
        register(spark)  # again, as another part of the job may do
    server = {"endpoints": endpoint, "topic": topic}
    rows = spark.range(200).selectExpr("concat('row ', id) AS body")
    rows.write.format("popmq").mode("append").options(**server).save()
    sent = spark.read.format("popmq").options(**server, consumerGroup="tour", minPartitions="4").load()
    print("messages", sent.select("body").distinct().count(), "dead", dlq.read(spark, url).count())
