"""Streams and the sink of streams on every version of Spark; `make test-spark-versions` runs it on each.

Spark 4.0 and 4.1 have no admission control, so a batch has all that is there; what needs a limit is refused.
"""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.errors import AnalysisException, PySparkException

from popclient.admin import Admin
from popclient.spark.versions import has_admission_control, version
from tests.spark.filled import fill
from tests.spark.queue.serving import QUEUES, Server, kill_group, serving
from tests.spark.sent import bodies, forget_last_commit, stored
from tests.spark.stream_job import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COUNT = 1_000
DRIVER_S = 150.0
OLDER = pytest.mark.skipif(has_admission_control(), reason="for Spark 4.0 and 4.1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("versions")) as server:
        yield server


def stream(spark: SparkSession, server: Server, topic: str, **more: Any) -> DataFrame:
    options = {"endpoints": server.endpoint, "topic": topic, "consumerGroup": f"group-of-{topic}", **more}
    return spark.readStream.format("popmq").options(**options).load()


def into_parquet(rows: DataFrame, folder: Path) -> StreamingQuery:
    """To the end of what is available now."""
    writing = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writing.trigger(availableNow=True).start(str(folder / "rows"))
    query.awaitTermination()
    return query


def in_parquet(spark: SparkSession, folder: Path) -> Counter[str]:
    rows = spark.read.parquet(str(folder / "rows")).selectExpr("CAST(body AS string) AS body").collect()
    return Counter(row.body for row in rows)


def flights(count: int) -> Counter[str]:
    return Counter(f"flight {number}" for number in range(count))


@pytest.mark.user("U39")
def test_a_stream_continues_from_its_checkpoint(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    server.fill("continued", COUNT)
    rows = stream(spark, server, "continued")
    progress = into_parquet(rows, tmp_path).recentProgress[0].sources[0]
    assert in_parquet(spark, tmp_path) == flights(COUNT)
    latest = ast.literal_eval(progress.latestOffset)  # JSON, or on Spark 4.0 as Python writes a dictionary
    assert sum(latest["q"].values()) == COUNT
    assert ("lag" in latest) == has_admission_control()
    server.fill("continued", 500, first=COUNT)
    into_parquet(rows, tmp_path)
    assert in_parquet(spark, tmp_path) == flights(COUNT + 500)
    batches = forget_last_commit(tmp_path / "checkpoint")
    into_parquet(rows, tmp_path)
    assert in_parquet(spark, tmp_path) == flights(COUNT + 500)
    into_parquet(rows, tmp_path)
    assert forget_last_commit(tmp_path / "checkpoint") == batches, "there was nothing more to read"
    assert server.lag("group-of-continued") == 0


def test_a_running_stream_finds_new_messages(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    server.fill("running", 100)
    found: Counter[str] = Counter()

    def note(batch: DataFrame, _: int) -> None:
        found.update(bytes(row.body).decode() for row in batch.select("body").collect())

    writing = stream(spark, server, "running").writeStream.foreachBatch(note)
    query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    wait_for(lambda: found == flights(100))
    wait_for(lambda: server.lag("group-of-running") == 0)
    server.fill("running", 100, first=100)
    wait_for(lambda: found == flights(200))
    query.stop()


def test_a_topic_that_was_recreated_while_the_query_was_down(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    server.fill("recreated", 100)
    rows = stream(spark, server, "recreated")
    into_parquet(rows, tmp_path)
    with Admin(server.endpoint) as admin:
        admin.delete_topic("recreated")
        admin.create_topic("recreated", queue_count=QUEUES)
    server.fill("recreated", 200, first=1)
    with pytest.raises(PySparkException, match="the topic was recreated; set option failOnDataLoss=false"):
        into_parquet(rows, tmp_path)


@pytest.mark.timeout(900)
@pytest.mark.row("O5")
@pytest.mark.user("U40")
def test_a_driver_that_is_killed(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """`kill -9` of the driver and all its processes while a task reads: each message is in the lake once."""
    server.fill("killed", COUNT // 2)
    command = [sys.executable, "-m", "tests.spark.versions.driver", server.endpoint, "killed", str(tmp_path)]
    with (tmp_path / "driver.log").open("wb") as log:
        process = subprocess.Popen(command, start_new_session=True, stdout=log, stderr=log, env=dict(os.environ))
    try:
        wait_for((tmp_path / "checkpoint" / "commits" / "0").exists, DRIVER_S)
        server.fill("killed", COUNT // 2, first=COUNT // 2)
        assert process.wait(DRIVER_S) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-2_000:]
    finally:
        kill_group(process)
    assert (tmp_path / "died").exists()
    assert in_parquet(spark, tmp_path) == flights(COUNT // 2)
    for _ in range(2):  # on Spark 4.0 and 4.1 the first one does the batch that was left, and nothing else
        into_parquet(stream(spark, server, "killed", consumerGroup="killed"), tmp_path)
    assert in_parquet(spark, tmp_path) == flights(COUNT)


def test_dead_letters_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, 500)
    rows = spark.readStream.format("popmq").options(url=url, consumerGroup="radar").load()
    wanted = Counter(f"flight {number}" for number in range(0, 499, 3))
    into_parquet(rows, tmp_path)
    assert in_parquet(spark, tmp_path) == wanted
    forget_last_commit(tmp_path / "checkpoint")
    for _ in range(2):
        into_parquet(rows, tmp_path)
        assert in_parquet(spark, tmp_path) == wanted


def test_a_stream_of_all_columns_into_a_topic(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    """A repeated batch adds nothing."""
    tomorrow = datetime.now(UTC).replace(microsecond=250_000) + timedelta(days=1)
    rows = spark.sql(
        """
        SELECT CAST('one' AS BINARY) AS body, 'UA' AS tag, array('k1', 'k2') AS keys,
               map('origin', 'JFK') AS properties, CAST(NULL AS STRING) AS message_group,
               CAST(NULL AS TIMESTAMP) AS delivery_timestamp
        UNION ALL SELECT CAST('two' AS BINARY), NULL, NULL, NULL, 'gate 4', NULL
        UNION ALL SELECT CAST('late' AS BINARY), NULL, NULL, NULL, NULL, :tomorrow
        """,
        args={"tomorrow": tomorrow},
    )
    rows.coalesce(1).write.parquet(str(tmp_path / "in"))
    with Admin(server.endpoint) as admin:
        admin.create_topic("sent", accept_message_types=("NORMAL", "FIFO", "DELAY"))
    for repeated in (False, True):
        if repeated:
            forget_last_commit(tmp_path / "checkpoint")
        writing = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in")).writeStream.format("popmq")
        writing = writing.options(
            endpoints=server.endpoint, topic="sent", checkpointLocation=str(tmp_path / "checkpoint")
        )
        writing.trigger(availableNow=True).start().awaitTermination()
        assert bodies(server.endpoint, "sent") == Counter(one=1, two=1)
        one, two = sorted(stored(server.endpoint, "sent"), key=lambda each: each.text)
        assert (one.tag, one.keys, one.properties, one.message_group) == ("UA", ("k1", "k2"), {"origin": "JFK"}, None)
        assert (two.tag, two.keys, two.properties, two.message_group) == (None, (), {}, "gate 4")
        with Admin(server.endpoint) as admin:
            (late,) = admin.scheduled("sent")
        assert (late.message.text, late.due_at) == ("late", tomorrow)


@OLDER
def test_what_needs_a_newer_spark_is_refused(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    server.fill("refused", 10)
    needs = f"needs Spark 4.2 or newer, and this is Spark {version()}; "
    for mode, more in (("lease", {"leaseOwner": "o"}), ("journal", {"journalPath": str(tmp_path / "journal")})):
        with pytest.raises(AnalysisException, match=f"option mode='{mode}' {needs}use mode='queue'"):
            stream(spark, server, "refused", mode=mode, **more)
    with pytest.raises(PySparkException, match=f"option maxOffsetsPerTrigger=4 {needs}leave it out"):
        into_parquet(stream(spark, server, "refused", maxOffsetsPerTrigger=4), tmp_path)
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, 10)
    dead = spark.readStream.format("popmq").options(url=url, maxRowsPerTrigger=4).load()
    with pytest.raises(PySparkException, match=f"option maxRowsPerTrigger=4 {needs}leave it out"):
        into_parquet(dead, tmp_path)
