"""What the machines of a cluster need to run PopMQ's tasks, and the sentences for those that lack it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import ge, lt
from typing import Final, NamedTuple

from popclient._version import VERSION
from popclient.spark.versions import minor, version, written

# The packages of each executor, with the versions that will do, as in pyproject.toml.
PACKAGES: Final = {"pyarrow": ">=18", "grpcio": ">=1.76", "protobuf": ">=6.31.1,<8"}
_GUIDE: Final = "docs/spark-cluster.md shows how"
# The ways out. Those of a task do not know whether the job has called `register`.
_ENVIRONMENT: Final = (
    f"set PYSPARK_PYTHON to an environment with popmq[executor] {VERSION} that every node has, or ship one with"
    " --archives"
)
_SAME_PYTHON: Final = (
    "set PYSPARK_PYTHON to a Python of the driver's version, or PYSPARK_DRIVER_PYTHON to one of theirs"
)
_PROGRAM: Final = "set PYSPARK_PYTHON to a Python that every node has and may run, or ship one with --archives"
_LOGS: Final = "read the logs of the executors"
WAY_OUT: Final = f"{_ENVIRONMENT}, and call popclient.spark.register(spark); {_GUIDE}"
# How many machines, and how many kinds of machines, an error names.
_NAMED_MAX: Final = 3
_COMPARED: Final[Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]]] = {">=": ge, "<": lt}
# What Spark says, in whichever exception.
_NO_PROGRAM: Final = re.compile(r'Cannot run program "([^"]+)"(?: \(in directory "[^"]*"\))?: (.+)')
_OTHER_PYTHON: Final = re.compile(r"Python in worker has different version: (\S+) than that in driver: ([\d.]+)")
_LOST: Final = "ExecutorLostFailure (executor"
# A line that Python has raised; the task that Spark has lost; the first line.
_REASONS: Final = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (r"^((?:\w+\.)*\w+(?:Error|Exception): .+)$", r"most recent failure: (.+)", r"\A\s*(.+)")
)

Machine = Mapping[str, str | None]


class ClusterUnfit(RuntimeError):
    """Executors cannot run PopMQ's tasks: the error names machine, Python and what is missing, and the way out."""


class Defect(NamedTuple):
    """what: it lacks, or what it has in its place."""

    what: str
    way_out: str


def defects(machine: Machine) -> list[Defect]:
    """What a machine lacks, by the facts of `arriving.inspect`. Its Spark may have another patch than the driver's."""
    found = []
    spark, needed_spark = machine["pyspark"], minor(version())
    if spark is None or minor(spark) != needed_spark:
        found.append(
            Defect(
                f"Spark {spark} (the driver has {version()})",
                f"run the job on a cluster of Spark {written(needed_spark)}, or with the cluster's version of PySpark",
            )
        )
    for package, needed in PACKAGES.items():
        installed = machine[package]
        if installed is None:
            found.append(Defect(f"no {package}", _ENVIRONMENT))
        elif not _is_within(installed, needed):
            found.append(Defect(f"{package} {installed} (needed: {needed})", _ENVIRONMENT))
    popmq = machine["popmq"]
    if popmq is None:
        found.append(Defect("no popmq", _ENVIRONMENT))
    elif popmq != VERSION:
        found.append(Defect(f"popmq {popmq} (the driver has {VERSION})", _ENVIRONMENT))
    return found


def _is_within(version: str, needed: str) -> bool:
    bounds = re.findall(r"(>=|<)([\d.]+)", needed)
    return all(_COMPARED[sign](_numbers(version), _numbers(bound)) for sign, bound in bounds)


def _numbers(version: str) -> tuple[int, ...]:
    """Of the release: 6.31.1rc2 has 6, 31 and 1."""
    released = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, released[0].split("."))) if released else ()


def unfit(machines: Iterable[Machine]) -> ClusterUnfit | None:
    """The error for the machines that lack something, those that lack the same together; None if all are fit."""
    by_defects: dict[str, set[str]] = {}
    ways_out: dict[str, None] = {}
    for each in machines:
        if lacks := defects(each):
            python = f"{each['python']} (Python {each['python_version']}) on {each['host']}"
            by_defects.setdefault(", ".join(defect.what for defect in lacks), set()).add(python)
            ways_out |= dict.fromkeys(defect.way_out for defect in lacks)
    if not by_defects:
        return None
    kinds = sorted(by_defects.items(), key=lambda kind: (-len(kind[1]), kind[0]))
    named = _some([f"{_some(sorted(pythons))}: {lacks}" for lacks, pythons in kinds], "; ")
    return _unfit(named, "; ".join(ways_out))


def _some(by_defects: Sequence[str], between: str = ", ") -> str:
    """The first ones, and how many more there are."""
    more = len(by_defects) - _NAMED_MAX
    return between.join(by_defects[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")


def not_ended(patience: float, ended: int, tasks: int) -> ClusterUnfit:
    """The error if not all tasks of the check have ended within `patience` seconds."""
    if not ended:
        return ClusterUnfit(
            f"no executor answered within {patience:g} s; check whether the cluster has free cores and memory for"
            " spark.executor.memory, and whether its nodes reach the driver at spark.driver.host"
        )
    return ClusterUnfit(
        f"executors answered, but only {ended} of {tasks} tasks that inspect them ended within {patience:g} s; {_LOGS},"
        " or wait longer with register(spark, patience=…)"
    )


def no_program(python: str, folder: str) -> ClusterUnfit:
    """The error if the executors' Python is not in the driver's folder, where Spark plans with it."""
    unpack = "unpack the archive of --archives there too, or " if python.startswith(".") else ""
    return _unfit(
        f"Spark plans with their Python in the driver too, and {python} is no program in {folder}, the driver's folder",
        unpack + _PROGRAM,
    )


def found_elsewhere(found: str, wanted: str) -> ClusterUnfit:
    """The error if Spark 4.0 would run the Python with which it has found the format, and not that of the executors."""
    return _unfit(
        f"Spark {version()} has found the format popmq with {found} and keeps it, so it would not run {wanted}",
        f"give {wanted} with the variable PYSPARK_PYTHON, and leave out PYSPARK_DRIVER_PYTHON",
    )


def is_lost(said: str) -> bool:
    """Whether a job failed because an executor went away, which says nothing about the others; said: by Spark."""
    return _LOST in said


def failed(said: str) -> ClusterUnfit:
    """The error for executors that cannot even look; said: by Spark."""
    if missing := _NO_PROGRAM.search(said):
        return _unfit(f"a node cannot run the program {missing[1]}: {missing[2]}", _PROGRAM)
    if other := _OTHER_PYTHON.search(said):
        return _unfit(
            f"they run Python {other[1]}, and the driver runs {other[2]}; Spark needs the same version", _SAME_PYTHON
        )
    return _unfit(next((found[1] for each in _REASONS if (found := each.search(said))), said), _LOGS)


def _unfit(reason: str, way_out: str) -> ClusterUnfit:
    return ClusterUnfit(f"executors cannot run PopMQ's tasks: {reason}. The way out: {way_out}; {_GUIDE}")
