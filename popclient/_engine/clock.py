"""The time of a consumer. No other module of a consumer reads the time or waits, so tests can replace the clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from popclient._tasks import Tasks
from popclient._version import log


class Timer(Protocol):
    """A call at a later time."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """A monotonic clock in seconds, the time of day in epoch milliseconds, and calls at a later time."""

    def now(self) -> float:
        """Seconds of a monotonic clock. May be called from any thread."""

    def epoch_ms(self) -> int:
        """Epoch milliseconds. May be called from any thread."""

    def call_later(self, seconds: float, work: Callable[[], object], /) -> Timer:
        """Calls `work` in the event loop, in `seconds` seconds."""


class LoopClock:
    """The clock of the running event loop."""

    def now(self) -> float:
        return time.clock_gettime(time.CLOCK_MONOTONIC)  # see `ClientLoop`

    def epoch_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, seconds: float, work: Callable[[], object], /) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, work)


async def sleep(clock: Clock, seconds: float) -> None:
    """Returns `seconds` seconds later."""
    over = asyncio.Event()
    timer = clock.call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()


async def wait_for(clock: Clock, event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within `seconds` seconds."""
    if event.is_set():
        return True
    late = False

    def give_up() -> None:
        nonlocal late
        late = True
        event.set()

    timer = clock.call_later(seconds, give_up)
    try:
        await event.wait()
    finally:
        timer.cancel()
    if late:
        event.clear()
    return not late


class PeriodicTasks:
    """The periodic work of one consumer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks = Tasks()

    def every(self, period: float, work: Callable[[], Awaitable[None]], first: float | None = None) -> None:
        """Does the work every `period` seconds; the first time after `first` (or `period`) seconds."""
        self._tasks.spawn(self._run_periodically(period if first is None else first, period, work))

    async def _run_periodically(self, first: float, period: float, work: Callable[[], Awaitable[None]]) -> None:
        pause = first
        while True:
            await sleep(self._clock, pause)
            try:
                await work()
            except Exception:  # noqa: BLE001  the next time may succeed
                log.exception("%r failed; it is done again in %g s", work, period)
            pause = period

    async def stop(self) -> None:
        self._tasks.cancel()
        await self._tasks.ended()
