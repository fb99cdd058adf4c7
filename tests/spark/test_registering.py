"""`register` in a session of this machine (tests/spark/cluster has those of a cluster)."""

from __future__ import annotations

import re
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

from popclient.spark import ClusterUnfit, register
from popclient.spark.cluster import arriving, registering
from popclient.spark.versions import minor, version
from tests.support.waiting import soon

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

FIT_EXECUTORS = 5


def test_a_session_may_register_again_with_a_wheel(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a wheel of --py-files: a cluster's Spark, but not this one, refuses a second file of its name."""
    wheel = tmp_path / "popmq-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sent_by_test_registering.py", "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(registering, "__spec__", SimpleNamespace(loader=SimpleNamespace(archive=str(wheel))))
    sent: list[str] = []
    add = spark.sparkContext.addPyFile
    monkeypatch.setattr(spark.sparkContext, "addPyFile", lambda path: (sent.append(path), add(path)))
    for _ in range(2):
        register(spark.newSession())
    assert [Path(each).name for each in sent] == ["popmq-0.1.0-py3-none-any.zip"]
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sent_by_test_registering").__name__)
    assert found.collect() == ["sent_by_test_registering"]


def test_threads_may_register_at_once(spark: SparkSession) -> None:
    sessions = [spark.newSession() for _ in range(4)]
    begin = threading.Barrier(len(sessions))

    def registered(session: SparkSession) -> None:
        begin.wait()
        register(session)

    with ThreadPoolExecutor(len(sessions)) as threads:
        assert list(threads.map(registered, sessions)) == [None] * len(sessions)


@pytest.mark.skipif(minor(version()) > (4, 0), reason="a newer Spark replaces a format that it has found by itself")
def test_spark_40_would_run_another_python(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o700)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(other))
    said = f"has found the format popmq with {sys.executable} and keeps it, so it would not run {other}. The way out: "
    with pytest.raises(ClusterUnfit, match=re.escape(said)):
        register(spark.newSession())


def test_spark_connect_is_refused() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ValueError, match=r"register\(spark\) is not for a session of Spark Connect, .* do not call it"):
        register(session)


class Cluster:
    """In place of a cluster: each job looks at the next executors of `jobs`, and then at none."""

    def __init__(self, jobs: list[list[int]]) -> None:
        self.jobs = jobs
        self.looks: list[bool] = []
        self.pauses: list[float] = []
        self.now = 0.0

    def look(self, context: SparkContext, patience: float, *, others: bool = False) -> list[dict[str, str]]:
        self.looks.append(others)
        self.now += 1
        answering = self.jobs.pop(0) if self.jobs else [0]
        return [{"host": f"node{number % 2}", "process": str(number)} for number in answering]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Cluster, set[str]]]:
    """What `_machines` finds in a cluster of FIT_EXECUTORS, with the executors that answer in each job."""

    def asked(*jobs: list[int]) -> tuple[Cluster, set[str]]:
        cluster = Cluster([*jobs])
        monkeypatch.setattr(registering, "_inspect", cluster.look)
        monkeypatch.setattr(registering, "_executors", lambda context: FIT_EXECUTORS)
        monkeypatch.setattr(registering, "time", cluster)
        found = registering._machines(SimpleNamespace(), 300)  # type: ignore[arg-type]
        return cluster, {str(each["process"]) for each in found}

    return asked


def test_it_asks_until_each_executor_has_answered(asked: Callable[..., tuple[Cluster, set[str]]]) -> None:
    cluster, found = asked([0, 0, 1], [0, 1], [2, 3], [4], [5])
    assert found == {"0", "1", "2", "3", "4"}
    assert cluster.looks == [False, True, True, True]
    assert cluster.pauses == [1.0] * 3, "busy executors have no time for more looks"


def test_it_does_not_ask_for_long(
    asked: Callable[..., tuple[Cluster, set[str]]], caplog: pytest.LogCaptureFixture
) -> None:
    cluster, found = asked([0, 1])
    assert found == {"0", "1"}
    assert 1 < len(cluster.looks) <= registering._OTHERS_S + 1
    assert "3 executors were busy for 10 s" in caplog.text


LOST = "ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: Container was preempted"


@pytest.mark.parametrize(
    ("said", "others", "raises"), [(LOST, True, False), (LOST, False, True), ("no module", True, True)]
)
def test_an_executor_that_is_lost_in_a_later_look_is_left_out(
    spark: SparkSession, said: str, others: bool, raises: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No executor of this machine goes away on demand: the task fails with what Spark says then."""

    def look(packages: tuple[str, ...]) -> dict[str, str]:
        raise RuntimeError(said)

    monkeypatch.setattr(arriving, "inspect", look)
    with pytest.raises(ClusterUnfit) if raises else nullcontext():
        assert registering._inspect(spark.sparkContext, 300, others=others) == []


def test_executors_that_do_not_end_have_answered(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One task ends, and the time is over before the others do."""
    over = tmp_path / "over"

    def look(packages: tuple[str, ...]) -> dict[str, str]:
        from pyspark import TaskContext

        while TaskContext.get().partitionId() and not over.exists():  # type: ignore[union-attr]
            time.sleep(0.02)
        return {}

    monkeypatch.setattr(arriving, "inspect", look)
    monkeypatch.setattr(registering, "threading", SimpleNamespace(Event=threading.Event, Timer=AfterATask))
    monkeypatch.setattr(AfterATask, "context", spark.sparkContext, raising=False)
    try:
        with pytest.raises(ClusterUnfit, match=r"executors answered, but only 1 of 4 tasks .* ended within 300 s"):
            register(spark.newSession())
    finally:
        over.touch()


class AfterATask(threading.Thread):
    """In place of a timer: fires when a task of the job has ended."""

    context: SparkContext

    def __init__(self, seconds: float, fires: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._fires = fires

    def run(self) -> None:
        soon(self._has_ended)
        self._fires()

    def cancel(self) -> None:
        self.join()

    def _has_ended(self) -> bool:
        tracker = self.context.statusTracker()
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
        return any(each is not None and each.numCompletedTasks for each in stages)
