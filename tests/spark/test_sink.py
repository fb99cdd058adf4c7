"""Rows that Spark writes into a topic: each once, however often Spark tries."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark import TaskContext
from pyspark.errors import AnalysisException, PySparkException

from examples.flights.processes import server
from popclient.admin import Admin
from popclient.spark.sink.writer import ROWS_AT_ONCE
from tests.spark.sent import bodies, forget_last_commit, stored
from tests.support.server_process import ServerProcess
from tests.support.waiting import eventually

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

ROWS = 3_000
EVERY_ONE_ONCE = Counter(f"row {i}" for i in range(ROWS))
TOMORROW = datetime.now(UTC).replace(microsecond=250_000) + timedelta(days=1)

IN_ARROW = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


@pytest.fixture
def small_batches(spark: SparkSession) -> Iterator[None]:
    """Batches of as many rows as a writer sends at once: it has sent the first of them when the last ones come."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, str(ROWS_AT_ONCE))
    yield
    spark.conf.set(name, str(before))


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("sink")
    with server(folder / "popmq.db", folder / "server.log") as served:
        yield served.endpoint


def numbered(spark: SparkSession, partitions: int = 3) -> DataFrame:
    """ROWS rows in partitions."""
    return spark.range(0, ROWS, 1, partitions).selectExpr("concat('row ', id) AS body")


def send(rows: DataFrame, endpoint: str, to: str | None, **options: str) -> None:
    chosen = {"endpoints": endpoint, **({"topic": to} if to else {}), **options}
    rows.write.format("popmq").mode("append").options(**chosen).save()


@pytest.mark.row("O6")
def test_every_row_once(spark: SparkSession, endpoint: str) -> None:
    send(numbered(spark), endpoint, "batch")
    messages = stored(endpoint, "batch")
    assert Counter(message.text for message in messages) == EVERY_ONE_ONCE
    assert all(len(message.message_id) == 34 and message.message_id.startswith("01") for message in messages)


@pytest.mark.row("O6")
def test_a_repeated_write_adds_nothing(spark: SparkSession, endpoint: str) -> None:
    """By its writeId, even where a shuffle has put the rows into another order; another writeId is another write."""
    rows = spark.range(0, ROWS, 1, 3).selectExpr("id", "id % 7 AS part")
    for order in (rows.id, rows.id.desc()):
        shuffled = rows.repartition(2, "part").sortWithinPartitions(order)
        send(shuffled.selectExpr("concat('row ', id) AS body"), endpoint, "again", writeId="monday")
    assert bodies(endpoint, "again") == EVERY_ONE_ONCE
    send(spark.sql("SELECT 'row 1' AS body"), endpoint, "again", writeId="tuesday")
    send(spark.sql("SELECT 'row 1' AS body"), endpoint, "again")
    assert bodies(endpoint, "again")["row 1"] == 3


def test_rows_that_are_alike_are_messages_each(spark: SparkSession, endpoint: str) -> None:
    for _ in range(2):
        send(spark.range(0, 100, 1, 2).selectExpr("'same' AS body"), endpoint, "alike", writeId="w")
    assert bodies(endpoint, "alike") == Counter(same=100)


def test_all_columns(spark: SparkSession, endpoint: str) -> None:
    rows = spark.sql(
        """
        SELECT CAST('one' AS BINARY) AS body, 'columns' AS topic, 'UA' AS tag, array('k1', 'k2') AS keys,
               map('origin', 'JFK') AS properties, CAST(NULL AS STRING) AS message_group, 'my-id' AS message_id,
               CAST(NULL AS TIMESTAMP) AS delivery_timestamp
        UNION ALL SELECT CAST('two' AS BINARY), NULL, NULL, NULL, NULL, 'gate 4', NULL, NULL
        UNION ALL SELECT CAST('late' AS BINARY), NULL, NULL, NULL, NULL, NULL, NULL,
               :tomorrow
    """,
        args={"tomorrow": TOMORROW},
    )
    send(rows, endpoint, "other")
    (one,) = stored(endpoint, "columns")
    assert (one.message_id, one.text, one.tag, one.keys) == ("my-id", "one", "UA", ("k1", "k2"))
    assert (one.properties, one.message_group, one.message_type) == ({"origin": "JFK"}, None, "NORMAL")
    (two,) = stored(endpoint, "other")
    assert (two.text, two.tag, two.keys, two.properties) == ("two", None, (), {})
    assert (two.message_group, two.message_type) == ("gate 4", "FIFO")
    with Admin(endpoint) as admin:
        (late,) = admin.scheduled("other")
    assert (late.message.text, late.due_at) == ("late", TOMORROW)


