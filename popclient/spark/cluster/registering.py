"""Makes the format `popmq` known to a session on a cluster, with the Python of its executors, and checks them first.

A session finds the format by itself too, but then its executors run the driver's Python, and get no `--py-files`.
"""

from __future__ import annotations

import atexit
import logging
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from popclient.spark.cluster import arriving
from popclient.spark.cluster.fitness import (
    PACKAGES,
    Machine,
    failed,
    found_elsewhere,
    is_lost,
    no_program,
    not_ended,
    unfit,
)
from popclient.spark.cluster.sending import send_by_value
from popclient.spark.versions import refuse_other_spark

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PATIENCE_S: Final = 300.0  # a packed environment may be large
# How long it looks for executors that have not answered yet, when others have: they may be busy.
_OTHERS_S: Final = 10.0
_INSPECT_AGAIN_S: Final = 1.0
# Spark imports from archives of these kinds alone.
_IMPORTED: Final = (".zip", ".egg", ".jar")
# The wheels that the contexts have given to their executors.
_sent: WeakKeyDictionary[SparkContext, set[str]] = WeakKeyDictionary()
_sending = threading.Lock()
log = logging.getLogger("popclient.spark")


def register(spark: SparkSession, *, patience: float = PATIENCE_S) -> None:
    """Makes the format `popmq` known to this session, for the Python that PYSPARK_PYTHON or spark.pyspark.python names.

    Runs small jobs that look at the executors of this moment, and leaves out those that stay busy for 10 s. A wheel of
    PopMQ given with --py-files is made known to them. patience: seconds to wait for executors.
    Raises `ClusterUnfit` if an executor lacks PopMQ or a package, or has another Spark or Python, or if none comes; and
    `ValueError` for a Spark that is none of 4.0 to 4.3, and for a session of Spark Connect.
    """
    refuse_other_spark()
    from pyspark.errors import PySparkException

    from pyspark_popmq import DefaultSource  # Spark 3.5 cannot import it

    _refuse_connect(spark)
    context = spark.sparkContext
    if shutil.which(context.pythonExec) is None:
        raise no_program(context.pythonExec, str(Path.cwd()))
    _send_wheel(context)
    if (error := unfit(_machines(context, patience))) is not None:
        raise error
    try:
        spark.dataSource.register(DefaultSource)
    except PySparkException as there:
        if there.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        _require_found_for(context)


def _require_found_for(context: SparkContext) -> None:
    """Spark 4.0 does not replace a format that it has found by itself, with the driver's Python. Raises `ClusterUnfit`
    if that is not the one of the executors."""
    jvm: Any = context._jvm
    asked = jvm.java.lang.System.getenv
    found = asked("PYSPARK_DRIVER_PYTHON") or asked("PYSPARK_PYTHON") or "python3"
    if found != context.pythonExec:
        raise found_elsewhere(found, context.pythonExec)


def _refuse_connect(spark: SparkSession) -> None:
    """By its name: the class itself needs packages that other sessions do without."""
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        raise ValueError(
            "register(spark) is not for a session of Spark Connect, which runs nothing here; do not call it. Install"
            " PopMQ in the Python of the Connect server and of its executors; then the format popmq is known to each"
            " session"
        )


def _send_wheel(context: SparkContext) -> None:
    """Spark gives a wheel to the executors, but does not import from it: they get the same file under another name.

    Once, because Spark refuses a second file of that name.
    """
    archive = getattr(__spec__.loader, "archive", None)
    if archive is None or Path(archive).suffix in _IMPORTED:
        return
    with _sending:
        sent = _sent.setdefault(context, set())
        if archive in sent:
            return
        folder = tempfile.mkdtemp(prefix="popmq-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # later executors get it from here
        context.addPyFile(str(shutil.copyfile(archive, Path(folder, f"{Path(archive).stem}.zip"))))
        sent.add(archive)


def _machines(context: SparkContext, patience: float) -> list[Machine]:
    """What the executors of this moment are and have. Spark chooses who gets a task, so it is asked again."""
    found = _inspect(context, patience)
    deadline = time.monotonic() + _OTHERS_S
    while (missing := _executors(context) - len({(each["host"], each["process"]) for each in found})) > 0:
        time.sleep(_INSPECT_AGAIN_S)
        if (left := deadline - time.monotonic()) <= 0:
            log.warning("%d executors were busy for %g s and are not checked", missing, _OTHERS_S)
            break
        found += _inspect(context, left, others=True)
    return found


def _executors(context: SparkContext) -> int:
    """How many the JVM knows now, besides the driver; a local session has none."""
    known: int = context._jsc.sc().getExecutorMemoryStatus().size()
    return known - 1


def _inspect(context: SparkContext, patience: float, *, others: bool = False) -> list[Machine]:
    """What the executors say that Spark gives a task to. others: some have answered before, so none needs to."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    inspect, packages, ended = arriving.inspect, tuple(PACKAGES), context.accumulator(0)

    def answer(_: int) -> Machine:
        ended.add(1)
        return inspect(packages)

    # Several for each: an executor that is fast gets more than one.
    tasks = 4 * max(_executors(context), 1)
    send_by_value()
    try:
        with _limited(context, patience) as is_over:
            found: list[Machine] = context.parallelize(range(tasks), tasks).map(answer).collect()
    except (Py4JError, PySparkException) as failure:
        if others and (is_over.is_set() or is_lost(str(failure))):
            return []
        if not is_over.is_set():
            raise failed(str(failure)) from failure
        raise not_ended(patience, ended.value, tasks) from failure
    return found


@contextmanager
def _limited(context: SparkContext, patience: float) -> Iterator[threading.Event]:
    """Cancels the jobs of the block after `patience` seconds; then the event is set."""
    tag, is_over = f"popmq-{uuid.uuid4()}", threading.Event()

    def cancel() -> None:
        is_over.set()
        context.cancelJobsWithTag(tag)

    alarm = threading.Timer(patience, cancel)
    alarm.daemon = True
    context.addJobTag(tag)
    alarm.start()
    try:
        yield is_over
    finally:
        alarm.cancel()
        context.removeJobTag(tag)
