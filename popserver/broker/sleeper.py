"""One sleeper for everything that falls due.

It sleeps until the earliest due moment in the store and is told of earlier ones; no scanning beat. What it does when
it wakes is the maintenance's affair: `work` does one step and returns the next due moment, or None for none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from popserver.broker.clock import Alarm, Calendar, Clock


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
