"""The only readers of time.

Everything below the broker is handed `now_ms`. A system clock is the wall's time at the start plus what a monotonic
clock has counted since, so within a process time never goes back, whatever happens to the wall's clock. Of several
servers on one database each keeps step with that database's clock, so slowly that a jump of it does no harm.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

TRIPS = 3
IN_STEP_MS = 1.0
FOLLOWS_BY = 0.01  # 10 ms in a second


class Alarm(Protocol):
    """Something that will happen at a set time unless cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Epoch milliseconds, and a way to be called at one of them."""

    def now_ms(self) -> int: ...

    def start_at_least(self, stored_ms: int) -> None:
        """Not behind what is already stored."""

    def follow(self, ask: Callable[[], float]) -> None:
        """Keep step with another clock, which `ask` reads (ms); slowly, and never back. Waits for the answers."""

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm: ...

    def call_when_patience_ends(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Like `call_at`, for a caller that waits on the other side of a wire: its patience is real."""


class _Course(NamedTuple):
    """How a clock goes: from a reading on, faster or slower until a moment of the monotonic clock, then straight."""

    from_s: float
    from_ms: float
    faster: float
    until_s: float

    def at_ms(self, monotonic_s: float) -> float:
        straight_ms = self.from_ms + (monotonic_s - self.from_s) * 1_000
        return straight_ms + (min(monotonic_s, self.until_s) - self.from_s) * 1_000 * self.faster


class SystemClock:
    """Real time. `start_at` and `start_at_least` are for its beginning; `follow` for its life beside others."""

    def __init__(self) -> None:
        self._course = _straight(time.time() * 1_000)

    def start_at(self, ask: Callable[[], float]) -> None:
        """Begin where another clock stands."""
        behind_ms = self._behind_ms(ask)
        self._course = _straight(self._course.at_ms(time.monotonic()) + behind_ms)

    def start_at_least(self, stored_ms: int) -> None:
        if self.now_ms() < stored_ms:
            self._course = _straight(stored_ms)

    def follow(self, ask: Callable[[], float]) -> None:
        behind_ms = self._behind_ms(ask)
        now_s = time.monotonic()
        faster = math.copysign(FOLLOWS_BY, behind_ms) if abs(behind_ms) >= IN_STEP_MS else 0.0
        until_s = now_s + abs(behind_ms) / 1_000 / FOLLOWS_BY
        # One assignment: other threads read it meanwhile.
        self._course = _Course(now_s, self._course.at_ms(now_s), faster, until_s)

    def now_ms(self) -> int:
        return int(self._course.at_ms(time.monotonic()))

    def _behind_ms(self, ask: Callable[[], float]) -> float:
        """How far the other clock is ahead: what the shortest of a few trips says, half of which is the error."""
        shortest_s, behind_ms = math.inf, 0.0
        for _ in range(TRIPS):
            asked_s = time.monotonic()
            theirs_ms = ask()
            answered_s = time.monotonic()
            if answered_s - asked_s < shortest_s:
                shortest_s = answered_s - asked_s
                behind_ms = theirs_ms - self._course.at_ms((asked_s + answered_s) / 2)
        return behind_ms

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        loop = asyncio.get_running_loop()
        # One millisecond more: a timer that fires early by rounding would find nothing due and sleep again.
        delay_s = max(0, at_ms - self.now_ms() + 1) / 1_000
        return loop.call_later(delay_s, callback)

    call_when_patience_ends = call_at


def _straight(from_ms: float) -> _Course:
    now_s = time.monotonic()
    return _Course(now_s, from_ms, 0.0, now_s)


class ManualClock:
    """Time for tests: it stands still until `advance` moves it, and wakes what falls due in order."""

    def __init__(self, start_ms: int = 1_735_689_600_000) -> None:
        self._now_ms = start_ms
        self._order = itertools.count()
        self._alarms: list[tuple[int, int, _ManualAlarm]] = []

    def start_at_least(self, stored_ms: int) -> None:
        self._now_ms = max(self._now_ms, stored_ms)

    def follow(self, ask: Callable[[], float]) -> None:
        """It stands where the test has put it."""

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
