"""Spark 3.5, which has no data sources in Python: examples/spark_older.py, on Postgres and a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'pyspark==3.5.*'")

from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

from examples import spark_older
from popclient import Producer
from popclient.admin import Admin
from popclient.spark import dlq, register
from popclient.spark import session as popmq_session
from popclient.spark.columns import schema_of
from popclient.spark.dead_letters.columns import DEAD_LETTERS
from popclient.spark.versions import minor, version
from tests.spark.dying import DEAD, MENDABLE, MENDED, TOPIC, broker_with_dead_letters, consumed
from tests.spark.filled import EPOCH_MS, body_of, fill, id_of
from tests.spark.redrive_driver import GROUP
from tests.support.shell import installed

if TYPE_CHECKING:
    from popserver.in_process import EmbeddedBroker

pytestmark = pytest.mark.skipif(minor(version()) != (3, 5), reason="for Spark 3.5: make test-spark-versions")

COUNT = 5_003
DIED = datetime.fromtimestamp(EPOCH_MS / 1_000, UTC)
JAR = os.environ.get("POPMQ_JDBC_JAR", "/usr/share/java/postgresql.jar")


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """As a cluster's own session."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    started = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", JAR)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    yield started
    started.stop()


def jdbc(url: str) -> str:
    where = make_url(url)
    return f"jdbc:postgresql://{where.host}:{where.port}/{where.database}?user={where.username}"


def test_the_format_is_refused_with_the_page(spark: SparkSession) -> None:
    for begun in (popmq_session, lambda: register(spark), lambda: dlq.read(spark, "sqlite:///popmq.db")):
        with pytest.raises(ValueError, match=r"this is Spark 3\.5\.\d+, which has .*; docs/spark-older\.md#spark-35"):
            begun()


def test_dead_letters_by_jdbc(spark: SparkSession, postgres_url: str) -> None:
    """The columns, types and values of the format, and filters that Postgres evaluates."""
    fill(postgres_url, COUNT)
    letters = spark_older.dead_letters(spark, jdbc(postgres_url))
    assert ", ".join(f"{name} {kind}" for name, kind in letters.dtypes) == schema_of(DEAD_LETTERS.columns)
    assert letters.rdd.getNumPartitions() == 4
    rows = {row.queue_offset: row for row in letters.collect()}
    assert sorted(rows) == list(range(COUNT))
    for i, row in rows.items():
        assert (row.message_id, bytes(row.body)) == (id_of(i), body_of(i))
        assert (row["keys"], row.properties) == (
            ([], {}) if i % 2 == 0 else ([f"UA-{i}", "ü"], {"origin": "JFK", "distance": str(i)})
        )
        assert row.dead_timestamp.astimezone(UTC) == DIED + timedelta(seconds=i)
    radar = letters.where("consumer_group = 'radar'")
    assert radar.count() == len(range(0, COUNT - 1, 3))
    planned: Any = radar._jdf.queryExecution().toString()
    assert "EqualTo(consumer_group,radar)" in planned.partition("PushedFilters")[2]
    few = spark_older.dead_letters(spark, jdbc(postgres_url), where="consumer_group = 'radar' AND id < 100")
    assert few.count() == 33
    assert spark_older.dead_letters(spark, jdbc(postgres_url), where="false").count() == 0


def test_executors_need_no_popmq_for_dead_letters(postgres_url: str, tmp_path: Path) -> None:
    """Spark sends the function that unpacks with the job, if it is in the program itself."""
    fill(postgres_url, 100)
    program = tmp_path / "program.py"
    begin = Path(spark_older.__file__).read_text().partition("if __name__")[0]
    program.write_text(f"""{begin}
spark = SparkSession.builder.master("local[1]").config("spark.jars", {JAR!r}).getOrCreate()
print(sorted(bytes(row.body).decode() for row in dead_letters(spark, {jdbc(postgres_url)!r}).collect()))
""")
    bare = str(Path(sys.base_prefix) / "bin" / "python3")
    assert subprocess.run([bare, "-c", "import popclient"], capture_output=True, check=False).returncode == 1
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "PYSPARK_PYTHON": bare},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.stdout.strip() == str(sorted(body_of(i).decode() for i in range(100))), done.stderr[-2_000:]


