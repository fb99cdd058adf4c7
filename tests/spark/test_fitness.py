"""What executors need, and the sentences for those that lack it, without a cluster (tests/spark/cluster has one)."""

from __future__ import annotations

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
from pyspark.cloudpickle import dumps

from popclient._version import VERSION
from popclient.spark.cluster import fitness, sending
from popclient.spark.cluster.sending import guarded
from popclient.spark.modes import MODES
from pyspark_popmq import DefaultSource
from tests.spark.stepping import ALL_COLUMNS
from tests.support.node_environment import NEEDED
from tests.support.spark_cluster import ROOT, spark_home

FIT = {
    "host": "node1",
    "python": "/opt/popmq/bin/python",
    "python_version": "3.11.7",
    "pyspark": "4.3.0",
    "popmq": VERSION,
    "pyarrow": "26.0.1",
    "grpcio": "1.85.1",
    "protobuf": "7.36.2",
}
OPTIONS = {"endpoints": "127.0.0.1:8081", "topic": "t", "consumerGroup": "g"}


def test_fit_machines_are_not_refused() -> None:
    assert fitness.unfit([FIT, FIT], "4.3.0") is None


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        ({"popmq": None}, "has no popmq"),
        ({"pyarrow": None, "grpcio": None}, "has no pyarrow, has no grpcio"),
        ({"pyarrow": "17.0.0"}, "has pyarrow 17.0.0, and needs 18 or newer"),
        ({"popmq": "0.0.9"}, f"has popmq 0.0.9, and the driver has {VERSION}"),
        ({"pyspark": "4.2.1"}, "has Spark 4.2.1, and the driver has 4.3.0"),
    ],
)
def test_a_machine_that_lacks_something_is_named(lacking: dict[str, str | None], said: str) -> None:
    machines: list[dict[str, str | None]] = [{**FIT, "host": "node2"}, {**FIT, **lacking}]
    assert str(fitness.unfit(machines, "4.3.0")) == (
        f"executors cannot run PopMQ's tasks: /opt/popmq/bin/python (Python 3.11.7) on node1 {said}."
        f" The way out: {fitness.WAY_OUT}"
    )


@pytest.mark.parametrize(
    ("spark_says", "said"),
    [
        (
            'An error occurred …\n: org… most recent failure: java.io.IOException: Cannot run program "x": error=2',
            "a node has no program x",
        ),
        (
            "…\npyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has"
            " different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.",
            "they run Python 3.12, and the driver runs 3.11; Spark needs the same version",
        ),
        (
            "An error …\n  File …\nModuleNotFoundError: No module named 'x'\n\n\tat org…",
            "ModuleNotFoundError: No module named 'x'",
        ),
        ("An error …\n: org… most recent failure: Lost task 0.3 (TID 9): lost\nmore", "Lost task 0.3 (TID 9): lost"),
        ("Something else", "Something else"),
    ],
)
def test_what_spark_says_is_put_into_a_sentence(spark_says: str, said: str) -> None:
    assert str(fitness.failed(spark_says)).startswith(f"executors cannot run PopMQ's tasks: {said}. The way out: ")


@pytest.mark.parametrize("wanted", ["schema", "writer", "streamWriter"])
def test_another_spark_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.2.0")
    source = DefaultSource(OPTIONS)
    arguments = () if wanted == "schema" else (ALL_COLUMNS, False)
    with pytest.raises(ValueError, match=f"PopMQ {VERSION} needs Spark 4.3, and this is Spark 4.2.0; run the job on"):
        getattr(source, wanted)(*arguments)


def test_a_reader_arrives_as_it_was_sent() -> None:
    sent = MODES["queue"].reader(OPTIONS, ALL_COLUMNS)
    arrived = pickle.loads(dumps(sent))
    assert type(arrived) is type(sent)
    assert vars(arrived).keys() == vars(sent).keys()


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
    wanted = [*project["dependencies"], *extras["executor"]]
    for package, least in fitness.PACKAGES.items():
        assert any(each.startswith(f"{package}>={least}") for each in wanted)
    assert f"pyspark>={fitness.SPARK},<" in " ".join(extras["spark"])
    names = {each.partition(">=")[0].partition("[")[0] for each in wanted}
    assert names <= set(NEEDED)
