"""One sleeper for everything that falls due.

It sleeps until the earliest due moment in the store and is told of earlier ones; no scanning beat. What it does when
it wakes is the maintenance's affair: `work` does one step and returns the next due moment, or None for none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable

import structlog

from popserver.engine.clock import Alarm, Calendar, Clock
from popserver.model.errors import PopError
from popserver.model.retry import SECOND_MS


class Sleeper:
    """Calls `work` whenever something is due."""

    def __init__(self, clock: Clock | Calendar, work: Callable[[], Awaitable[int | None]]) -> None:
        self._clock = clock
        self._work = work
        self._due_ms: int | None = None
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    def tell(self, due_ms: int | None) -> None:
        """Something will be due at `due_ms`; only an earlier moment than the known one matters."""
        if due_ms is None or self._closed or (self._due_ms is not None and self._due_ms <= due_ms):
            return
        self._due_ms = due_ms
        self._set_alarm()

    def look(self) -> None:
        """Something may be due without a notice; or the clock was set, and the alarm is late."""
        if not self._closed:
            self._due_ms = self._clock.now_ms()
            self._set_alarm()

    async def idle(self) -> None:
        """Return when nothing that is due now is still to be done."""
        await self._idle.wait()

    async def close(self) -> None:
        self._closed = True
        self._clear_alarm()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    def _set_alarm(self) -> None:
        self._clear_alarm()
        if self._task is None and self._due_ms is not None:
            self._alarm = self._clock.call_at(self._due_ms, self._wake)

    def _clear_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _wake(self) -> None:
        if self._closed or self._task is not None:
            return
        self._idle.clear()
        self._task = asyncio.get_running_loop().create_task(self._work_off())

    async def _work_off(self) -> None:
        try:
            while not self._closed:
                # Cleared before the work: a moment told while the store is busy must not be forgotten.
                self._due_ms = None
                due_ms = await self._work()
                if due_ms is not None and (self._due_ms is None or due_ms < self._due_ms):
                    self._due_ms = due_ms
                if self._due_ms is None or self._due_ms > self._clock.now_ms():
                    return
        finally:
            self._task = None
            self._idle.set()
            if not self._closed:
                self._set_alarm()


# Deeds that must be done though nobody waits for them.
#
# Those of one name are done one after the other, in the order they came. One that the store does not do now is tried
# again every second until it is done.

RETRY_MS = 1 * SECOND_MS

Deed = Callable[[], Awaitable[object]]

log = structlog.get_logger("popserver.errands")


class Errands:
    """What this server has still to do for clients that do not ask."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[Hashable, deque[Deed]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._alarms: dict[Hashable, Alarm] = {}
        self._closed = False

    def do(self, name: Hashable, deed: Deed) -> None:
        """Have it done, after what that name's others still have to do."""
        waiting = self._waiting.setdefault(name, deque())
        waiting.append(deed)
        if len(waiting) == 1:
            self._start(name)

    async def idle(self) -> None:
        """Return when nothing can be done now: all is done, or waits for the next try."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Finish what is being done, and try nothing again: the next start takes it up."""
        self._closed = True
        for alarm in self._alarms.values():
            alarm.cancel()
        await self.idle()

    def _start(self, name: Hashable) -> None:
        self._alarms.pop(name, None)
        task = asyncio.get_running_loop().create_task(self._work_off(name, self._waiting[name]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_off(self, name: Hashable, waiting: deque[Deed]) -> None:
        while waiting:
            try:
                await waiting[0]()
            except PopError as error:
                self._try_again(name, error)
                return
            waiting.popleft()
        del self._waiting[name]

    def _try_again(self, name: Hashable, error: PopError) -> None:
        log.warning("what is still to do for a client waits", reason=error.sentence)
        if not self._closed:
            self._alarms[name] = self._clock.call_at(self._clock.now_ms() + RETRY_MS, lambda: self._start(name))
