"""`kill -9` of an executor, of a worker and of the driver in the middle of a batch: the guarantees of one machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import popserver
from popclient.errors import NotFound
from tests.spark.cluster.gate import Gate
from tests.spark.cluster.submitting import PATIENCE_S, Driver, Submitting
from tests.spark.dying import MENDABLE, MENDED, broker_with_dead_letters, consumed, sent_by_plan
from tests.spark.sent import bodies
from tests.spark.spark_cluster import Cluster
from tests.spark.stream_job import UNTIL_MISSED, assert_each_once, send_numbers, wait_for
from tests.spark.test_sink_killed import EVERY_ONE_ONCE

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
@pytest.mark.parametrize("mode", ["queue", "lease", "journal"])
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


@pytest.mark.row("O6")
def test_writing(submitting: Submitting, installed: Path, gate: Gate) -> None:
    """An executor dies, then the driver; the write that runs again with its name adds what is missing."""
    with popserver.embedded() as broker:

        def started() -> Driver:
            arguments = (broker.endpoint, "sent", EVERY_ONE_ONCE.total(), gate.port)
            return submitting.start("writing_job.py", *arguments, PYSPARK_PYTHON=str(installed))

        driver = started()
        wait_for(lambda: some_are_there(broker.endpoint), PATIENCE_S)
        os.kill(gate.next().executor, signal.SIGKILL)
        gate.next()
        gate.next()
        driver.kill()
        assert 0 < bodies(broker.endpoint, "sent").total() < EVERY_ONE_ONCE.total()
        gate.open()
        started().done()
        assert bodies(broker.endpoint, "sent") == EVERY_ONE_ONCE


def some_are_there(endpoint: str) -> bool:
    try:
        return bodies(endpoint, "sent").total() > 0
    except NotFound:
        return False


@pytest.mark.row("O7")
def test_dead_letters(database_url: str, submitting: Submitting, installed: Path, tmp_path: Path) -> None:
    """The nightly work: all executors die while it sends, then the driver; what could be repaired is back once."""
    with broker_with_dead_letters(database_url) as broker:

        def started(rate: int) -> Driver:
            arguments = (database_url, broker.endpoint, tmp_path, rate)
            return submitting.start("nightly_job.py", *arguments, PYSPARK_PYTHON=str(installed))

        driver = started(rate=1)
        wait_for(lambda: sent_by_plan(broker.endpoint, driver.process) >= 5, PATIENCE_S)
        for worker in submitting.cluster.workers:
            for executor in worker.executors:
                os.kill(executor, signal.SIGKILL)
        before = sent_by_plan(broker.endpoint)
        wait_for(lambda: sent_by_plan(broker.endpoint, driver.process) > before + 5, PATIENCE_S)
        driver.kill()
        assert 0 < sent_by_plan(broker.endpoint) < MENDABLE
        started(rate=1_000).done()
        assert sent_by_plan(broker.endpoint) == MENDABLE
        assert consumed(broker.endpoint) == MENDED
