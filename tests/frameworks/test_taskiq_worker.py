"""`taskiq worker` as a process: killed in the middle of a task, and stopped."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from textwrap import dedent

import pytest

from popclient import aio
from popclient.frameworks.taskiq import PopBroker
from popserver import EmbeddedBroker
from tests.frameworks.conftest import PATIENCE_S, Counts, become
from tests.frameworks.programs import Program
from tests.support.scripted_server import until
from tests.support.waiting import eventually

TASKS = """
    import asyncio
    import os
    from pathlib import Path

    from popclient.frameworks.taskiq import PopBroker

    HERE = Path(__file__).parent
    broker = PopBroker(concurrency=3)


    def say(what: str) -> None:
        with (HERE / "said").open("a") as said:
            said.write(f"{os.getpid()} {what}\\n")


    @broker.task("wait")
    async def wait(name: str) -> None:
        say(f"begin {name}")
        while not (HERE / f"go-{name}").exists():
            await asyncio.sleep(0.02)
        say(f"end {name}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(dedent(TASKS))
    (tmp_path / "said").touch()
    return tmp_path


def worker(folder: Path, broker: EmbeddedBroker, *options: str) -> Program:
    command = ["taskiq", "worker", "tasks:broker", "--workers", "1", *options]
    return Program(folder, "worker", command, broker.endpoint)


def said(folder: Path) -> list[tuple[int, str]]:
    """Who said what."""
    lines = [line.partition(" ") for line in (folder / "said").read_text().splitlines()]
    return [(int(pid), what) for pid, _, what in lines]


def what_was_said(folder: Path) -> list[str]:
    return [what for _, what in said(folder)]


async def send(endpoint: str, *names: str) -> None:
    broker = PopBroker(endpoint)

    @broker.task("wait")
    async def wait(name: str) -> None: ...

    await broker.startup()
    for name in names:
        await wait.kiq(name)
    await broker.shutdown()


async def test_a_child_killed_in_the_middle_of_a_task_loses_nothing(folder: Path, stored: EmbeddedBroker) -> None:
    """Taskiq starts another child, which runs the task again."""
    with worker(folder, stored):
        await send(stored.endpoint, "a")
        await until(lambda: what_was_said(folder) == ["begin a"])
        [(child, _)] = said(folder)
        os.kill(child, signal.SIGKILL)
        await until(lambda: len(said(folder)) == 2)
        (folder / "go-a").touch()
        await until(lambda: len(said(folder)) == 3)
        await become(stored, Counts())
    assert what_was_said(folder) == ["begin a", "begin a", "end a"]
    assert child not in {pid for pid, _ in said(folder)[1:]}


async def test_a_killed_worker_loses_nothing_and_the_attempt_counts(folder: Path, stored: EmbeddedBroker) -> None:
    with worker(folder, stored) as killed:
        await send(stored.endpoint, "a", "b")
        await until(lambda: len(said(folder)) == 2)
        killed.kill()
    (folder / "go-a").touch()
    (folder / "go-b").touch()
    with worker(folder, stored):
        await until(lambda: len(said(folder)) == 6)
        await become(stored, Counts())
    assert sorted(what_was_said(folder)) == sorted(["begin a", "begin b"] * 2 + ["end a", "end b"])


async def test_sigterm_ends_a_worker_after_its_tasks_and_gives_the_others_back(
    folder: Path, stored: EmbeddedBroker
) -> None:
    async with aio.Admin(stored.endpoint) as admin:
        await admin.create_group("workers", max_attempts=1)  # if another attempt counted, these were dead letters
    names = [f"task-{number}" for number in range(6)]
    with worker(folder, stored, "--max-async-tasks", "1") as stopped:
        await send(stored.endpoint, *names)
        await become(stored, Counts(ready=3, inflight=3))
        await until(lambda: len(said(folder)) == 1)
        stopped.terminate()
        await become(stored, Counts(ready=5, inflight=1))
        [begun] = [what.removeprefix("begin ") for what in what_was_said(folder)]
        (folder / f"go-{begun}").touch()
        assert stopped.ended() == 0
    await become(stored, Counts(ready=5))
    assert what_was_said(folder) == [f"begin {begun}", f"end {begun}"]
    for name in names:
        (folder / f"go-{name}").touch()
    with worker(folder, stored):
        await until(lambda: len(said(folder)) == 12)
        await become(stored, Counts())


async def test_an_idle_worker_ends_at_once(folder: Path, stored: EmbeddedBroker) -> None:
    """Taskiq's manager looks once a second, and its receiver three times; popclient's long poll adds nothing."""
    with worker(folder, stored) as idle:
        idle.until_it_says("Listening started")
        async with aio.Admin(stored.endpoint) as admin:
            await eventually(lambda: _is_there(admin), "the worker is there", within_s=PATIENCE_S)
        began = time.monotonic()
        idle.terminate()
        assert idle.ended() == 0
        assert time.monotonic() - began < 8  # a busy machine is slower; a long poll would take 15 s


async def test_a_worker_that_does_not_wait_for_a_task_says_that_it_has_failed(
    folder: Path, stored: EmbeddedBroker
) -> None:
    with worker(folder, stored, "--wait-tasks-timeout", "0.1") as stopped:
        await send(stored.endpoint, "a")
        await until(lambda: len(said(folder)) == 1)
        stopped.terminate()
        assert stopped.ended() == 0
    await become(stored, Counts(waiting_retry=1))


async def _is_there(admin: aio.Admin) -> bool:
    return bool(await admin.list_clients("workers"))
