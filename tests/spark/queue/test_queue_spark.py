"""Mode `queue` in a real Spark: into Parquet and into a table, beside other consumers, through deaths and restarts."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.errors import AnalysisException, PySparkException

from popclient import PullConsumer, SimpleConsumer
from tests.spark.queue import driver
from tests.spark.queue.serving import Server, kill_group, serving
from tests.spark.sent import forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

COUNT = 1_000
DRIVER_S = 150.0

# Spark looks at the version of pandas, which is not used here.
IN_ARROW = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("queues")) as server:
        server.fill("flights", COUNT)
        yield server


def options(server: Server, **more: Any) -> dict[str, str]:
    given = {"endpoints": server.endpoint, "topic": "flights", "consumerGroup": "reports", **more}
    return {name: str(value) for name, value in given.items()}


def read(spark: SparkSession, server: Server, **more: Any) -> DataFrame:
    return spark.read.format("popmq").options(**options(server, **more)).load()


def stream(spark: SparkSession, server: Server, **more: Any) -> DataFrame:
    return spark.readStream.format("popmq").options(**options(server, **more)).load()


def into_parquet(rows: DataFrame, folder: Path) -> StreamingQuery:
    """To the end of what is available now."""
    query = (
        rows.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    query.awaitTermination()
    return query


def flights(count: int = COUNT, first: int = 0) -> Counter[str]:
    return Counter(f"flight {number}" for number in range(first, first + count))


def in_parquet(spark: SparkSession, folder: Path) -> Counter[str]:
    rows = spark.read.parquet(str(folder / "rows")).selectExpr("CAST(body AS string) AS body").collect()
    return Counter(row.body for row in rows)


@pytest.mark.row("O4")
@pytest.mark.user("U41")
def test_a_batch_counts_what_sql_counts(spark: SparkSession, server: Server) -> None:
    rows = read(spark, server, minPartitions=4)
    assert rows.rdd.getNumPartitions() == 4
    assert rows.count() == server.stored("flights") == COUNT
    assert rows.select("message_id").distinct().count() == COUNT
    by_queue = {row.queue_id: row["count"] for row in rows.groupBy("queue_id").count().collect()}
    assert by_queue == {
        queue: server.ask(
            "SELECT next_offset FROM queue q JOIN topic t USING (topic_id) WHERE name = 'flights' AND number = ?", queue
        )
        for queue in by_queue
    }


def test_a_refusal_reaches_the_user_in_our_words(spark: SparkSession, server: Server) -> None:
    with pytest.raises(
        AnalysisException, match=r"option startingOffsets='first' is not allowed; give earliest, latest"
    ):
        read(spark, server, startingOffsets="first")
    with pytest.raises(AnalysisException, match=r"option endpoints=.* it reads topics, and url reads dead letters"):
        read(spark, server, url="sqlite:///popmq.db")
    with pytest.raises(PySparkException, match=r"topic 'nobody' does not exist"):
        read(spark, server, topic="nobody").count()
    with pytest.raises(PySparkException, match=r"no answer from 127\.0\.0\.1:1"):
        read(spark, server, endpoints="127.0.0.1:1", requestTimeout="500ms").count()


def test_no_secret_is_shown(spark: SparkSession, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "hush-hush"
    rows = read(spark, server, accessKey="ali", accessSecret=secret)
    rows.explain(mode="extended")
    assert secret not in capsys.readouterr().out
    with pytest.raises(PySparkException) as failure:
        read(spark, server, accessKey="ali", accessSecret=secret, topic="nobody").count()
    assert secret not in str(failure.value)


@pytest.mark.row("O5")
@pytest.mark.user("U39")
def test_a_stream_into_parquet_and_a_batch_that_is_run_again(
    spark: SparkSession, server: Server, tmp_path: Path
) -> None:
    rows = stream(spark, server, maxOffsetsPerTrigger=400)
    query = into_parquet(rows, tmp_path)
    assert in_parquet(spark, tmp_path) == flights()
    assert [progress.numInputRows for progress in query.recentProgress][:3] == [400, 400, 200]
    forget_last_commit(tmp_path / "checkpoint")
    into_parquet(rows, tmp_path)
    assert in_parquet(spark, tmp_path) == flights()


@pytest.mark.user("U40")
def test_lag_is_in_the_querys_progress_and_in_the_groups(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    query = into_parquet(stream(spark, server, consumerGroup="lagging", maxOffsetsPerTrigger=600), tmp_path)
    lags = [json.loads(progress.sources[0].latestOffset)["lag"] for progress in query.recentProgress]
    assert lags[:2] == [400, 0]
    # An availableNow query asks once more before it ends, so the group knows of the last batch too.
    assert server.lag("lagging") == 0


@pytest.mark.row("O5")
@IN_ARROW
def test_a_table_gets_the_same_batch_again(spark: SparkSession, server: Server, tmp_path: Path) -> None:
    driver.run(spark, server.endpoint, "flights", tmp_path)
    first = driver.rows_of(tmp_path)
    assert Counter(body for _, body in first) == flights()
    last = forget_last_commit(tmp_path / "checkpoint")
    (tmp_path / "table.db").unlink()  # whatever is written now comes from the replay alone
    driver.run(spark, server.endpoint, "flights", tmp_path)
    assert sorted(driver.rows_of(tmp_path)) == sorted(row for row in first if row[0] == last)


@pytest.mark.row("O5")
@pytest.mark.user("U40")
@pytest.mark.parametrize(
    "point", ["sink", pytest.param("read", marks=pytest.mark.slow), pytest.param("plan", marks=pytest.mark.slow)]
)
@pytest.mark.timeout(900)  # two Sparks, on a machine that may be busy
@IN_ARROW
def test_a_driver_that_is_killed(spark: SparkSession, server: Server, tmp_path: Path, point: str) -> None:
    """Killed while a task reads; after the table has committed and before Spark has; after planning, before Spark has
    written the plan down. Another process goes on from the checkpoint: nothing is lost, nothing is there twice."""
    command = [sys.executable, "-m", "tests.spark.queue.driver", server.endpoint, "flights", str(tmp_path), point]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(DRIVER_S)
    finally:
        kill_group(process)
    assert (tmp_path / f"died at {point}").exists()
    assert 0 < len(driver.rows_of(tmp_path)) < COUNT
    driver.run(spark, server.endpoint, "flights", tmp_path)
    assert Counter(body for _, body in driver.rows_of(tmp_path)) == flights()


def test_a_server_that_restarts_under_a_query(spark: SparkSession, tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.fill("flights", COUNT)

        def write(rows: DataFrame, batch: int) -> None:
            if batch == 1:
                server.kill()
                threading.Timer(0.5, server.start).start()
            bodies.update(bytes(row.body).decode() for row in rows.select("body").collect())

        bodies: Counter[str] = Counter()
        query = (
            stream(spark, server, maxOffsetsPerTrigger=300)
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert bodies == flights()


@pytest.mark.row("K8")
def test_three_kinds_of_consumers_on_one_topic_at_once(spark: SparkSession, tmp_path: Path) -> None:
    """A group that consumes by messages, one that pulls queues, and Spark: each gets everything."""
    with serving(tmp_path) as server:
        server.fill("flights", COUNT // 2)
        popped: Counter[str] = Counter()
        pulled: Counter[str] = Counter()

        def pop() -> None:
            with SimpleConsumer(server.endpoint, "popping", "flights", invisible_duration=30) as consumer:
                while sum(popped.values()) < COUNT:
                    messages = consumer.receive(await_duration=1)
                    consumer.ack(messages)
                    popped.update(message.text for message in messages)

        def pull() -> None:
            begin = "CONSUME_FROM_FIRST_OFFSET"
            with PullConsumer(server.endpoint, "pulling", consume_from=begin) as consumer:
                consumer.assign("flights")
                while sum(pulled.values()) < COUNT:
                    pulled.update(message.text for message in consumer.poll(timeout=1))
                consumer.commit()

        others = [threading.Thread(target=work, daemon=True) for work in (pop, pull)]
        for each in others:
            each.start()
        rows = stream(spark, server, maxOffsetsPerTrigger=200)
        into_parquet(rows, tmp_path)
        server.fill("flights", COUNT // 2, first=COUNT // 2)
        into_parquet(rows, tmp_path)
        for each in others:
            each.join(60)
        assert popped == pulled == in_parquet(spark, tmp_path) == flights()
        assert [server.lag(group) for group in ("popping", "pulling", "reports")] == [0, 0, 0]
