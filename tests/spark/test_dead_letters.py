"""The dead letters of a database, read by a real Spark."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, text

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import LongType, StructType

from popclient.spark.columns import schema_of
from popclient.spark.dead_letters.columns import DEAD_LETTERS
from popclient.spark.dead_letters.database import connected
from popclient.spark.dead_letters.fetching import PAGE_ROWS_MAX
from popclient.spark.dead_letters.options import parse
from popclient.spark.dead_letters.queries import chosen as select_chosen
from popclient.spark.dead_letters.queries import key_of
from popclient.spark.dead_letters.reading import IdRange, ViewReader
from popclient.spark.versions import minor, version
from tests.spark.filled import EPOCH_MS, body_of, fill, id_of
from tests.support.postgres import fresh_database, postgres_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COUNT = 10_007
DIED = datetime.fromtimestamp(EPOCH_MS / 1_000, UTC)


@pytest.fixture(scope="module")
def sqlite_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('spark')}/popmq.db"
    fill(url, COUNT)
    return url


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with postgres_server() as server, fresh_database(server) as url:
        fill(url, COUNT)
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    return spark.read.format("popmq").option("url", url).options(**options).load()


def counted(url: str, where: str) -> int:
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as conn:
        count: int = conn.execute(text(f"SELECT count(*) FROM dead_letters WHERE {where}")).scalar_one()
    engine.dispose()
    return count


@pytest.mark.row("O4")
def test_every_dead_letter_once(spark: SparkSession, url: str) -> None:
    """None lost, none twice, in four partitions, as SQL counts them."""
    letters = read(spark, url)
    assert letters.rdd.getNumPartitions() == 4
    assert letters.count() == counted(url, "group_namespace = ''") == COUNT - 1
    assert letters.select("id").distinct().count() == COUNT - 1


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"consumerGroup": "billing"}, "group_namespace = '' AND consumer_group = 'billing'"),
        ({"topic": "hotels"}, "group_namespace = '' AND topic = 'hotels'"),
        ({"consumerGroup": "radar", "topic": "flights"}, "consumer_group = 'radar' AND topic = 'flights'"),
        ({"namespace": "nobody"}, "group_namespace = 'nobody'"),
        ({"consumerGroup": "billing", "startingId": 10**9}, "id >= 1000000000"),
        ({"startingId": 40, "endingId": 5_000}, "group_namespace = '' AND id >= 40 AND id < 5000"),
        (
            {"startingTimestamp": EPOCH_MS + 1_000_000, "endingTimestamp": EPOCH_MS + 2_000_000, "numPartitions": 3},
            f"group_namespace = '' AND dead_at_ms >= {EPOCH_MS + 1_000_000} AND dead_at_ms < {EPOCH_MS + 2_000_000}",
        ),
    ],
)
def test_options_choose(spark: SparkSession, url: str, options: dict[str, Any], where: str) -> None:
    assert read(spark, url, **options).count() == counted(url, where)


def test_types_and_values(spark: SparkSession, url: str) -> None:
    letters = read(spark, url)
    assert ", ".join(f"{name} {kind}" for name, kind in letters.dtypes) == schema_of(DEAD_LETTERS.columns)
    rows = {row.queue_offset: row for row in letters.where("queue_offset < 100").collect()}
    for i, row in rows.items():
        assert (row.message_id, bytes(row.body)) == (id_of(i), body_of(i))
        assert row.consumer_group == ("radar" if i % 3 == 0 else "billing")
        assert row.topic == ("hotels" if i % 5 == 0 else "flights")
        assert row.tag == (None if i % 2 == 0 else "UA")
        assert row["keys"] == ([] if i % 2 == 0 else [f"UA-{i}", "ü"])
        assert row.properties == ({} if i % 2 == 0 else {"origin": "JFK", "distance": str(i)})
        assert (row.message_group, row.message_type, row.queue_id, row.delivery_attempt) == (None, "NORMAL", 4, 3)
        assert (row.reason, row.redrive_state) == ("the hold ended, and no attempt remains", None)
        at = [row.born_timestamp, row.store_timestamp, row.dead_timestamp]
        expected = [DIED - timedelta(seconds=2), DIED - timedelta(seconds=1), DIED + timedelta(seconds=i)]
        assert [time.astimezone(UTC) for time in at] == expected
    assert len(rows) == 100


def test_a_schema_prunes_columns(spark: SparkSession, url: str) -> None:
    chosen = spark.read.format("popmq").schema("queue_offset bigint, tag string").option("url", url).load()
    assert chosen.columns == ["queue_offset", "tag"]
    assert {tuple(row) for row in chosen.where("queue_offset < 2").collect()} == {(0, None), (1, "UA")}
    only_ids = spark.read.format("popmq").schema("ID bigint").option("url", url).load()
    assert only_ids.count() == COUNT - 1


def test_properties_as_json(spark: SparkSession, url: str) -> None:
    """As the database has them: what JDBC delivers."""
    letters = read(spark, url, propertiesAs="json")
    assert dict(letters.dtypes) == dict(read(spark, url).dtypes) | {"properties": "string"}
    found = {row.queue_offset: row.properties for row in letters.where("queue_offset < 100").collect()}
    assert len(found) == 100
    for i, properties in found.items():
        assert json.loads(properties or "{}") == ({} if i % 2 == 0 else {"origin": "JFK", "distance": str(i)})
    chosen = spark.read.format("popmq").schema("properties string").option("url", url)
    assert chosen.option("propertiesAs", "json").load().count() == COUNT - 1
    with pytest.raises(PySparkException, match="choose with propertiesAs"):
        chosen.option("propertiesAs", "map").load().count()


def test_one_frame_many_filters(spark: SparkSession, url: str) -> None:
    """A filter of one query must not stay for the next, as a pushed one does in Spark 4.3."""
    letters = read(spark, url)
    assert letters.where("queue_offset < 8").count() == 8
    assert letters.count() == COUNT - 1


def test_a_frame_stays_as_it_was_planned(spark: SparkSession, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/popmq.db"
    fill(url, 100)
    before = read(spark, url)
    assert before.count() == 99
    with sqlite3.connect(tmp_path / "popmq.db") as conn:
        conn.execute("UPDATE dead_letter SET dead_letter_id = 500 WHERE dead_letter_id = 100")
        conn.execute("UPDATE dead_letter SET group_id = 1 WHERE dead_letter_id = 500")
    conn.close()
    assert before.count() == (100 if minor(version()) == (4, 0) else 99), "Spark 4.0 alone plans each action anew"
    assert read(spark, url).count() == 100


def test_parquet_keeps_all(spark: SparkSession, sqlite_url: str, tmp_path: Path) -> None:
    letters = read(spark, sqlite_url, consumerGroup="billing")
    letters.write.parquet(str(tmp_path / "dead"))
    written = spark.read.parquet(str(tmp_path / "dead"))
    assert written.count() == letters.count()
    assert written.dtypes == letters.dtypes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "sqlite:////nowhere/popmq.db"}, "there is no file /nowhere/popmq.db"),
        ({"numPartitions": "many"}, "option numPartitions='many' is not allowed; give a whole number from 1 to 1000"),
        ({"group": "g"}, "option group='g' is unknown; did you mean consumerGroup? allowed are url, view, namespace"),
    ],
)
def test_refusals_reach_the_user(spark: SparkSession, sqlite_url: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException) as refused:
        read(spark, options.pop("url", sqlite_url), **options).count()
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("message string", "column 'message' is unknown; dead_letters has message_id, topic"),
        ("queue_offset int", "column 'queue_offset' is bigint, not int; cast it after reading"),
    ],
)
def test_a_wrong_schema_is_named(spark: SparkSession, sqlite_url: str, schema: str, words: str) -> None:
    with pytest.raises(PySparkException) as refused:
        spark.read.format("popmq").schema(schema).option("url", sqlite_url).load().count()
    assert words in str(refused.value)


def test_another_database_is_named(spark: SparkSession, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "other.db").execute("CREATE TABLE t (i)").connection.close()
    with pytest.raises(PySparkException, match="popmq db upgrade"):
        read(spark, f"sqlite:///{tmp_path}/other.db").count()


@pytest.fixture
def held(sqlite_url: str) -> Iterator[sqlite3.Connection]:
    """A reader of its own on the same file, to see what Spark leaves behind."""
    conn = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)
    yield conn
    conn.close()


def test_reading_never_blocks_a_checkpoint(spark: SparkSession, sqlite_url: str, held: sqlite3.Connection) -> None:
    """A page's statement ends before Spark sees the page: halfway through a read the whole WAL can be checkpointed."""
    reader = ViewReader(parse({"url": sqlite_url}), StructType().add("id", LongType()))
    pages = reader.read(IdRange(1, COUNT))
    assert next(pages).num_rows == PAGE_ROWS_MAX
    held.execute("UPDATE topic SET created_at_ms = created_at_ms + 1")
    assert held.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    assert sum(page.num_rows for page in pages) == COUNT - 1 - PAGE_ROWS_MAX


