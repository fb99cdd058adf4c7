"""The ways in which executors get PopMQ, on machines that have nothing of the driver's; and the ways that fail."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import popserver
from popclient import Message, Producer
from tests.spark.cluster.submitting import PATIENCE_S, Submitting
from tests.spark.filled import fill
from tests.spark.node_environment import NEEDED, environment_in
from tests.spark.sent import bodies
from tests.spark.spark_cluster import ROOT, SYSTEM_PATH, Cluster
from tests.support.documentation_pages import blocks

DEAD = 40
MESSAGES = 100
PAGE = blocks(ROOT / "docs" / "spark-cluster.md")
pytestmark = pytest.mark.timeout(1_800)


@pytest.fixture
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as broker:
        yield broker


@pytest.fixture
def dead(cluster: Cluster, tmp_path: Path) -> str:
    """A database with dead letters that every machine can open."""
    url = f"sqlite:///{cluster.folders.shared / f'{tmp_path.name}.db'}"
    fill(url, DEAD + 1)  # the last one is of another namespace
    return url


def test_the_first_recipe_as_it_stands(
    submitting: Submitting, wheel: Path, broker: popserver.EmbeddedBroker, tmp_path: Path
) -> None:
    """An environment that is packed and shipped, by the page's own program and commands."""
    with Producer(broker.endpoint) as producer:
        producer.send_many([Message("flights", str(i)) for i in range(MESSAGES)]).raise_for_failures()
    program, make, pack_and_submit, *_ = PAGE
    assert "venv environment" in make.text, "the environment is made here as this block makes it, without a download"
    environment_in(submitting.folder / "environment", wheel)
    (submitting.folder / "flights_lake.py").write_text(program.text)
    data = submitting.cluster.folders.shared / tmp_path.name
    places = {"spark://master:7077": submitting.cluster.master, "broker:8081": broker.endpoint, "/data": str(data)}
    commands = pack_and_submit.text
    for place, here in places.items():
        assert place in commands
        commands = commands.replace(place, here)
    environment = submitting.environment({})
    tools = f"{environment['PATH']}:{Path(sys.executable).parent}"
    del environment["PYTHONPATH"]
    done = subprocess.run(
        ["sh", "-ec", commands],
        cwd=submitting.folder,
        env=environment | {"PATH": tools},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert stored_in(data / "flights") == Counter(str(i) for i in range(MESSAGES))


def stored_in(folder: Path) -> Counter[str]:
    from pyarrow import dataset

    table = dataset.dataset(folder, format="parquet", exclude_invalid_files=True).to_table(columns=["body"])
    return Counter(body.decode() for body in table["body"].to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["PYSPARK_PYTHON", "spark.pyspark.python"])
def test_an_environment_on_every_node(
    how: str, submitting: Submitting, installed: Path, broker: popserver.EmbeddedBroker, dead: str
) -> None:
    if how == "PYSPARK_PYTHON":
        driver = submitting.start("tour_job.py", broker.endpoint, "t", dead, PYSPARK_PYTHON=str(installed))
    else:
        driver = submitting.start(
            "tour_job.py", broker.endpoint, "t", dead, options=("--conf", f"spark.pyspark.python={installed}")
        )
    assert driver.done()[-1] == f"messages 200 dead {DEAD}"
    assert bodies(broker.endpoint, "t") == Counter(f"row {i}" for i in range(200))


@pytest.mark.slow
def test_a_wheel(
    submitting: Submitting,
    wheel: Path,
    broker: popserver.EmbeddedBroker,
    dead: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Given by a relative path, to machines that have the other packages; this checkout is on nobody's path."""
    base = environment_in(tmp_path_factory.mktemp("base") / "environment", None)
    (submitting.folder / wheel.name).write_bytes(wheel.read_bytes())
    driver = submitting.start(
        "tour_job.py",
        broker.endpoint,
        "t",
        dead,
        options=("--py-files", wheel.name),
        PYSPARK_PYTHON=str(base),
        PYTHONPATH="",
    )
    assert driver.done()[-1] == f"messages 200 dead {DEAD}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("unregistered", "sentence"),
    [
        ((), "ClusterUnfit: …/environment/bin/python (Python …: no popmq. The way out: set PYSPARK_PYTHON"),
        (
            ("unregistered",),
            "ModuleNotFoundError: the executor on … without the module 'popclient'; set PYSPARK_PYTHON",
        ),
    ],
    ids=["registered", "unregistered"],
)
def test_an_archive_without_popmq(
    unregistered: tuple[str, ...], sentence: str, submitting: Submitting, wheel: Path, broker: popserver.EmbeddedBroker
) -> None:
    """It was packed before PopMQ was installed: the driver has PopMQ, and the executors have not."""
    folder = submitting.folder
    environment_in(folder / "environment", None)
    shutil.make_archive(str(folder / "old"), "gztar", folder / "environment")
    shutil.rmtree(folder / "environment")
    environment_in(folder / "environment", wheel)
    said = submitting.start(
        "tour_job.py",
        broker.endpoint,
        "t",
        "sqlite://",
        *unregistered,
        options=("--archives", "old.tar.gz#environment"),
        PYSPARK_PYTHON="./environment/bin/python",
        PYTHONPATH="",
    ).failed()
    assert all(part in said for part in sentence.split("…")), said[-4_000:]


def test_executors_that_lack_something(
    submitting: Submitting, installed: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each is refused with the machine's Python, what is missing, and the way out; the next one is tried after it."""
    folder = tmp_path_factory.mktemp("lacking")
    nothing = environment_in(folder / "nothing", None, without=NEEDED)
    without_popmq = environment_in(folder / "popmq", None)
    without_arrow = environment_in(folder / "pyarrow", wheel, without=("pyarrow",))
    tried = {
        str(nothing): ": no pyarrow, no grpcio, no protobuf, no popmq. The way out",
        str(without_popmq): "on …: no popmq. The way out: set PYSPARK_PYTHON to …",
        str(without_arrow): ": no pyarrow. The way out",
        f"3.99:{installed}": "and the driver runs 3.99; Spark needs the same version. The way out",
        "./environment/bin/python": "unpack the archive of --archives there too",
        str(installed): "fit",
    }
    printed = submitting.start(
        "refused_job.py", PATIENCE_S, *tried, PYSPARK_PYTHON=str(installed), PYSPARK_DRIVER_PYTHON=sys.executable
    ).done()
    said = [line for line in printed if " -> " in line]
    for (python, sentence), line in zip(tried.items(), said, strict=True):
        parts = sentence.split("…")
        assert line.startswith(f"{python} -> ")
        assert all(part in line for part in parts), line


@pytest.mark.slow
def test_a_cluster_that_gives_no_executor(submitting: Submitting, installed: Path) -> None:
    driver = submitting.start(
        "refused_job.py", 5, installed, options=("--executor-memory", "64g"), PYSPARK_PYTHON=str(installed)
    )
    assert "no executor answered within 5 s; look whether the cluster has free cores and memory" in driver.done()[-1]


def test_the_machines_are_apart(submitting: Submitting) -> None:
    """What a worker's processes cannot see; on a machine that allows it."""
    if not submitting.cluster.hides:
        pytest.skip("this process may not have mounts of its own")
    worker = submitting.cluster.workers[0]
    seen = Path(f"/proc/{worker.pid}/root")
    for hidden in (ROOT, submitting.cluster.folders.driver, submitting.cluster.workers[1].folder):
        assert list((seen / hidden.relative_to("/")).iterdir()) == []
    assert Path(f"/proc/{worker.pid}/environ").read_text().count(f"PATH={SYSTEM_PATH}") == 1
