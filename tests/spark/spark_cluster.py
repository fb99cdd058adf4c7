"""A Spark cluster on one machine: a standalone master and two workers, which share as little as the machine allows.

Each worker has its own mounts: this checkout with its environment, the driver's folder and the other worker's folder
are hidden from it. It has an empty environment with the PATH of the system, and another working directory. Where a
process may not have mounts of its own, nothing is hidden; `Cluster.hides` says so.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0
SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")
# Executors start in half the time with it, as drivers of `popclient.spark.session` do.
FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Folders(NamedTuple):
    """driver: only the driver sees it. shared: a folder that every machine of the cluster has. nodes: one each."""

    driver: Path
    shared: Path
    nodes: Path


def spark_home() -> Path:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


class Worker:
    """A worker's process; its executors are its children."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.folder = folder
        self._command = command
        self._environment = environment
        self.log = folder / "log"

    def start(self) -> None:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self.folder, env=dict(self._environment), stdout=log, stderr=log, process_group=0
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def has(self, executor: int) -> bool:
        return self.is_alive and executor in self.executors

    def wait_for(self, said: re.Pattern[str]) -> re.Match[str]:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not (found := said.search(self.log.read_text())):
            assert self._process.poll() is None, f"{self.name} has ended: {self.log.read_text()[-3_000:]}"
            assert time.monotonic() < deadline, f"{self.name} has not started: {self.log.read_text()[-3_000:]}"
            time.sleep(0.1)
        return found

    @property
    def executors(self) -> list[int]:
        """The process ids of their JVMs."""
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/children")
        return [int(child) for each in threads for child in each.read_text().split()]

    def kill(self) -> None:
        """`kill -9` of the worker with its executors."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Cluster:
    """master: its URL. hides: whether the workers cannot see this checkout, the driver's folder, and each other's."""

    def __init__(self, folders: Folders) -> None:
        self.folders = folders
        self.hides = _may_mount()
        self._master = Worker(
            "master", self._spark("master", "--host", "127.0.0.1"), self._folder("master"), bare_environment()
        )
        self.workers: list[Worker] = []
        self.master = ""

    def start(self) -> None:
        self._master.start()
        self.master = self._master.wait_for(_MASTER_URL)[1]
        nodes = ("node1", "node2")
        for name in nodes:
            self._folder(name)  # before the first worker hides the others'
        for name in nodes:
            self.add(name)

    def restore(self) -> None:
        """Starts the workers again that were killed."""
        for each in [each for each in self.workers if not each.is_alive]:
            self.workers.remove(each)
            self.add(each.name)

    def add(self, name: str) -> Worker:
        """One more worker, of two cores."""
        folder = self._folder(name)
        program = ["--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work")]
        hidden = [ROOT, self.folders.driver, *(each for each in self.folders.nodes.iterdir() if each != folder)]
        worker = Worker(name, self._spark("worker", *program, self.master, hidden=hidden), folder, bare_environment())
        worker.start()
        worker.wait_for(_REGISTERED)
        self.workers.append(worker)
        return worker

    def close(self) -> None:
        for each in (*self.workers, self._master):
            each.kill()

    def worker_of(self, pid: int) -> Worker:
        """The worker whose executor has this process."""
        [found] = [each for each in self.workers if each.has(pid)]
        return found

    def _folder(self, name: str) -> Path:
        folder = self.folders.nodes / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _spark(self, role: str, *program: str, hidden: Sequence[Path] = ()) -> list[str]:
        java = f"org.apache.spark.deploy.{role}.{role.capitalize()}"
        ports = ["--port", "0", "--webui-port", "0"]
        if not (hidden and self.hides):
            return [str(spark_home() / "bin" / "spark-class"), java, *ports, *program]
        # Spark is in the environment of the checkout, which is hidden after.
        steps = ["mkdir -p spark", f"mount --bind {shlex.quote(str(spark_home()))} spark"]
        steps += [f"mount -t tmpfs none {shlex.quote(str(each))}" for each in hidden]
        steps += [f"exec spark/bin/spark-class {shlex.join([java, *ports, *program])}"]
        return [*_OWN_MOUNTS, "/bin/sh", "-e", "-c", "\n".join(steps)]


_OWN_MOUNTS = ("unshare", "--mount") if os.getuid() == 0 else ("unshare", "--map-root-user", "--mount")


def _may_mount() -> bool:
    try:
        tried = subprocess.run([*_OWN_MOUNTS, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    except FileNotFoundError:
        return False
    return tried.returncode == 0


def bare_environment() -> dict[str, str]:
    """The environment of a machine on which nobody has logged in."""
    from popclient.spark.session import java_home

    java = java_home()
    named = {} if java is None else {"JAVA_HOME": str(java)}
    return {"PATH": SYSTEM_PATH, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": FAST_JVM, **named}


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """A running cluster, and none of its processes afterwards."""
    folders = Folders(*(folder / name for name in Folders._fields))
    for each in folders:
        each.mkdir()
    cluster = Cluster(folders)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
