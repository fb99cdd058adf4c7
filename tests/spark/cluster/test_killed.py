"""`kill -9` of an executor, of a worker and of the driver in the middle of a batch: the guarantees of one machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import popserver
from tests.spark.cluster.gate import Gate
from tests.spark.cluster.submitting import Driver, Submitting
from tests.spark.stream_job import UNTIL_MISSED, assert_each_once, send_numbers
from tests.support.spark_cluster import Cluster

MESSAGES = 350  # four batches
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate() as gate:
        yield gate


@pytest.fixture(autouse=True)
def whole(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.restore()


@pytest.mark.row("O5")
@pytest.mark.parametrize("mode", ["queue", "journal"])
def test_reading(mode: str, submitting: Submitting, installed: Path, gate: Gate, tmp_path: Path) -> None:
    """Each batch has another death: of an executor, of a worker with its executor, of the driver."""
    cluster = submitting.cluster
    shared = cluster.folders.shared / tmp_path.name
    shared.mkdir()
    with popserver.embedded(manual_clock=True) as broker:
        send_numbers(broker.endpoint, MESSAGES)

        def started() -> Driver:
            arguments = (mode, broker.endpoint, submitting.folder, shared, gate.port)
            return submitting.start("reading_job.py", *arguments, PYSPARK_PYTHON=str(installed))

        driver = started()
        first = gate.next()
        os.kill(first.executor, signal.SIGKILL)
        gate.open(first.batch)
        second = gate.next()
        cluster.worker_of(second.executor).kill()
        gate.open(second.batch)
        third = gate.next()
        driver.kill()
        gate.open()
        assert first.batch < second.batch < third.batch
        cluster.restore()
        broker.clock.advance(UNTIL_MISSED)
        started().done()
        assert_each_once(broker.endpoint, submitting.folder, MESSAGES)
