"""What the machines of a cluster need to run PopMQ's tasks, and the sentence for one that has it not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from popclient._version import VERSION

SPARK: Final = "4.3"  # as in pyproject.toml
# The packages of each executor, with the oldest first number that will do.
PACKAGES: Final = {"pyarrow": 18, "grpcio": 1, "protobuf": 6}
GUIDE: Final = "docs/spark-cluster.md shows how"
WAY_OUT: Final = (
    "set PYSPARK_PYTHON to an environment with popmq[executor] that every node has, or ship one with --archives,"
    f" and call popclient.spark.register(spark); {GUIDE}"
)
# What Spark says, in whichever exception.
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"')
_OTHER_PYTHON: Final = re.compile(r"Python in worker has different version: (\S+) than that in driver: ([\d.]+)")
# A line that Python has raised; the task that Spark has lost; the first line.
_REASONS: Final = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (r"^((?:\w+\.)*\w+(?:Error|Exception): .+)$", r"most recent failure: (.+)", r"\A\s*(.+)")
)


class ClusterUnfit(RuntimeError):
    """Executors cannot run PopMQ's tasks: the error names machine, Python and what is missing, and the way out."""


def refuse_other_spark(version: str) -> None:
    """Raises `ValueError` for a PySpark that this PopMQ does not know."""
    if not version.startswith(f"{SPARK}."):
        raise ValueError(
            f"PopMQ {VERSION} needs Spark {SPARK}, and this is Spark {version}; run the job on a cluster of Spark"
            f" {SPARK}, with pip install 'pyspark=={SPARK}.*' for its driver"
        )


def defects(machine: Mapping[str, str | None], spark: str) -> list[str]:
    """What a machine has not, of what `arriving.look` has found there; spark: the driver's version."""
    found = []
    if machine["pyspark"] != spark:
        found.append(f"has Spark {machine['pyspark']}, and the driver has {spark}")
    for package, least in PACKAGES.items():
        version = machine[package]
        if version is None:
            found.append(f"has no {package}")
        elif int(version.partition(".")[0]) < least:
            found.append(f"has {package} {version}, and needs {least} or newer")
    if machine["popmq"] is None:
        found.append("has no popmq")
    elif machine["popmq"] != VERSION:
        found.append(f"has popmq {machine['popmq']}, and the driver has {VERSION}")
    return found


def unfit(machines: Iterable[Mapping[str, str | None]], spark: str) -> ClusterUnfit | None:
    """The error for the machines that lack something; None if all are fit."""
    told = {}
    for each in machines:
        if lacks := defects(each, spark):
            told[f"{each['python']} (Python {each['python_version']}) on {each['host']}"] = ", ".join(lacks)
    if not told:
        return None
    named = "; ".join(f"{python} {lacks}" for python, lacks in sorted(told.items()))
    return ClusterUnfit(f"executors cannot run PopMQ's tasks: {named}. The way out: {WAY_OUT}")


def no_executor(patience: float) -> ClusterUnfit:
    """The error if no executor has come within `patience` seconds."""
    return ClusterUnfit(
        f"no executor answered within {patience:g} s; look whether the cluster has free cores and memory for"
        " spark.executor.memory, and whether its nodes reach the driver at spark.driver.host"
    )


def failed(said: str) -> ClusterUnfit:
    """The error for executors that cannot even look; said: by Spark."""
    if missing := _NO_PROGRAM.search(said):
        reason = f"a node has no program {missing[1]}"
    elif other := _OTHER_PYTHON.search(said):
        reason = f"they run Python {other[1]}, and the driver runs {other[2]}; Spark needs the same version"
    else:
        reason = next((found[1] for each in _REASONS if (found := each.search(said))), said)
    return ClusterUnfit(f"executors cannot run PopMQ's tasks: {reason}. The way out: {WAY_OUT}")
