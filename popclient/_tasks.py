"""Background tasks, referenced until they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def begin_task(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """A task that starts with the next turn of the event loop, whatever task factory the program has set.

    `asyncio.eager_task_factory` runs the work before its caller has noted the task: what is done at once stays noted.
    """
    return asyncio.Task(work, loop=asyncio.get_running_loop())


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
