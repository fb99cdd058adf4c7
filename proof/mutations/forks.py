"""Runs functions in forks of this process, each with a time limit, several at once."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")

# A mutant may fill the memory before its time is over.
MEMORY_BYTES_MAX = 4 * 1024**3
_LOOK_S = 0.005


class Verdict(StrEnum):
    """How a mutant ended."""

    FAILED = "a test failed"
    BROKEN = "it cannot be imported"
    HUNG = "no end in time, twice"
    DIED = "the process died, twice"
    SURVIVED = "all tests passed"
    UNREACHED = "no test reaches it"
    REFUSED = "no test fails, but mypy refuses it"


KILLED = frozenset({Verdict.FAILED, Verdict.BROKEN})
SETTLED = KILLED | {Verdict.REFUSED}  # these need no reason
# No test has failed, and a busy machine can be the cause. Such a mutant needs a reason, like a survivor.
UNSURE = frozenset({Verdict.HUNG, Verdict.DIED})
# Exit codes of forks.
PASSED, FAILED, BROKEN, DIED = 0, 1, 2, 70
PATIENCE_LAST = 3.0  # a task that runs again gets its time multiplied by this


class Task(NamedTuple, Generic[K]):
    """A function for a fork: it gets its patience, and returns the exit code."""

    key: K
    run: Callable[[float], int]
    seconds_max: float  # multiplied by the patience
    patience: float = 1.0


class _Fork(NamedTuple, Generic[K]):
    task: Task[K]
    ends_at: float
    folder: str


def nothing(_: object) -> None:
    """After forks that leave nothing outside of their process and folder."""


def run_surely(
    tasks: Iterable[Task[K]], jobs: int, after: Callable[[int], None] = nothing
) -> Iterator[tuple[K, Verdict]]:
    """As `run_forks`; what hangs or dies runs again, at once, and then once more, at the end and with more time.

    A task is taken from `tasks` when it begins.
    """
    waiting = iter(tasks)
    running: dict[K, Task[K]] = {}
    again: list[Task[K]] = []
    tried: set[K] = set()
    last: list[Task[K]] = []

    def begun() -> Iterator[Task[K]]:
        while (task := again.pop() if again else next(waiting, None)) is not None:
            running[task.key] = task
            yield task

    for key, verdict in run_forks(begun(), jobs, after):
        task = running.pop(key)
        if verdict not in UNSURE:
            yield key, verdict
        elif key in tried:
            last.append(task)
        else:
            tried.add(key)
            again.append(task)
    yield from run_forks([each._replace(patience=PATIENCE_LAST) for each in (*again, *last)], jobs, after)


def run_forks(
    tasks: Iterable[Task[K]], jobs: int, after: Callable[[int], None] = nothing
) -> Iterator[tuple[K, Verdict]]:
    """Run the tasks, at most `jobs` at once, and yield the verdict of each when it has ended.

    `after` is called with the process id of each fork that has ended, or was killed.
    """
    waiting = iter(tasks)
    running: dict[int, _Fork[K]] = {}
    try:
        while True:
            while len(running) < jobs and (task := next(waiting, None)) is not None:
                folder = tempfile.mkdtemp(prefix="popmq-mutant-")
                ends_at = time.monotonic() + task.patience * task.seconds_max
                running[_fork(task, folder)] = _Fork(task, ends_at, folder)
            if not running:
                return
            ended = [(pid, each, verdict) for pid, each in running.items() if (verdict := _looked_at(pid, each))]
            for pid, each, verdict in ended:
                del running[pid]
                _clean_up(pid, each.folder)
                after(pid)
                yield each.task.key, verdict
            if not ended:
                time.sleep(_LOOK_S)
    finally:
        for pid, each in running.items():
            _clean_up(pid, each.folder)
            os.waitpid(pid, 0)
            after(pid)


def _looked_at(pid: int, fork: _Fork[K]) -> Verdict | None:
    """The verdict if the fork has ended, or has to end now."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        if time.monotonic() < fork.ends_at:
            return None
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return Verdict.HUNG
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGALRM:
        return Verdict.HUNG
    return {PASSED: Verdict.SURVIVED, FAILED: Verdict.FAILED, BROKEN: Verdict.BROKEN}.get(code, Verdict.DIED)


def _clean_up(pid: int, folder: str) -> None:
    """End what the fork has started, and remove its files."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def _fork(task: Task[K], folder: str) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        return pid
    code = DIED
    try:
        with suppress(PermissionError):
            os.setpgid(0, 0)
        os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        code = task.run(task.patience)
    except BaseException:  # noqa: BLE001 - the fork must not go on with its parent's work
        traceback.print_exc()
    finally:
        os._exit(code)


def end_after(seconds: float) -> None:
    """End this process, as one that hangs, unless it asks for more time before."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


def silence() -> None:
    """What this process writes is thrown away from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
