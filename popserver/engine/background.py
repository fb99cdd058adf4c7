"""Work that must be done although no caller waits for it.

Tasks with the same name run in the order in which they were submitted. A task that raises a `PopError` is repeated
every second until it succeeds.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

import structlog

from popserver.engine.clock import Alarm, Clock
from popserver.model.errors import PopError
from popserver.model.retry import SECOND_MS

RETRY_MS = 1 * SECOND_MS

Task = Callable[[], Awaitable[object]]

log = structlog.get_logger("popserver.errands")


class BackgroundTasks:
    """The background tasks of this server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Hashable, deque[Task]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarms: dict[Hashable, Alarm] = {}
        self._closed = False

    def submit(self, name: Hashable, task: Task) -> None:
        """Run the task in the background, after earlier tasks with the same name."""
        waiting = self._waiting.setdefault(name, deque())
        waiting.append(task)
        if len(waiting) == 1:
            self._start(name)

    def has(self, name: Hashable) -> bool:
        """Whether a task with this name has not succeeded yet."""
        return name in self._waiting

    async def idle(self) -> None:
        """Return when no task runs: each has succeeded, or waits to be repeated."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Wait for running tasks. Failed ones are not repeated: the next start of the server does their work."""
        self._closed = True
        for alarm in self._alarms.values():
            alarm.cancel()
        await self.idle()

    def _start(self, name: Hashable) -> None:
        self._alarms.pop(name, None)
        task = asyncio.get_running_loop().create_task(self._run_all(name, self._waiting[name]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_all(self, name: Hashable, waiting: deque[Task]) -> None:
        while waiting:
            try:
                await waiting[0]()
            except PopError as error:
                self._try_again(name, error)
                return
            waiting.popleft()
        del self._waiting[name]

    def _try_again(self, name: Hashable, error: PopError) -> None:
        log.warning("work for a client failed and will be repeated", reason=error.sentence)
        if not self._closed:
            self._alarms[name] = self._clock.call_at(self._clock.now_ms() + RETRY_MS, lambda: self._start(name))
