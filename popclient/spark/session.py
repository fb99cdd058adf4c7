"""A local Spark session that starts fast, runs this Python in its workers, and logs little."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from popclient.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Two threads, and three tries for each task: local[2] would fail a job at its first lost worker.
MASTER = "local[2,3]"
STARTS_MAX = 3
_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(
    app_name: str = "popmq",
    *,
    master: str = MASTER,
    memory: str = "1g",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Starts a local Spark session, or returns the running one.

    memory: of the driver's JVM, in Spark's notation. settings: Spark settings, which override those of this function.
    Raises `JavaMissing` without a Java of version 17 or newer, and `ModuleNotFoundError` without PySpark.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise ModuleNotFoundError("Spark is not installed; get it with: pip install 'popmq[spark]'") from None
    if home := java_home():
        os.environ["JAVA_HOME"] = str(home)
    # Without it, the workers would run the `python3` of the PATH, without the packages of this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen = {
        **_SETTINGS,
        "spark.driver.extraJavaOptions": _java_options(),
        "spark.driver.memory": memory,
        **(settings or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(master).config(map=dict(chosen))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about the version of pandas, which is not used here
        warnings.simplefilter("ignore", ResourceWarning)  # PySpark leaves the pipes of a start that failed open
        return _started(builder)


def _java_options() -> str:
    """With this compiler and this collector the JVM starts in half the time; they suit short jobs."""
    fast = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    logging = Path(__file__).absolute().with_name("log4j2.properties")
    # In a wheel that is not installed it is no file; then Spark logs as it does without us.
    return f"{fast} -Dlog4j2.configurationFile={logging.as_uri()}" if logging.is_file() else fast


def _started(builder: SparkSession.Builder) -> SparkSession:
    """Tries several times: PySpark forks to start Java, and beside gRPC's threads the fork may die before."""
    from pyspark.errors import PySparkRuntimeError

    for tries_left in reversed(range(STARTS_MAX)):
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as failure:
            if failure.getCondition() != "JAVA_GATEWAY_EXITED" or not tries_left:
                raise
    raise AssertionError("unreachable")
