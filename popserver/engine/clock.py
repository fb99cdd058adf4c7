"""The clock. Only this module reads time; other code gets times as arguments.

A server has three times, all in epoch milliseconds:

- `now_ms` is the server's time. It never goes back and never runs more than 0.05 % faster than real time, so no hold
  and no retry interval ends early. It starts with the system clock. If it is ahead later, because the system clock was
  set back, it runs slower until both agree. If it is behind, only a restart moves it forward at once.
- `calendar_ms` is the time of day, from the system clock, for comparison with times from clients (delivery timestamps).
- `aged_ms` is for removing old data. It is never ahead of the other two, and ignores a forward jump of the system
  clock until the jump is confirmed.

The system clock is the machine's clock, or the database's clock if several servers share one database.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, Protocol

TRIPS = 3
IN_STEP_MS = 1.0
APART_MS = 1_000.0  # a larger difference is a step of the system clock; a smaller one is drift
# By which fraction the server's time runs slower or faster than real time until it agrees with the system clock.
SLOWER_AFTER_A_STEP = 0.2  # corrects 2 h in 10 h; meanwhile a hold of 30 s lasts 37.5 s
SLOWER = 0.01
FASTER = 0.0005  # the kernel adjusts the clock that measures real time by as much


class Alarm(Protocol):
    """A callback at a set time."""

    def cancel(self) -> None: ...


class Times(NamedTuple):
    """All three times at one moment, in epoch ms."""

    now_ms: int
    calendar_ms: int
    aged_ms: int


class Clock(Protocol):
    """Gives the times in epoch ms, and calls back at a time."""

    def times(self) -> Times:
        """All three times at one moment."""

    def now_ms(self) -> int:
        """The server's time. It never goes back."""

    def calendar_ms(self) -> int:
        """The time of day, which operators may set. For comparison with times from clients."""

    def aged_ms(self) -> int:
        """The time that decides whether stored data is old enough to be removed."""

    def ahead_ms(self) -> int:
        """How far the server's time is ahead of the system clock; negative if it is behind."""

    def deadline_ms(self, timeout_ms: int) -> int:
        """The server's time after `timeout_ms` of real time."""

    def start_at_least(self, stored_ms: int) -> None:
        """Start no earlier than the latest stored time."""

    def follow(self, ask: Callable[[], float]) -> None:
        """Approach another clock, which `ask` reads in ms: slowly, and never backwards. Blocks while `ask` runs."""

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm: ...

    def call_on(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Like `call_at` with the time of day. After a step of the system clock the callback may come late."""

    def call_at_deadline(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Like `call_at` for the deadline of a waiting client, which runs in real time also in tests."""


def wall_ms() -> float:
    """The machine's clock, which operators may set at any time."""
    return time.time() * 1_000


_SINCE_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)
# Real time since some moment, in seconds. It includes the time that the machine slept, if the system reports that.
elapsed_s: Callable[[], float] = time.monotonic if _SINCE_BOOT is None else partial(time.clock_gettime, _SINCE_BOOT)


class _Course(NamedTuple):
    """How a clock runs after a reading: faster or slower until a moment of real time, then as real time does."""

    from_s: float
    from_ms: float
    faster: float
    until_s: float

    def at_ms(self, at_s: float) -> float:
        straight_ms = self.from_ms + (at_s - self.from_s) * 1_000
        return straight_ms + (min(at_s, self.until_s) - self.from_s) * 1_000 * self.faster


