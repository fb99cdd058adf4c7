"""Drivers that `spark-submit` starts, in process groups of their own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.spark.spark_cluster import FAST_JVM, ROOT, SYSTEM_PATH, Cluster, bare_environment, spark_home

PATIENCE_S = 900  # a busy machine is many times slower
JOBS = Path(__file__).parent
# Two small executors, one on each machine.
SETTINGS = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": FAST_JVM,
    "spark.executor.extraJavaOptions": FAST_JVM,
    "spark.ui.enabled": "false",
}


class Driver(NamedTuple):
    process: subprocess.Popen[str]
    log: Path

    def kill(self) -> None:
        """`kill -9` of the driver with its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def done(self) -> list[str]:
        """The lines that it has printed, and PySpark's warnings before them; it has to succeed."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        # Spark lets the program's own errors follow what it prints.
        assert self.process.returncode == 0, said[-4_000:] + self.log.read_text()[-4_000:]
        return said.splitlines()

    def failed(self) -> str:
        """What it has said; it has to fail."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode != 0, said[-4_000:]
        return said


class Submitting:
    """folder: the working directory of the drivers, which no executor sees."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self._drivers: list[Driver] = []

    def __enter__(self) -> Submitting:
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._drivers:
            each.kill()
            print(each.log.read_text()[-4_000:])  # pytest shows it if the test has failed

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        """A shell in which the programs of Spark are found, and this checkout's tests are on the driver's path."""
        path = f"{spark_home() / 'bin'}{os.pathsep}{SYSTEM_PATH}"
        own = {"PATH": path, "HOME": str(self.folder), "SPARK_CONF_DIR": self._conf(), "PYTHONPATH": str(ROOT)}
        return {**bare_environment(), **own, **variables}

    def start(self, job: str, *arguments: object, options: tuple[str, ...] = (), **variables: str) -> Driver:
        """A driver that runs a job of this folder. variables: of its environment, such as PYSPARK_PYTHON."""
        program = ["spark-submit", "--master", self.cluster.master, *options, str(JOBS / job), *map(str, arguments)]
        log = self.folder / f"{job}.log"
        environment = self.environment(variables)
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [str(spark_home() / "bin" / program[0]), *program[1:]],
                cwd=self.folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0,
            )
        self._drivers.append(Driver(process, log))
        return self._drivers[-1]

    def _conf(self) -> str:
        folder = self.folder / "conf"
        folder.mkdir(exist_ok=True)
        lines = [f"{name} {value}\n" for name, value in SETTINGS.items()]
        (folder / "spark-defaults.conf").write_text("".join(lines))
        return str(folder)
