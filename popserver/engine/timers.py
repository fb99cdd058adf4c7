"""Work at due times.

A timer waits until the earliest due time in the store, and is set earlier if an earlier one is announced; it never
polls. At that time it calls `work`, which does one step and returns the next due time, or None.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from popserver.engine.clock import Alarm, Calendar, Clock


class DueTimer:
    """Calls `work` at each due time."""

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
        """Set the timer to `due_ms` if that is earlier than its due time. None changes nothing."""
        if due_ms is None or self._closed or (self.due_ms is not None and self.due_ms <= due_ms):
            return
        self.due_ms = due_ms
        self._set_alarm()

    def check_due(self) -> None:
        """Run `work` now: a due time may not have been announced, or the clock was set and the alarm is late."""
        if not self._closed:
            self.due_ms = self._clock.now_ms()
            self._set_alarm()

    async def idle(self) -> None:
        """Return when the work of all due times up to now is done."""
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
