"""A query of mode `lease` or `journal` on a real Spark, and what its server has of it."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from popclient import ClientConfig, Message, Producer
from popclient.admin import Admin

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

# Longer than the server waits for a push consumer that has gone, far shorter than a lease.
UNTIL_MISSED = "45s"
# What a dead letter that is read as a message does not say.
UNKNOWN = {"queue_id", "queue_offset", "store_timestamp", "delivery_attempt", "reason", "id"}


class Job:
    """A query from a topic into a list of batches; `options` are those of its mode."""

    def __init__(self, spark: SparkSession, folder: Path, endpoints: str, topic: str, **options: str) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"endpoints": endpoints, "topic": topic, "consumerGroup": f"group-of-{topic}", **options}
        self.batches: dict[int, list[str]] = {}

    def start(self, *, every: str | None = None, **more: Any) -> StreamingQuery:
        """Until it is stopped, a trigger every so often; or for what is there now."""
        frame = self.spark.readStream.format("popmq").options(**{**self.options, **more}).load()
        writer = frame.writeStream.foreachBatch(self._sink).option(
            "checkpointLocation", str(self.folder / "checkpoint")
        )
        return (writer.trigger(processingTime=every) if every else writer.trigger(availableNow=True)).start()

    def run(self, **more: Any) -> list[str]:
        """All that is there, sorted."""
        self.start(**more).awaitTermination()
        return self.rows

    @property
    def rows(self) -> list[str]:
        return sorted(body for batch in self.batches.values() for body in batch)

    def _sink(self, frame: DataFrame, batch_id: int) -> None:
        rows = [bytes(row.body).decode() for row in frame.select("body").collect()]
        assert self.batches.setdefault(batch_id, rows) == rows  # a replay is the same


def letters_of(spark: SparkSession, folder: Path, given: dict[str, str]) -> DataFrame:
    """All that a stream of dead letters reads, in Parquet."""
    dead = spark.readStream.format("popmq").options(**given).load()
    to_files = dead.writeStream.option("path", str(folder / "dead"))
    query = to_files.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    return spark.read.schema(dead.schema).parquet(str(folder / "dead"))


def send(endpoint: str, topic: str, bodies: range, **fields: Any) -> list[str]:
    with Producer(patient(endpoint)) as producer:
        producer.send_many([Message(topic, f"{i:05}", **fields) for i in bodies]).raise_for_failures()
    return [f"{i:05}" for i in bodies]


def send_numbers(endpoint: str, count: int) -> None:
    """To topic t, for drivers that write into a table (stream_driver.store)."""
    with Producer(patient(endpoint)) as producer:
        producer.send_many([Message("t", str(number)) for number in range(count)]).raise_for_failures()


def assert_each_once(endpoint: str, folder: Path, count: int) -> None:
    """The table of a driver has all of these numbers, each once, and its group g has nothing more to do."""
    table = sqlite3.connect(folder / "rows.db")
    rows = Counter(body for (body,) in table.execute("SELECT body FROM row"))
    table.close()
    assert rows == Counter(str(number) for number in range(count))
    with Admin(patient(endpoint), connect_timeout=30.0) as admin:
        assert sum(lag.ready + lag.inflight + lag.waiting_retry for lag in admin.list_lag("g", "t")) == 0


def patient(endpoint: str) -> ClientConfig:
    """A broker in a process with a Spark may take its time."""
    return ClientConfig(endpoint, request_timeout=30.0)


def open_messages(endpoint: str, topic: str) -> tuple[int, int, int]:
    """What the job's group has ready, in flight, waiting."""
    with Admin(patient(endpoint), connect_timeout=30.0) as admin:
        lags = admin.list_lag(f"group-of-{topic}", topic)
    return (
        sum(each.ready for each in lags),
        sum(each.inflight for each in lags),
        sum(each.waiting_retry for each in lags),
    )


def wait_for(fact: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)
