"""Spark 3.5, which has no data sources in Python: dead letters by JDBC, and messages by pulls, into Parquet.

    spark-submit --jars postgresql.jar spark_older.py JDBC_URL ENDPOINTS TOPIC FOLDER

JDBC_URL is the broker's Postgres, such as jdbc:postgresql://host/popmq?user=reader. The Pythons of driver and executors
need PopMQ for the messages alone. Run it every hour: each run writes what is new, as one more batch. A run that was
killed has no file _SUCCESS in its batch, and the next run writes this batch again: each row is there once.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from popclient import MessageQueue, PullConsumer
from popclient.admin import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The columns that format("popmq") has on newer versions, from those of the view `dead_letters`.
DEAD_LETTERS = (
    "CASE WHEN substring(message_id, 1, 1) = X'00' THEN decode(substring(message_id, 2), 'UTF-8')"
    " ELSE hex(message_id) END AS message_id",
    *("topic", "consumer_group", "tag"),
    "coalesce(from_json(keys, 'array<string>'), array()) AS keys",
    "coalesce(from_json(properties, 'map<string,string>'), map()) AS properties",
    *("message_group", "message_type", "queue_id", "queue_offset"),
    "coalesce(unpack(CASE WHEN body_encoding = 'GZIP' THEN body END), body) AS body",
    "timestamp_millis(born_at_ms) AS born_timestamp",
    "timestamp_millis(stored_at_ms) AS store_timestamp",
    "timestamp_millis(dead_at_ms) AS dead_timestamp",
    *("delivery_attempt", "reason", "redrive_state", "plan_id", "id", "lite_topic"),
)
MESSAGES = """message_id string, topic string, tag string, keys array<string>, properties map<string,string>,
    message_group string, queue_id int, queue_offset bigint, body binary, born_timestamp timestamp"""


def dead_letters(spark: SparkSession, url: str, *, where: str = "true", partitions: int = 4) -> DataFrame:
    """The dead letters of this moment. where: SQL over the view, which Postgres evaluates. Needs Postgres' driver."""

    def asked(query: str, **more: str | int) -> DataFrame:
        options = {"url": url, "driver": "org.postgresql.Driver", "fetchsize": 1_000, **more}
        return spark.read.format("jdbc").options(**options).option("dbtable", f"({query}) AS asked").load()

    found = asked(f"SELECT min(id) AS first, max(id) AS last FROM dead_letters WHERE {where}").first()
    first, last = (0, 0) if found is None or found["first"] is None else (found["first"], found["last"])
    rows = asked(
        f"SELECT * FROM dead_letters WHERE {where} AND id BETWEEN {first} AND {last}",
        partitionColumn="id",
        lowerBound=first,
        upperBound=last + 1,
        numPartitions=partitions,
    )
    spark.udf.register("unpack", unpack, "binary")
    return rows.selectExpr(*DEAD_LETTERS)


def unpack(body: bytes | None) -> bytes | None:
    """NULL for bodies that are not packed, so that these do not pass through Python."""
    return None if body is None else zlib.decompressobj(47).decompress(bytes(body))


def messages(spark: SparkSession, endpoints: str, group: str, ranges: list[tuple[MessageQueue, int, int]]) -> DataFrame:
    """The messages of each queue from an offset (included) to another (excluded); a task pulls one range."""
    rows = spark.sparkContext.parallelize(ranges, max(len(ranges), 1)).flatMap(partial(pulled, endpoints, group))
    return spark.createDataFrame(rows, MESSAGES)


def pulled(endpoints: str, group: str, wanted: tuple[MessageQueue, int, int]) -> Iterator[tuple[object, ...]]:
    """Runs in an executor. The group's progress stays as it is."""
    queue, start, end = wanted
    with PullConsumer(endpoints, group) as consumer:
        consumer.assign(queue)
        consumer.seek(queue, start)
        while consumer.position(queue) < end:
            polled = consumer.poll(timeout=30, max_messages=1_000)
            if not polled:
                raise RuntimeError(f"queue {queue} has given no message before offset {end} for 30 s")
            for each in polled:
                if each.queue_offset < end:
                    yield (
                        *(each.message_id, each.topic, each.tag, list(each.keys), dict(each.properties)),
                        *(each.message_group, each.queue_id, each.queue_offset, each.body, each.born_timestamp),
                    )


def archive_dead_letters(spark: SparkSession, url: str, folder: Path) -> None:
    batch, rows = archived(spark, folder)
    newest = 0 if rows is None else rows.agg(sql.max("id")).collect()[0][0] or 0
    dead_letters(spark, url, where=f"id > {newest}").write.mode("overwrite").parquet(batch)


def archive_messages(spark: SparkSession, endpoints: str, group: str, topic: str, folder: Path) -> None:
    batch, rows = archived(spark, folder)
    ends = [] if rows is None else rows.groupBy("queue_id").agg(sql.max("queue_offset")).collect()
    starts = {queue_id: offset + 1 for queue_id, offset in ends}
    with Admin(endpoints) as admin:
        queues = admin.get_topic(topic).queues
    for queue in queues:
        if starts.get(queue.id, queue.min_offset) < queue.min_offset:
            raise RuntimeError(f"queue {queue.id}: messages before offset {queue.min_offset} were removed unread")
    ranges = [
        (MessageQueue(topic, queue.id), starts.get(queue.id, queue.min_offset), queue.max_offset) for queue in queues
    ]
    messages(spark, endpoints, group, ranges).write.mode("overwrite").parquet(batch)


def archived(spark: SparkSession, folder: Path) -> tuple[str, DataFrame | None]:
    """The folder of the next batch, and the rows of all complete ones."""
    done = [str(each.parent) for each in folder.glob("batch=*/_SUCCESS")]
    return str(folder / f"batch={len(done)}"), spark.read.parquet(*done) if done else None


if __name__ == "__main__":
    jdbc_url, given_endpoints, given_topic, given_folder = sys.argv[1:]
    session = SparkSession.builder.appName("archive").getOrCreate()
    archive_dead_letters(session, jdbc_url, Path(given_folder, "dead"))
    archive_messages(session, given_endpoints, "archive", given_topic, Path(given_folder, given_topic))
    session.stop()
