"""The first program of docs/frameworks/celery.md, and the example, as a reader runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.documentation_pages import Block, Reader, blocks, environment
from tests.support.waiting import soon

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "frameworks" / "celery.md"


@contextmanager
def running(command: list[str], folder: Path, log: Path, **more: str) -> Iterator[None]:
    """A worker, until SIGTERM."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=os.environ | more, stdout=out, stderr=out)
    try:
        soon(lambda: " ready." in log.read_text() or process.poll() is not None, within_s=60)
        assert process.poll() is None, log.read_text()
        yield
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
    finally:
        process.kill()
        process.wait(60)


def test_the_first_program(tmp_path: Path, broker: EmbeddedBroker) -> None:
    reader, log = Reader(tmp_path, broker.endpoint), tmp_path / "log"
    shop, order, worker, program, said = first_blocks()
    reader.follow([shop, order])
    with running(worker.text.split(), tmp_path, log, **environment(broker.endpoint)):
        reader.follow([program])
        soon(lambda: all(f"] {line}\n" in log.read_text() for line in said.text.splitlines()), within_s=60)


def first_blocks() -> tuple[Block, ...]:
    """The application, the orders, the worker, the command that orders, what the worker's log has."""
    page = blocks(PAGE)
    python, shell = ([each for each in page if each.language == language] for language in ("python", "sh"))
    return python[0], python[1], shell[1], shell[2], next(each for each in page if each.language == "text")


def test_the_example(tmp_path: Path, broker: EmbeddedBroker) -> None:
    url, module, log = f"popmq://{broker.endpoint}", "examples.frameworks.celery_shop", tmp_path / "log"
    command = [sys.executable, "-m", "celery", "--app", module, "worker", "--concurrency", "2", "--loglevel", "INFO"]
    with running(command, ROOT, log, BROKER_URL=url), Admin(broker.endpoint) as admin:
        subprocess.run(
            [sys.executable, "-m", module], cwd=ROOT, env=os.environ | {"BROKER_URL": url}, check=True, timeout=60
        )
        soon(lambda: log.read_text().count("invoice for order") == 3, within_s=60)
        soon(lambda: any(admin.dead_letters("shop")), within_s=60)
