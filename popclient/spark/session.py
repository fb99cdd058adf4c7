"""A Spark session of this machine that starts quickly, runs this Python in its workers, and keeps quiet."""

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

# Two threads; three tries per task, because a plain local[2] fails a job at its first lost worker.
MASTER = "local[2,3]"
_LOGGING = (Path(__file__).parent / "log4j2.properties").as_uri()
STARTS_MAX = 3
_SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # Short jobs: the quick compiler and the small collector start the JVM in half the time.
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={_LOGGING}",
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
    """Start a local Spark session, or return the one that runs.

    memory: of the driver's JVM, in Spark's notation. settings: any Spark settings; they win over those made here.
    Raises `JavaMissing` where no Java of version 17 or newer is found, and `ModuleNotFoundError` without PySpark.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise ModuleNotFoundError("Spark is not installed; get it with: pip install 'popmq[spark]'") from None
    if home := java_home():
        os.environ["JAVA_HOME"] = str(home)
    # Otherwise the workers run whatever `python3` is on the PATH, without the packages of this one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen = {**_SETTINGS, "spark.driver.memory": memory, **(settings or {})}
    builder = SparkSession.builder.appName(app_name).master(master).config(map=dict(chosen))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about the version of pandas, which nothing here uses
        warnings.simplefilter("ignore", ResourceWarning)  # PySpark leaves the pipes of a start that failed open
        return _started(builder)


def _started(builder: SparkSession.Builder) -> SparkSession:
    """PySpark forks to start Java. Beside gRPC's threads, a client's or a server's, the fork may die before it has."""
    from pyspark.errors import PySparkRuntimeError

    for tries_left in reversed(range(STARTS_MAX)):
        try:
            return builder.getOrCreate()
        except PySparkRuntimeError as failure:
            if failure.getCondition() != "JAVA_GATEWAY_EXITED" or not tries_left:
                raise
    raise AssertionError("unreachable")
