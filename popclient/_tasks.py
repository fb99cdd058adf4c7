"""Background tasks, referenced until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

FINISH_MAX: Final = 10.0  # seconds: more than the 5 s that SQLite's driver waits for a lock

P = ParamSpec("P")
T = TypeVar("T")


def begin_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that starts with the next turn of the event loop, whatever task factory the program has set.

    `asyncio.eager_task_factory` runs the work before its caller has noted the task: what is done at once stays noted.
    """
    return asyncio.Task(work, loop=asyncio.get_running_loop())


def finishing(work: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The same work, which a cancelled caller waits for: at most 10 s, or until it is cancelled a second time.

    For work on a database. A driver that is cancelled in a statement may keep the locks of its connection: aiosqlite
    keeps those of a SELECT until Python collects the cursor.
    """

    @wraps(work)
    async def finished(*given: P.args, **named: P.kwargs) -> T:
        task = begin_task(work(*given, **named))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            try:
                await asyncio.wait([task], timeout=FINISH_MAX)
            finally:
                task.cancel()
            raise

    return finished


class Tasks:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], if_failed: Callable[[BaseException], None] | None = None) -> None:
        """Runs it. `if_failed` gets the exception if it raises or is cancelled, even before its first step."""
        task = begin_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        if if_failed is not None:
            task.add_done_callback(lambda ended: _report_failure(ended, if_failed))

    async def ended(self) -> None:
        """Returns when all have ended."""
        while self._running:
            await asyncio.wait(self._running)

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()


def _report_failure(ended: asyncio.Task[None], if_failed: Callable[[BaseException], None]) -> None:
    failure = asyncio.CancelledError() if ended.cancelled() else ended.exception()
    if failure is not None:
        if_failed(failure)