def test_message_groups_keep_their_order(spark: SparkSession, endpoint: str) -> None:
    rows = spark.range(0, ROWS, 1, 2).selectExpr("CAST(id AS STRING) AS body", "concat('g', id % 3) AS message_group")
    send(rows.repartition(2, "message_group").sortWithinPartitions(rows.body.cast("int")), endpoint, "ordered")
    messages = stored(endpoint, "ordered")
    for group in ("g0", "g1", "g2"):
        numbers = [int(message.text) for message in messages if message.message_group == group]
        assert numbers == list(range(int(group[1]), ROWS, 3))


@pytest.mark.usefixtures("small_batches")
@IN_ARROW
@pytest.mark.row("O6")
def test_a_task_that_is_run_again_sends_nothing_twice(spark: SparkSession, endpoint: str) -> None:
    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        for number, batch in enumerate(batches):
            if number and not task.attemptNumber():
                raise OSError("the worker is gone")
            yield batch

    rows = numbered(spark, 2)
    send(rows.mapInArrow(failing, rows.schema), endpoint, "tried")
    assert bodies(endpoint, "tried") == EVERY_ONE_ONCE


# ---- Streams ----


def stream(spark: SparkSession, folder: Path, endpoint: str, topic: str, **options: str) -> None:
    """Sends what is new in `folder`/rows, a batch per file."""
    rows = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).parquet(str(folder / "rows"))
    query = (
        rows.writeStream.format("popmq")
        .options(endpoints=endpoint, topic=topic, checkpointLocation=str(folder / "checkpoint"), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


@pytest.mark.row("O6")
def test_a_replayed_batch_adds_nothing(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    for batch in range(2):
        numbered(spark).where(f"hash(body) % 2 {'=' if batch else '<>'} 0").coalesce(1).write.mode("append").parquet(
            str(tmp_path / "rows")
        )
    stream(spark, tmp_path, endpoint, "streamed")
    assert bodies(endpoint, "streamed") == EVERY_ONE_ONCE
    assert forget_last_commit(tmp_path / "checkpoint") == 1
    stream(spark, tmp_path, endpoint, "streamed")
    assert bodies(endpoint, "streamed") == EVERY_ONE_ONCE


def test_another_query_sends_its_own(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    for query in ("a", "b"):
        spark.sql("SELECT 'one' AS body").write.parquet(str(tmp_path / query / "rows"))
        stream(spark, tmp_path / query, endpoint, "two-queries")
    assert bodies(endpoint, "two-queries") == Counter(one=2)


def test_a_server_that_restarts_under_a_write(spark: SparkSession, sqlite_url: str) -> None:
    """Killed as soon as the first rows are stored: the write waits for it, and ends well."""
    rows = spark.range(0, 20_000, 1, 1).selectExpr("concat('row ', id) AS body")
    broker = ServerProcess(sqlite_url)

    async def restart() -> None:
        await eventually(lambda: asyncio.to_thread(has_messages, broker.endpoint), "the first row", within_s=30)
        await broker.kill()
        await broker.start()

    with asyncio.Runner() as runner:
        runner.run(broker.start())
        with ThreadPoolExecutor() as beside:
            restarting = beside.submit(runner.run, restart())
            send(rows, broker.endpoint, "survived")
            restarting.result()
        assert bodies(broker.endpoint, "survived") == Counter(f"row {i}" for i in range(20_000))
        runner.run(broker.kill())


def has_messages(endpoint: str) -> bool:
    with Admin(endpoint) as admin:
        return any(topic.message_count for topic in admin.list_topics())


# ---- Bad input; more of it without Spark in test_sink_rows.py ----


@pytest.mark.parametrize(
    ("select", "options", "words"),
    [
        ("'a' AS body, 'x' AS colour", {}, "column 'colour' is unknown; a row that is sent has body, topic, tag"),
        ("'a' AS body", {"colour": "x"}, "option colour='x' is unknown"),
        ("CAST(NULL AS STRING) AS body", {}, "row 0 of partition 0 is no message: its body is NULL"),
        ("'a' AS body, 'g|h' AS tag", {}, "row 0 of partition 0 was not stored: ILLEGAL_MESSAGE_TAG"),
        ("repeat('x', 5000000) AS body", {}, "row 0 of partition 0 was not stored: MESSAGE_BODY_TOO_LARGE"),
    ],
)
def test_bad_input_is_named(
    spark: SparkSession, endpoint: str, select: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        send(spark.sql(f"SELECT {select}"), endpoint, "refused", **options)
    assert words in str(refused.value)


def test_only_appending(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    rows = spark.sql("SELECT 'a' AS body")
    with pytest.raises(AnalysisException, match="a topic can only be appended to"):
        rows.write.format("popmq").mode("overwrite").options(endpoints=endpoint, topic="refused").save()


def test_a_query_needs_no_write_id(spark: SparkSession, endpoint: str, tmp_path: Path) -> None:
    spark.sql("SELECT 'a' AS body").write.parquet(str(tmp_path / "rows"))
    with pytest.raises(PySparkException, match="option writeId='w'"):
        stream(spark, tmp_path, endpoint, "refused", writeId="w")
