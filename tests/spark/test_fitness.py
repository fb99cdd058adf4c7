"""What executors need, and the sentences for those that lack it, without a cluster (tests/spark/cluster has one)."""

from __future__ import annotations

import copyreg
import os
import pickle
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import pyspark
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from pyspark.cloudpickle import dumps

from popclient._version import VERSION
from popclient.spark.cluster import fitness, sending
from popclient.spark.cluster.sending import guarded
from popclient.spark.modes import MODES
from popclient.spark.queue.options import parse
from popclient.spark.queue.reading import RangeReader
from popclient.spark.queue.source import QueueReader
from popclient.spark.versions import REQUIREMENT, minor, written
from tests.spark.node_environment import NEEDED
from tests.spark.spark_cluster import ROOT, spark_home
from tests.spark.stepping import ALL_COLUMNS

MINOR = written(minor(pyspark.__version__))
FIT = {
    "host": "node1",
    "python": "/opt/popmq/bin/python",
    "python_version": "3.11.7",
    "pyspark": pyspark.__version__,
    "popmq": VERSION,
    "pyarrow": "26.0.1",
    "grpcio": "1.85.1",
    "protobuf": "7.36.2",
}
OPTIONS = {"endpoints": "127.0.0.1:8081", "topic": "t", "consumerGroup": "g"}


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"pyspark": f"{MINOR}.99"},
        {"pyarrow": "18.0.0", "grpcio": "1.76.0", "protobuf": "6.31.1"},
        {"grpcio": "1.100.0rc1", "protobuf": "7.99.0"},
    ],
)
def test_fit_machines_are_not_refused(other: dict[str, str | None]) -> None:
    assert fitness.unfit([FIT, {**FIT, **other}]) is None


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ({"popmq": None}, "no popmq"),
        ({"pyarrow": None, "grpcio": None}, "no pyarrow, no grpcio"),
        ({"pyarrow": "17.0.0"}, "pyarrow 17.0.0 (needed: >=18)"),
        ({"grpcio": "1.75.1"}, "grpcio 1.75.1 (needed: >=1.76)"),
        ({"protobuf": "6.31.0"}, "protobuf 6.31.0 (needed: >=6.31.1,<8)"),
        ({"protobuf": "8.0.0"}, "protobuf 8.0.0 (needed: >=6.31.1,<8)"),
        ({"popmq": "0.0.9"}, f"popmq 0.0.9 (the driver has {VERSION})"),
    ],
)
def test_a_machine_that_lacks_something_is_named(lacking: dict[str, str | None], said: str) -> None:
    machines: list[dict[str, str | None]] = [{**FIT, "host": "node2"}, {**FIT, **lacking}]
    assert str(fitness.unfit(machines)) == (
        f"executors cannot run PopMQ's tasks: /opt/popmq/bin/python (Python 3.11.7) on node1: {said}."
        f" The way out: set PYSPARK_PYTHON to an environment with popmq[executor] {VERSION} that every node has, or"
        " ship one with --archives; docs/spark-cluster.md shows how"
    )


@pytest.mark.parametrize("version", ["3.5.7", "4.9.0", "5.0.0"])
def test_another_spark_has_another_way_out(version: str) -> None:
    assert str(fitness.unfit([{**FIT, "pyspark": version}])) == (
        "executors cannot run PopMQ's tasks: /opt/popmq/bin/python (Python 3.11.7) on node1:"
        f" Spark {version} (the driver has {pyspark.__version__}). The way out: run the job on a cluster of Spark"
        f" {MINOR}, or with the cluster's version of PySpark; docs/spark-cluster.md shows how"
    )


def test_many_machines_are_counted() -> None:
    """Each node runs the Python of its own folder; one of them lacks something else."""
    nodes = [{**FIT, "host": f"node{i:03}", "python": f"/opt/{i:03}/python", "popmq": None} for i in range(500)]
    said = str(fitness.unfit([*nodes, *nodes, {**FIT, "pyarrow": None}]))
    assert said.startswith(
        "executors cannot run PopMQ's tasks: /opt/000/python (Python 3.11.7) on node000,"
        " /opt/001/python (Python 3.11.7) on node001, /opt/002/python (Python 3.11.7) on node002 and 497 more:"
        " no popmq; /opt/popmq/bin/python (Python 3.11.7) on node1: no pyarrow. The way out: set"
    )
    others = [{**FIT, "host": f"node{i}", "protobuf": f"5.{i}"} for i in range(100)]
    assert "on node1: protobuf 5.1 (needed: >=6.31.1,<8); " in str(fitness.unfit(others))
    assert " and 97 more. The way out: " in str(fitness.unfit(others))


