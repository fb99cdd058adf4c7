"""Dead letters that Spark sends back: each once, whatever happens to Spark; what became of them, in the lineage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from pyspark.errors import PySparkException

import popserver
from popclient.admin import Admin
from popclient.spark import dlq
from tests.spark.dying import DEAD, MENDABLE, MENDED, broker_with_dead_letters, consumed, dead_in, sent_by_plan
from tests.spark.redrive_driver import GROUP, nightly
from tests.spark.sent import forget_last_commit
from tests.spark.stream_job import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/popmq.db"


@pytest.fixture
def broker(url: str) -> Iterator[popserver.EmbeddedBroker]:
    with broker_with_dead_letters(url) as broker:
        yield broker


@pytest.mark.row("O7")
@pytest.mark.row("L12")
def test_repaired_once_archived_and_joined(
    spark: SparkSession, broker: popserver.EmbeddedBroker, url: str, tmp_path: Path
) -> None:
    """Of 100 dead letters 60 go back mended and 40 are archived; run again, or replayed, nothing moves."""
    [done] = nightly(spark, url, broker.endpoint, tmp_path, rate=None)
    assert (done.plan_id, done.redriven, done.repaired, done.skipped) == ("nightly-0", MENDABLE, MENDABLE, 0)
    forget_last_commit(tmp_path / "checkpoint")
    [again] = nightly(spark, url, broker.endpoint, tmp_path, rate=None)
    assert again == done
    assert nightly(spark, url, broker.endpoint, tmp_path, rate=None) == []

    archived = spark.read.parquet(str(tmp_path / "archive"))
    assert archived.select("id").distinct().count() == archived.count() == DEAD - MENDABLE
    assert dlq.read(spark, url).count() == DEAD - MENDABLE

    lineage = dlq.lineage(spark, url, plan_id="nightly-0")
    assert counted(lineage) == {("REPAIR", "mendable", "REDRIVEN", "READY"): MENDABLE}
    letters = dlq.read(spark, url, redriven_too=True).where("plan_id = 'nightly-0'")
    joined = lineage.join(letters, lineage.dead_letter_id == letters.id)
    assert joined.where(lineage.message_id == letters.message_id).count() == MENDABLE

    assert consumed(broker.endpoint) == MENDED
    assert counted(dlq.lineage(spark, url)) == {("REPAIR", "mendable", "REDRIVEN", "COMMIT"): MENDABLE}


def counted(lineage: object) -> dict[tuple[str, ...], int]:
    rows = lineage.groupBy("change", "reason", "state", "outcome").count().collect()  # type: ignore[attr-defined]
    return {tuple(row)[:4]: row["count"] for row in rows}


@pytest.mark.row("O7")
def test_unchanged_to_a_topic_and_purged(spark: SparkSession, broker: popserver.EmbeddedBroker, url: str) -> None:
    """Without a repair and with a target they are ordinary messages there; another plan finds nothing to send."""
    with Admin(broker.endpoint) as admin:
        admin.create_topic("elsewhere")
    dead = dlq.read(spark, url, consumerGroup=GROUP)
    some = dead.where("queue_offset % 2 = 0")
    count = some.count()
    done = dlq.redrive(some, broker.endpoint, group=GROUP, plan_id="away", target="elsewhere", reason="why not")
    assert (done.redriven, done.repaired, done.skipped) == (count, 0, 0)
    gone = dlq.read(spark, url, redriven_too=True).where("redrive_state IS NOT NULL")
    other = dlq.redrive(gone, broker.endpoint, group=GROUP, plan_id="other")
    assert (other.redriven, other.skipped, sum(other.notes.values())) == (0, count, count)
    with Admin(broker.endpoint) as admin:
        assert admin.get_topic("elsewhere").message_count == count
    rest = dlq.read(spark, url)
    assert rest.count() == DEAD - count
    assert dlq.purge(rest, broker.endpoint, group=GROUP) == DEAD - count
    assert dlq.read(spark, url).count() == 0


def test_a_quiet_night_has_a_plan_too(spark: SparkSession, broker: popserver.EmbeddedBroker, url: str) -> None:
    nothing = dlq.read(spark, url, consumerGroup=GROUP).where("false")
    done = dlq.redrive(nothing, broker.endpoint, group=GROUP, plan_id="nightly-2")
    assert done == dlq.Redriven("nightly-2")
    assert dlq.lineage(spark, url, plan_id="nightly-2").count() == 0
    with pytest.raises(PySparkException, match=r"did you mean nightly-2\?"):
        dlq.lineage(spark, url, plan_id="nightly-3").count()


def test_a_refusal_says_why(spark: SparkSession, broker: popserver.EmbeddedBroker, url: str) -> None:
    dead = dlq.read(spark, url)
    with pytest.raises(
        PySparkException, match=f"is of group '{GROUP}', not of 'departures'; a plan or a purge is for one group"
    ):
        dlq.redrive(dead, broker.endpoint, group="departures", plan_id="p")
    with pytest.raises(PySparkException, match=f"is of group '{GROUP}', not of 'departures'"):
        dlq.purge(dead, broker.endpoint, group="departures")
    assert dead_in(broker.endpoint) == DEAD


@pytest.mark.slow
@pytest.mark.row("O7")
@pytest.mark.timeout(900)
def test_a_driver_that_is_killed_while_it_sends(broker: popserver.EmbeddedBroker, url: str, tmp_path: Path) -> None:
    """`kill -9` in the middle of a plan: the next run goes on, and every message has gone back once."""
    driver = started(url, broker.endpoint, tmp_path, rate=30)
    try:
        wait_for(lambda: sent_by_plan(broker.endpoint, driver) >= 10)
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
    assert 0 < sent_by_plan(broker.endpoint) < MENDABLE
    assert started(url, broker.endpoint, tmp_path, rate=1_000).wait() == 0
    assert sent_by_plan(broker.endpoint) == MENDABLE
    assert consumed(broker.endpoint) == MENDED


def started(url: str, endpoint: str, folder: Path, rate: float) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.spark.redrive_driver", url, endpoint, str(folder), str(rate)]
    return subprocess.Popen(command, process_group=0)
