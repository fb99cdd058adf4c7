"""The only readers of time.

Everything below the broker is handed `now_ms`. A system clock is the wall's time at the start plus what a monotonic
clock has counted since, so within a process time never goes back, whatever happens to the wall's clock.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Protocol


class Alarm(Protocol):
    """Something that will happen at a set time unless cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Epoch milliseconds, and a way to be called at one of them."""

    def now_ms(self) -> int: ...

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm: ...

    def call_when_patience_ends(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Like `call_at`, for a caller that waits on the other side of a wire: its patience is real."""


class SystemClock:
    """Real time. `start_at_least` keeps it from starting behind what is already stored."""

    def __init__(self) -> None:
        self._offset_s = time.time() - time.monotonic()

    def start_at_least(self, stored_ms: int) -> None:
        self._offset_s = max(self._offset_s, stored_ms / 1_000 - time.monotonic())

    def now_ms(self) -> int:
        return int((time.monotonic() + self._offset_s) * 1_000)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        loop = asyncio.get_running_loop()
        # One millisecond more: a timer that fires early by rounding would find nothing due and sleep again.
        delay_s = max(0, at_ms - self.now_ms() + 1) / 1_000
        return loop.call_later(delay_s, callback)

    call_when_patience_ends = call_at


class ManualClock:
    """Time for tests: it stands still until `advance` moves it, and wakes what falls due in order."""

    def __init__(self, start_ms: int = 1_735_689_600_000) -> None:
        self._now_ms = start_ms
        self._order = itertools.count()
        self._alarms: list[tuple[int, int, _ManualAlarm]] = []

    def start_at_least(self, stored_ms: int) -> None:
        self._now_ms = max(self._now_ms, stored_ms)

    def now_ms(self) -> int:
        return self._now_ms

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        alarm = _ManualAlarm(callback)
        heapq.heappush(self._alarms, (at_ms, next(self._order), alarm))
        return alarm

    def call_when_patience_ends(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        # Whichever comes first: a client's deadline runs out in real time, though this clock stands still.
        alarm = _ManualAlarm(callback)
        heapq.heappush(self._alarms, (at_ms, next(self._order), alarm))
        alarm.real = asyncio.get_running_loop().call_later(max(0, at_ms - self._now_ms) / 1_000, alarm.ring)
        return alarm

    async def advance(self, by_ms: int, settle: Callable[[], Awaitable[None]]) -> None:
        """Move on by `by_ms`, stopping at every alarm on the way; `settle` returns when all it woke has been done.

        Raises `ValueError` for a step back: time never goes there.
        """
        if by_ms < 0:
            raise ValueError(f"the clock cannot be moved back by {-by_ms} ms; advance it by 0 or more")
        end_ms = self._now_ms + by_ms
        await settle()
        while self._alarms and self._alarms[0][0] <= end_ms:
            at_ms, _, alarm = heapq.heappop(self._alarms)
            self._now_ms = max(self._now_ms, at_ms)
            if alarm.ring():
                await settle()
        self._now_ms = end_ms
        await settle()


class _ManualAlarm:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self.real: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        self._callback = None
        if self.real is not None:
            self.real.cancel()

    def ring(self) -> bool:
        callback = self._callback
        self.cancel()
        if callback is None:
            return False
        callback()
        return True
