"""The mode `journal` on a real Spark: a push consumer fills files, the stream reads them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import StreamingQueryException

import popserver
from tests.spark.sent import forget_last_commit
from tests.spark.stream_job import Job, open_messages, send, wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name of its own per test."""
    return request.node.name.replace("_", "-")[5:65]


@pytest.fixture
def job(spark: SparkSession, broker: popserver.EmbeddedBroker, topic: str, tmp_path: Path) -> Job:
    more = {"mode": "journal", "journalPath": str(tmp_path / "journal"), "quietPeriod": "1500ms"}
    return Job(spark, tmp_path, broker.endpoint, topic, **more)


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


# ---- What goes wrong ----


def test_a_journal_that_cannot_be_written_fails_the_query_and_acks_nothing(
    job: Job, broker: popserver.EmbeddedBroker, topic: str
) -> None:
    sent = send(broker.endpoint, topic, range(1))
    query = job.start(every="200 milliseconds")
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
        ({"leaseOwner": "me"}, "option leaseowner='me' is unknown; allowed are mode, topic"),
        ({"filterType": "REGEX"}, "option filterType='REGEX' is not allowed; give TAG or SQL92"),
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
