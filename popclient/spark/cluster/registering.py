"""Makes the format `popmq` known to a session on a cluster, with the Python of its executors, and checks them first.

A session finds the format by itself too, but then its executors run the driver's Python, and get no `--py-files`.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from popclient.spark.cluster import arriving
from popclient.spark.cluster.fitness import (
    PACKAGES,
    WAY_OUT,
    ClusterUnfit,
    failed,
    no_executor,
    refuse_other_spark,
    unfit,
)

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

PATIENCE_S: Final = 300.0  # a packed environment may be large
# Spark imports from archives of these kinds alone.
_IMPORTED: Final = (".zip", ".egg", ".jar")


def register(spark: SparkSession, *, patience: float = PATIENCE_S) -> None:
    """Makes the format `popmq` known to this session, for the Python that PYSPARK_PYTHON or spark.pyspark.python names.

    Runs a small job that looks at the executors of this moment. A wheel of PopMQ given with --py-files is made known to
    them. patience: seconds to wait for executors.
    Raises `ClusterUnfit` if an executor lacks PopMQ or a package, or has another Spark or Python, or if none comes; and
    `ValueError` for a driver whose Spark is of another version.
    """
    import pyspark

    from pyspark_popmq import DefaultSource

    refuse_other_spark(pyspark.__version__)
    context = spark.sparkContext
    _check_program(context.pythonExec)
    _send_wheel(context)
    if (error := unfit(_machines(context, patience), pyspark.__version__)) is not None:
        raise error
    spark.dataSource.register(DefaultSource)


def _check_program(python: str) -> None:
    """Spark plans in the driver with the executors' Python."""
    if shutil.which(python) is None:
        unpack = "; unpack the archive of --archives there too" if python.startswith(".") else ""
        raise ClusterUnfit(
            f"Spark plans with the executors' Python in the driver too, and {python} is no program in {Path.cwd()}, the"
            f" driver's folder{unpack}. The way out: {WAY_OUT}"
        )


def _send_wheel(context: SparkContext) -> None:
    """Spark gives a wheel to the executors, but does not import from it: they get the same file under another name."""
    archive = getattr(__spec__.loader, "archive", None)
    if archive is None or Path(archive).suffix in _IMPORTED:
        return
    folder = tempfile.mkdtemp(prefix="popmq-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # later executors get it from here
    context.addPyFile(str(shutil.copyfile(archive, Path(folder, f"{Path(archive).stem}.zip"))))


def _machines(context: SparkContext, patience: float) -> list[dict[str, str | None]]:
    """What the executors of this moment are and have."""
    from py4j.protocol import Py4JError
    from pyspark.cloudpickle import register_pickle_by_value, unregister_pickle_by_value
    from pyspark.errors import PySparkException

    look, packages = arriving.look, tuple(PACKAGES)
    # More tasks than cores, so that every executor gets one.
    tasks = 2 * max(context.defaultParallelism, 2)
    register_pickle_by_value(arriving)  # type: ignore[no-untyped-call]
    try:
        with _limited(context, patience) as is_over:
            found: list[dict[str, str | None]] = (
                context.parallelize(range(tasks), tasks).map(lambda _: look(packages)).collect()
            )
    except (Py4JError, PySparkException) as failure:
        raise (no_executor(patience) if is_over.is_set() else failed(str(failure))) from failure
    finally:
        unregister_pickle_by_value(arriving)  # type: ignore[no-untyped-call]
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
