"""Work at due times, and work that is repeated until it succeeds.

A timer waits until the earliest due time in the store, and is set earlier if an earlier one is announced; it never
polls. At that time it calls `work`, which does one step and returns the next due time, or None.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

import structlog

from popserver.engine.clock import Alarm, Calendar, Clock
from popserver.model.errors import PopError
from popserver.model.retry import SECOND_MS


class DueTimer:
    """Calls `work` whenever something is due."""

    def __init__(self, clock: Clock | Calendar, work: Callable[[], Awaitable[int | None]]) -> None:
        self._clock = clock
        self._work = work
        self.due_ms: int | None = None  # the earliest due time that is known
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def expect(self, due_ms: int | None) -> None:
        """Something is due at `due_ms`. Only the earliest due time counts; None changes nothing."""
        if due_ms is None or self._closed or (self.due_ms is not None and self.due_ms <= due_ms):
            return
        self.due_ms = due_ms
        self._set_alarm()

    def check_due(self) -> None:
        """Run `work` now: something may be due that was not announced, or the clock was set and the alarm is late."""
        if not self._closed:
            self.due_ms = self._clock.now_ms()
            self._set_alarm()

    async def idle(self) -> None:
        """Return when everything that is due now is done."""
        await self._idle.wait()

    async def close(self) -> None:
        self._closed = True
        self._clear_alarm()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _set_alarm(self) -> None:
        self._clear_alarm()
        if self._task is None and self.due_ms is not None:
            self._alarm = self._clock.call_at(self.due_ms, self._start)

    def _clear_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _start(self) -> None:
        if self._closed or self._task is not None:
            return
        self._idle.clear()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while not self._closed:
                # Cleared before the work, so that a due time that is announced during the work is kept.
                self.due_ms = None
                due_ms = await self._work()
                if due_ms is not None and (self.due_ms is None or due_ms < self.due_ms):
                    self.due_ms = due_ms
                if self.due_ms is None or self.due_ms > self._clock.now_ms():
                    return
        finally:
            self._task = None
            self._idle.set()
            if not self._closed:
                self._set_alarm()


# Work that must be done although no caller waits for it.
#
# Work with the same name is done in the order in which it was given. If the store refuses it, it is repeated every
# second until it succeeds.

RETRY_MS = 1 * SECOND_MS

Task = Callable[[], Awaitable[object]]

log = structlog.get_logger("popserver.errands")


class BackgroundTasks:
    """Work that this server must do for clients that do not wait for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Hashable, deque[Task]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarms: dict[Hashable, Alarm] = {}
        self._closed = False

    def submit(self, name: Hashable, task: Task) -> None:
        """Do it in the background, after earlier work with the same name."""
        waiting = self._waiting.setdefault(name, deque())
        waiting.append(task)
        if len(waiting) == 1:
            self._start(name)

    def has(self, name: Hashable) -> bool:
        """Whether work with this name is not done yet."""
        return name in self._waiting

    async def idle(self) -> None:
        """Return when all work is done or waits for its next try."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Finish running work, and do not repeat failed work: the next start of the server does it."""
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
