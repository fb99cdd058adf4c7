"""A driver that reads a topic in a mode, into a table of its own: MODE ENDPOINT FOLDER SHARED PORT_OF_THE_GATE."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql import SparkSession

from popclient.spark import register
from tests.spark.cluster import gate
from tests.spark.stream_driver import MESSAGES_PER_BATCH, store

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame


def main(mode: str, endpoint: str, folder: Path, shared: Path, port: int) -> None:
    spark = SparkSession.builder.appName(mode).getOrCreate()
    register(spark)
    register_pickle_by_value(gate)
    of_mode = {
        "queue": {"minPartitions": "2"},
        "lease": {"leaseOwner": "cluster"},
        "journal": {"journalPath": str(shared / "journal"), "quietPeriod": "1s"},
    }[mode]
    server = {"endpoints": endpoint, "topic": "t", "consumerGroup": "g", "mode": mode}
    limit = {"maxMessagesPerTrigger": str(MESSAGES_PER_BATCH)}
    frame = spark.readStream.format("popmq").options(**server, **limit, **of_mode).load()

    def work(batch: DataFrame, number: int) -> None:
        picked = batch.select("message_id", "body")
        rows: RDD[Any] = picked.rdd.mapPartitions(gate.gated(port, number, after=1))
        store(folder, spark.createDataFrame(rows, picked.schema), number)

    writing = frame.writeStream.foreachBatch(work).option("checkpointLocation", str(folder / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    given_mode, given_endpoint, given_folder, given_shared, given_port = sys.argv[1:]
    os.environ.update(DYING_FOLDER=given_folder, DYING_POINTS="")
    main(given_mode, given_endpoint, Path(given_folder), Path(given_shared), int(given_port))
