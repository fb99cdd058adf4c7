"""The mode `lease` on a real Spark: batches that come again as they were, and acks that wait for Spark's commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.errors import PySparkException

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
def job(spark: SparkSession, broker: popserver.EmbeddedBroker, tmp_path: Path) -> Job:
    return Job(spark, tmp_path, broker.endpoint, "bookings", mode="lease", leaseOwner="job")


@pytest.mark.row("O5")
@pytest.mark.user("U40")
def test_a_batch_that_is_not_committed_comes_again_and_one_that_is_was_acked(
    job: Job, broker: popserver.EmbeddedBroker
) -> None:
    sent = send(broker.endpoint, "bookings", range(1_200))
    query = job.start(every="1 hour", maxMessagesPerTrigger=500)
    wait_for(lambda: query.lastProgress is not None)  # written when the batch is committed
    query.stop()
    assert open_messages(broker.endpoint, "bookings") == (700, 500, 0)
    replayed = job.batches.pop(forget_last_commit(job.folder / "checkpoint"))
    assert job.run(maxMessagesPerTrigger=500) == sent
    assert replayed == job.batches[0]
    assert [len(batch) for _, batch in sorted(job.batches.items())] == [500, 500, 200]
    assert open_messages(broker.endpoint, "bookings") == (0, 0, 0)  # the last batch too


def test_a_refusal_reaches_the_user(job: Job) -> None:
    with pytest.raises(PySparkException, match="option leaseOwner=' ' is not allowed; it is blank"):
        job.start(leaseOwner=" ")
    with pytest.raises(PySparkException, match="option mode='lease' is for streams"):
        job.spark.read.format("popmq").options(**job.options).load().count()