def test_a_wrong_option_is_an_analysis_error(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="option url is missing"):
        spark.read.format("popmq").load()
    with pytest.raises(AnalysisException, match="option endpoints is missing; the server to read topics from"):
        spark.read.format("popmq").option("topic", "orders").load()


def test_postgres_that_is_away_is_named_without_its_password(spark: SparkSession) -> None:
    with pytest.raises(PySparkException) as refused:
        read(spark, "postgresql://me:secret@127.0.0.1:1/db").count()
    assert "option url='postgresql+psycopg://***@127.0.0.1:1/db' cannot be read: connection failed" in str(
        refused.value
    )


def test_a_page_of_postgres_reads_no_other_messages(postgres_url: str) -> None:
    """With tables of this size, a planner that may hash reads all messages for each page."""
    chosen = parse({"url": postgres_url})
    key = key_of(chosen)
    with connected(chosen.url) as conn:
        conn.exec_driver_sql("SET default_transaction_read_only = off")
        conn.exec_driver_sql("ANALYZE")
        query = select_chosen(chosen, DEAD_LETTERS.sources_of(DEAD_LETTERS.columns))
        page = query.where(key >= 1, key <= COUNT // 4).order_by(key).limit(PAGE_ROWS_MAX)
        sql = str(page.compile(dialect=conn.dialect, compile_kwargs={"literal_binds": True}))
        plan = "\n".join(conn.exec_driver_sql("EXPLAIN " + sql.replace("%", "%%")).scalars())
    assert "Index Scan using message_pkey" in plan
    assert "Seq Scan on message" not in plan