class SystemClock:
    """Real time. `start_at` and `start_at_least` set it at the start; `follow` adjusts it while the server runs.

    `doubted_ms` is the length of a forward jump of the system clock that is not confirmed (`maintenance.timekeeper`).
    """

    def __init__(self, wall: Callable[[], float] = wall_ms, elapsed: Callable[[], float] = elapsed_s) -> None:
        """`wall` reads the machine's clock in ms, `elapsed` real time in s."""
        self.doubted_ms = 0
        self.stepped_ms = 0.0  # by how much the system clock was set since the last `take_step`
        self._wall = wall
        self._elapsed = elapsed
        # Several threads read and change the clock. The lock ensures that no reading is behind an earlier one.
        self._lock = threading.Lock()
        self._newest_ms = 0
        self._course = self._theirs = self._straight(wall())
        self._is_wall = True

    def wall_ms(self) -> float:
        """The machine's own clock."""
        return self._wall()

    def start_at(self, ask: Callable[[], float], ahead_ms: int = 0) -> None:
        """Start with the time of another clock, plus `ahead_ms` if other servers that follow it are ahead."""
        theirs_ms, _ = self._read(ask)
        with self._lock:
            self._is_wall = False
            self._theirs = self._straight(theirs_ms)
            self._course = self._straight(theirs_ms + ahead_ms)
            self._newest_ms = 0

    def start_at_least(self, stored_ms: int) -> None:
        with self._lock:
            if max(self._newest_ms, int(self._course.at_ms(self._elapsed()))) < stored_ms:
                self._course = self._straight(stored_ms)

    def follow(self, ask: Callable[[], float]) -> None:
        theirs_ms, wrong_ms = self._read(ask)
        with self._lock:
            now_s = self._elapsed()
            step_ms = theirs_ms - self._theirs.at_ms(now_s)
            if abs(step_ms) >= APART_MS + wrong_ms:
                self.stepped_ms += step_ms
            self._theirs = self._straight(theirs_ms)
            now_ms = self._course.at_ms(now_s)
            ahead_ms = now_ms - theirs_ms
            faster = _faster(ahead_ms)
            until_s = now_s + (-ahead_ms / 1_000 / faster if faster else 0.0)
            self._course = _Course(now_s, now_ms, faster, until_s)

    def take_step(self) -> int:
        """By how much the system clock was set since the last call, in ms; 0 if it was not set."""
        with self._lock:
            stepped_ms, self.stepped_ms = self.stepped_ms, 0.0
        return round(stepped_ms)

    def times(self) -> Times:
        with self._lock:
            at_s = self._elapsed()
            self._newest_ms = now_ms = max(self._newest_ms, int(self._course.at_ms(at_s)))
            system_ms = int(self._wall() if self._is_wall else self._theirs.at_ms(at_s))
        calendar_ms = min(system_ms, now_ms) if self.doubted_ms else system_ms
        return Times(now_ms, calendar_ms, min(now_ms, system_ms - self.doubted_ms))

    def now_ms(self) -> int:
        with self._lock:
            self._newest_ms = max(self._newest_ms, int(self._course.at_ms(self._elapsed())))
            return self._newest_ms

    def system_ms(self) -> int:
        """The system clock: the machine's, or the database's as last read."""
        return int(self._exact_system_ms())

    def calendar_ms(self) -> int:
        return int(self._exact_calendar_ms())

    def aged_ms(self) -> int:
        return min(self.now_ms(), self.system_ms() - self.doubted_ms)

    def ahead_ms(self) -> int:
        return self.now_ms() - self.system_ms()

    def deadline_ms(self, timeout_ms: int) -> int:
        with self._lock:
            return int(self._course.at_ms(self._elapsed() + timeout_ms / 1_000))

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return _SystemAlarm(lambda: at_ms - self._exact_ms(), callback)

    def call_on(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return _SystemAlarm(lambda: at_ms - self._exact_calendar_ms(), callback)

    call_at_deadline = call_at

    def _exact_ms(self) -> float:
        """The server's time, with the part of a millisecond that `now_ms` leaves out."""
        with self._lock:
            return max(self._newest_ms, self._course.at_ms(self._elapsed()))

    def _exact_system_ms(self) -> float:
        with self._lock:
            return self._wall() if self._is_wall else self._theirs.at_ms(self._elapsed())

    def _exact_calendar_ms(self) -> float:
        exact_ms = self._exact_system_ms()
        return min(exact_ms, self._exact_ms()) if self.doubted_ms else exact_ms

    def _straight(self, from_ms: float) -> _Course:
        now_s = self._elapsed()
        return _Course(now_s, from_ms, 0.0, now_s)

    def _read(self, ask: Callable[[], float]) -> tuple[float, float]:
        """The other clock's time now, and its greatest error, both in ms; from the fastest of `TRIPS` readings."""
        shortest_s, read_ms, read_s = math.inf, 0.0, 0.0
        for _ in range(TRIPS):
            asked_s = self._elapsed()
            theirs_ms = ask()
            answered_s = self._elapsed()
            if answered_s - asked_s < shortest_s:
                shortest_s = answered_s - asked_s
                read_ms, read_s = theirs_ms, (asked_s + answered_s) / 2
        return read_ms + (self._elapsed() - read_s) * 1_000, shortest_s * 500


def _faster(ahead_ms: float) -> float:
    if ahead_ms >= APART_MS:
        return -SLOWER_AFTER_A_STEP
    if ahead_ms >= IN_STEP_MS:
        return -SLOWER
    return FASTER if ahead_ms <= -IN_STEP_MS else 0.0


class _SystemAlarm:
    """Calls back when no time is left. The server's time may run slower than the timers of the event loop."""

    def __init__(self, left_ms: Callable[[], float], callback: Callable[[], None]) -> None:
        self._left_ms = left_ms
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._set(left_ms())

    def cancel(self) -> None:
        self._timer.cancel()

    def _set(self, left_ms: float) -> None:
        # Rounded up, because uvloop's timers have whole milliseconds, and one that fires early must be set again.
        self._timer = self._loop.call_later(max(0, math.ceil(left_ms)) / 1_000, self._fire)

    def _fire(self) -> None:
        left_ms = self._left_ms()
        if left_ms > 0:
            self._set(left_ms)
        else:
            self._callback()


class Calendar:
    """A clock for a timer that waits for a time of day."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.calendar_ms()

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return self._clock.call_on(at_ms, callback)


class ManualClock:
    """A clock for tests. Its time changes only in `advance`, which calls back in the order of due times."""

    def __init__(self, start_ms: int = 1_735_689_600_000) -> None:
        self._now_ms = start_ms
        self._order = itertools.count()
        self._alarms: list[tuple[int, int, _ManualAlarm]] = []

    def start_at_least(self, stored_ms: int) -> None:
        self._now_ms = max(self._now_ms, stored_ms)

    def follow(self, ask: Callable[[], float]) -> None:
        """Only the test sets this clock."""

    def now_ms(self) -> int:
        return self._now_ms

    calendar_ms = aged_ms = now_ms

    def times(self) -> Times:
        return Times(self._now_ms, self._now_ms, self._now_ms)

    def ahead_ms(self) -> int:
        return 0

    def deadline_ms(self, timeout_ms: int) -> int:
        return self._now_ms + timeout_ms

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        alarm = _ManualAlarm(callback)
        heapq.heappush(self._alarms, (at_ms, next(self._order), alarm))
        return alarm

    call_on = call_at

    def call_at_deadline(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        # Called at the earlier of both: a client's deadline ends in real time although this clock stands still.
        alarm = _ManualAlarm(callback)
        heapq.heappush(self._alarms, (at_ms, next(self._order), alarm))
        alarm.real = asyncio.get_running_loop().call_later(max(0, at_ms - self._now_ms) / 1_000, alarm.fire)
        return alarm

    async def advance(self, by_ms: int, settle: Callable[[], Awaitable[None]]) -> None:
        """Move the clock by `by_ms` and stop at each alarm on the way. `settle` waits for the work that it started.

        Raises `ValueError` if `by_ms` is negative.
        """
        if by_ms < 0:
            raise ValueError(f"the clock cannot go back {-by_ms} ms; advance it by 0 ms or more")
        end_ms = self._now_ms + by_ms
        await settle()
        while self._alarms and self._alarms[0][0] <= end_ms:
            at_ms, _, alarm = heapq.heappop(self._alarms)
            self._now_ms = max(self._now_ms, at_ms)
            if alarm.fire():
                await settle()
        self._now_ms = max(self._now_ms, end_ms)
        await settle()


class _ManualAlarm:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        self.real: asyncio.TimerHandle | None = None

    def cancel(self) -> None:
        self._callback = None
        if self.real is not None:
            self.real.cancel()

    def fire(self) -> bool:
        callback = self._callback
        self.cancel()
        if callback is None:
            return False
        callback()
        return True
