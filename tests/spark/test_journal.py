"""The mode `journal` on a real Spark: a push consumer fills files, the stream reads them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import StreamingQueryException

import popserver
from popclient import Message, Producer
from popclient.admin import Admin
from tests.spark.sent import forget_last_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@pytest.fixture(scope="module")
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of its own per test."""
    return request.node.name.replace("_", "-")[5:65]


class Job:
    """A query from a topic through a journal into a list of batches."""

    def __init__(self, spark: SparkSession, endpoint: str, topic: str, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {
            "mode": "journal",
            "endpoints": endpoint,
            "topic": topic,
            "consumerGroup": f"group-of-{topic}",
            "journalPath": str(folder / "journal"),
            "quietPeriod": "1500ms",
        }
        self.batches: dict[int, list[str]] = {}

    def start(self, *, available_now: bool = True, **more: Any) -> StreamingQuery:
        frame = self.spark.readStream.format("popmq").options(**{**self.options, **more}).load()
        writer = frame.writeStream.foreachBatch(self._sink).option(
            "checkpointLocation", str(self.folder / "checkpoint")
        )
        trigger = {"availableNow": True} if available_now else {"processingTime": "200 milliseconds"}
        return writer.trigger(**trigger).start()

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


@pytest.fixture
def job(spark: SparkSession, broker: popserver.EmbeddedBroker, topic: str, tmp_path: Path) -> Job:
    return Job(spark, broker.endpoint, topic, tmp_path)


def send(endpoint: str, topic: str, bodies: range, **fields: Any) -> list[str]:
    with Producer(endpoint) as producer:
        producer.send_many([Message(topic, f"{i:05}", **fields) for i in bodies]).raise_for_failures()
    return [f"{i:05}" for i in bodies]


def open_messages(endpoint: str, topic: str) -> tuple[int, int, int]:
    """What the job's group has ready, in flight, waiting."""
    with Admin(endpoint) as admin:
        lags = admin.list_lag(f"group-of-{topic}", topic)
    return (
        sum(each.ready for each in lags),
        sum(each.inflight for each in lags),
        sum(each.waiting_retry for each in lags),
    )


@pytest.mark.row("O5")
def test_everything_once_over_many_runs(job: Job, broker: popserver.EmbeddedBroker, topic: str) -> None:
    sent = send(broker.endpoint, topic, range(1_000), keys="a", tag="b", properties={"c": "d"})
    assert job.run(maxMessagesPerTrigger=400) == sent
    assert len(job.batches) >= 3
    assert all(len(batch) <= 400 for batch in job.batches.values())
    assert open_messages(broker.endpoint, topic) == (0, 0, 0)  # the last batch too
    sent += send(broker.endpoint, topic, range(1_000, 1_010))
    assert job.run() == sent


@pytest.mark.row("O5")
def test_a_replay_of_the_last_batch_is_the_same(job: Job, broker: popserver.EmbeddedBroker, topic: str) -> None:
    """Though the messages were acked long ago, and other ones have come."""
    sent = send(broker.endpoint, topic, range(300))
    assert job.run() == sent
    last = forget_last_commit(job.folder / "checkpoint")
    replayed = job.batches.pop(last)
    sent += send(broker.endpoint, topic, range(300, 305))
    assert job.run() == sent
    assert job.batches[last] == replayed


def wait_for(fact: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---- What goes wrong ----


def test_a_journal_that_cannot_be_written_fails_the_query_and_acks_nothing(
    job: Job, broker: popserver.EmbeddedBroker, topic: str
) -> None:
    sent = send(broker.endpoint, topic, range(1))
    query = job.start(available_now=False)
    wait_for(lambda: job.rows == sent)
    shutil.rmtree(job.options["journalPath"])
    send(broker.endpoint, topic, range(1, 2))
    with pytest.raises(StreamingQueryException, match=r"journalPath='.*/journal' cannot be written: .*not acked"):
        query.awaitTermination(60)
    assert open_messages(broker.endpoint, topic) != (0, 0, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"journalPath": "hdfs://name/folder"},
            "option journalPath='hdfs://name/folder' is not allowed; give a folder",
        ),
        ({"journalMaxBytes": "0"}, "option journalMaxBytes='0' is not allowed; give a whole number from 1"),
        ({"quietPeriod": "soon"}, "option quietPeriod='soon' is not allowed; give a duration"),
        ({"leaseOwner": "me"}, "option leaseowner='me' is unknown here; allowed are mode, topic"),
        ({"filterType": "SQL"}, "option filterType='SQL' is not allowed; give TAG or SQL92"),
    ],
)
def test_a_wrong_option_is_named(job: Job, options: dict[str, str], words: str) -> None:
    with pytest.raises(PySparkException) as refused:
        job.start(**options)
    assert words in str(refused.value)


@pytest.mark.parametrize("name", ["topic", "consumerGroup", "journalPath"])
def test_a_missing_option_is_named(job: Job, name: str) -> None:
    del job.options[name]
    with pytest.raises(PySparkException, match=f"option {name} is missing"):
        job.start()


def test_a_batch_is_refused(job: Job) -> None:
    with pytest.raises(PySparkException, match="option mode='journal' is for streams"):
        job.spark.read.format("popmq").options(**job.options).load().count()