@pytest.mark.parametrize(
    ("spark_says", "said"),
    [
        (
            "An error occurred …\n: org… most recent failure: java.io.IOException: Cannot run program"
            ' "x/python": error=2, No such file or directory\n\tat …',
            "a node cannot run the program x/python: error=2, No such file or directory. The way out: set PYSPARK_PY",
        ),
        (
            'java.io.IOException: Cannot run program "/x" (in directory "."): error=13, Permission denied\n\tat …',
            "a node cannot run the program /x: error=13, Permission denied. The way out: set PYSPARK_PYTHON to a Pyt",
        ),
        (
            "…\npyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has"
            " different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "they run Python 3.12, and the driver runs 3.11; Spark needs the same version. The way out: set PYSPARK_P",
        ),
        (
            "An error …\n  File …\nModuleNotFoundError: No module named 'x'\n\n\tat org…",
            "ModuleNotFoundError: No module named 'x'. The way out: read the logs of the executors",
        ),
        (
            "An error …\n: org… most recent failure: Lost task 0.3 (TID 9): lost\nmore",
            "Lost task 0.3 (TID 9): lost. The way out: ",
        ),
        ("Something else", "Something else. The way out: "),
    ],
)
def test_what_spark_says_is_put_into_a_sentence(spark_says: str, said: str) -> None:
    error = str(fitness.failed(spark_says))
    assert error.startswith(f"executors cannot run PopMQ's tasks: {said}")
    assert "register" not in error, "the job has just called it"


def test_a_reader_arrives_as_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(copyreg.dispatch_table, QueueReader, raising=False)
    sent = MODES["queue"].reader(OPTIONS, ALL_COLUMNS)
    pickled = dumps(sent)
    assert fitness.WAY_OUT.encode() in pickled, "an executor without PopMQ would not say what it lacks"
    arrived = pickle.loads(pickled)
    assert type(arrived) is QueueReader
    assert vars(sent)["_options"] == parse(OPTIONS)
    assert vars(arrived)["_options"] == vars(sent)["_options"]
    assert type(vars(arrived)["_reader"]) is RangeReader


def test_a_reader_arrives_where_popmq_is_not(tmp_path: Path) -> None:
    """In a Python that has nothing but Spark."""
    alone = [str(each) for each in (spark_home() / "python" / "lib").glob("*.zip")]
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"],
        cwd=tmp_path,
        input=dumps(MODES["queue"].reader(OPTIONS, ALL_COLUMNS)),
        env={"PYTHONPATH": os.pathsep.join(alone)},
        capture_output=True,
        check=False,
    )
    *_, said = done.stderr.decode().splitlines()
    assert said.startswith("ModuleNotFoundError: the executor on ")
    assert f"runs {sys.executable} (Python " in said
    assert said.endswith(f"without the module 'popclient'; {fitness.WAY_OUT}")


def test_a_reader_arrives_at_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "VERSION", "0.0.9")
    pickled = dumps(guarded(MODES["queue"].reader(OPTIONS, ALL_COLUMNS)))
    with pytest.raises(ImportError, match=f"with PopMQ {VERSION}, and the driver has 0.0.9; set PYSPARK_PYTHON"):
        pickle.loads(pickled)


def test_a_reader_arrives_where_imports_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as with a gRPC that is older than the generated modules."""

    class Unfit:
        def __setstate__(self, state: object) -> None:
            raise RuntimeError("The grpc package installed is at version 1.75.0, but …")

    reader = MODES["queue"].reader(OPTIONS, ALL_COLUMNS)
    vars(reader)["unfit"] = Unfit()
    vars(reader)["unfit"].state = 1
    said = r"cannot import PopMQ's modules \(RuntimeError: The grpc package .* 1.75.0, but …\); set PYSPARK_PYTHON"
    with pytest.raises(ImportError, match=said):
        pickle.loads(dumps(reader))


def test_a_wheel_at_a_relative_path_is_imported(tmp_path: Path) -> None:
    """As `spark-submit --py-files popmq.whl` puts it on the path; the file for Java's log is none there."""
    with zipfile.ZipFile(tmp_path / "popmq.whl", "w") as wheel:
        for folder, package in ((ROOT, "popclient"), (ROOT / "proto", "popproto")):
            for path in (folder / package).rglob("*.py*"):
                if path.suffix in (".py", ".properties"):
                    wheel.write(path, path.relative_to(folder))
    program = """
import sys
sys.path.insert(0, "popmq.whl")
from popclient.spark import session
print(session.__globals__["_java_options"](), session.__code__.co_filename)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("-XX:TieredStopAtLevel=1 -XX:+UseSerialGC popmq.whl/popclient/"), done


def test_the_extra_has_what_executors_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = {
        each.name: str(each.specifier) for each in map(Requirement, [*project["dependencies"], *extras["executor"]])
    }
    for package, needed in fitness.PACKAGES.items():
        assert wanted[package] == SpecifierSet(needed), package
    assert {name for name, _ in _parsed(project["dependencies"])} <= fitness.PACKAGES.keys(), "each task imports these"
    assert dict(_parsed(extras["spark"]))["pyspark"] == Requirement(REQUIREMENT).specifier
    assert wanted.keys() <= set(NEEDED)


def _parsed(requirements: list[str]) -> list[tuple[str, SpecifierSet]]:
    return [(each.name, each.specifier) for each in map(Requirement, requirements)]