@pytest.fixture
def broker(postgres_url: str) -> Iterator[EmbeddedBroker]:
    with broker_with_dead_letters(postgres_url) as broker:
        yield broker


def test_archives_have_each_row_once(
    spark: SparkSession, broker: EmbeddedBroker, postgres_url: str, tmp_path: Path
) -> None:
    """A run that was killed leaves a batch without _SUCCESS, and the next one writes it again."""

    def run() -> None:
        spark_older.archive_dead_letters(spark, jdbc(postgres_url), tmp_path / "dead")
        spark_older.archive_messages(spark, broker.endpoint, "archive", TOPIC, tmp_path / TOPIC)

    def archived() -> tuple[Counter[str], Counter[str]]:
        dead, messages = (spark.read.parquet(str(tmp_path / each)).collect() for each in ("dead", TOPIC))
        return Counter(row.message_id for row in dead), Counter(bytes(row.body).decode() for row in messages)

    run()
    dead, messages = archived()
    assert (len(dead), set(dead.values())) == (DEAD, {1})
    assert (len(messages), set(messages.values())) == (DEAD, {1})
    with Producer(broker.endpoint) as producer:
        producer.send(TOPIC, "one more")
    run()
    assert archived() == (dead, messages + Counter(["one more"]))
    for folder in ("dead", TOPIC):
        (tmp_path / folder / "batch=1" / "_SUCCESS").unlink()
    run()
    assert archived() == (dead, messages + Counter(["one more"]))
    assert sorted(path.name for path in (tmp_path / TOPIC).glob("batch=*")) == ["batch=0", "batch=1"]


def test_an_export_is_a_table(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    to = tmp_path / "dead.parquet"
    said = installed("dlq", "export", "--group", GROUP, "--to", str(to), ROCKETMQ_ENDPOINTS=broker.endpoint)
    assert said.status == 0, said
    exported = spark.read.parquet(str(to))
    kinds = dict(exported.dtypes)
    assert kinds.items() <= dict(column[:2] for column in DEAD_LETTERS.columns).items()
    assert exported.count() == DEAD


def test_dead_letters_by_jdbc_are_sent_back(spark: SparkSession, broker: EmbeddedBroker, postgres_url: str) -> None:
    letters = spark_older.dead_letters(spark, jdbc(postgres_url), where=f"consumer_group = '{GROUP}'")
    mendable = dlq.classify(letters, "CASE WHEN decode(body, 'UTF-8') LIKE '%NaN%' THEN 'mendable' END")
    fixed = dlq.repair(mendable.where("class = 'mendable'"), body="replace(decode(body, 'UTF-8'), 'NaN', 'null')")
    assert dlq.plan(fixed).where("change = 'REPAIR'").count() == MENDABLE
    for _ in range(2):
        assert dlq.redrive(fixed, broker.endpoint, group=GROUP, plan_id="older").repaired == MENDABLE
    assert consumed(broker.endpoint) == MENDED
    hopeless = mendable.where("class <> 'mendable'")
    assert dlq.purge(hopeless, broker.endpoint, group=GROUP) == DEAD - MENDABLE


def test_the_page_shows_programs_that_run(
    spark: SparkSession, broker: EmbeddedBroker, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Admin(broker.endpoint) as admin:
        longest = max(admin.get_topic(TOPIC).queues, key=lambda queue: queue.max_offset)
    page = (Path(__file__).parents[3] / "docs" / "spark-older.md").read_text()
    for program in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        replaced = program.replace("jdbc:postgresql://host/popmq?user=reader", jdbc(postgres_url))
        replaced = replaced.replace("127.0.0.1:8081", broker.endpoint)
        exec(replaced.replace(", 0), 0, 1_000", f", {longest.id}), 0, {longest.max_offset}"), {"spark": spark})
    said = capsys.readouterr().out
    assert re.search(rf"\|\s*{DEAD}\|", said), "the number of dead letters with their reason"
    assert len(re.findall(r"flight \d+: delay", said)) == min(longest.max_offset, 20)
