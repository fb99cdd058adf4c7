"""A broker, and a Celery worker as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import popserver
from popserver import EmbeddedBroker
from tests.support.waiting import soon

ROOT = Path(__file__).parents[3]
PATIENCE_S = 60.0


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with popserver.embedded(min_invisible="1s") as running:
        yield running


class Worker:
    """`celery worker` of tests/frameworks/celery/shop.py."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process, self.log = process, log

    def stop(self) -> None:
        """SIGTERM: it finishes what has begun."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()

    def kill(self) -> None:
        """`kill -9` of the main process; its children end with it."""
        self.process.kill()
        self.process.wait(PATIENCE_S)


class Shop:
    """The application, its workers, and what its tasks have noted."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder, self.endpoint = folder, endpoint
        self.environment = {"SHOP_FOLDER": str(folder), "SHOP_BROKER": f"popmq://{endpoint}/"}
        (folder / "notes").touch()

    def notes(self) -> list[list[str]]:
        """Word, process, parent, redelivered; in the order of writing."""
        return [line.split() for line in (self.folder / "notes").read_text().splitlines()]

    def words(self) -> list[str]:
        return [each[0] for each in self.notes()]

    def until(self, *words: str) -> None:
        """Waits until all of these are noted."""
        soon(lambda: not set(words) - set(self.words()), within_s=PATIENCE_S)

    def open(self, word: str) -> None:
        """Lets the gated task end."""
        (self.folder / word).touch()

    def run(self, code: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A program that has imported the application."""
        return subprocess.run(
            [sys.executable, "-c", f"from tests.frameworks.celery.shop import *\n{code}"],
            cwd=ROOT,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=check,
        )

    @contextmanager
    def worker(self, *options: str, hold_s: float = 30) -> Iterator[Worker]:
        number = len(list(self.folder.glob("worker-*.log")))
        log = self.folder / f"worker-{number}.log"
        command: Sequence[str] = [
            *(sys.executable, "-m", "celery", "--app", "tests.frameworks.celery.shop", "worker"),
            *("--loglevel", "INFO", "--hostname", f"w{number}@shop"),
            *options,
        ]
        environment = os.environ | self.environment | {"SHOP_HOLD": str(hold_s), "PYTHONWARNINGS": "default"}
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)
        worker = Worker(process, log)
        try:
            soon(lambda: " ready." in log.read_text() or process.poll() is not None, within_s=PATIENCE_S)
            assert process.poll() is None, log.read_text()
            yield worker
        finally:
            worker.kill()


@pytest.fixture
def shop(tmp_path: Path, broker: EmbeddedBroker) -> Shop:
    return Shop(tmp_path, broker.endpoint)
