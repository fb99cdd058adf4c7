"""The only readers of time.

Everything below the broker is handed its times. A server has three, all in epoch milliseconds:

`now_ms`, the server's time: it never goes back and never runs faster than real time, so nothing that lasts a given
time (a hold, a retry interval) ends early. It begins at the system's clock. When it is ahead of that clock later on,
because that clock was set back, it runs slower until they meet; when it is behind, only a start brings it forward.
`calendar_ms`, the time of day, for comparison with times that clients name (delivery timestamps): the system's clock.
`aged_ms`, by which old things are removed: never ahead of the other two, nor of a jump that is not believed yet.

The system's clock is the machine's, or that of the database when several servers share one.
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
APART_MS = 1_000.0  # from here on it is a step of the system's clock, not the drift between two clocks
# Each is the part by which server time runs slower or faster than real time until it meets the system's clock.
SLOWER_AFTER_A_STEP = 0.2  # 2 h are made good in 10 h, and meanwhile a hold of 30 s lasts 37.5 s
SLOWER = 0.01
FASTER = 0.0005  # as far as the kernel itself adjusts the clock that measures real time


class Alarm(Protocol):
    """Something that will happen at a set time unless cancelled."""

    def cancel(self) -> None: ...


class Times(NamedTuple):
    """One reading of all three times."""

    now_ms: int
    calendar_ms: int
    aged_ms: int


class Clock(Protocol):
    """Epoch milliseconds, and a way to be called at one of them."""

    def times(self) -> Times:
        """All three times at one moment."""

    def now_ms(self) -> int:
        """The server's time; it never goes back."""

    def calendar_ms(self) -> int:
        """The time of day, which may be set: for comparison with times that clients name."""

    def aged_ms(self) -> int:
        """The time by which the age of what is stored is judged."""

    def ahead_ms(self) -> int:
        """How far the server's time is ahead of the system's clock; negative when it is behind."""

    def patience_ends_ms(self, patience_ms: int) -> int:
        """The server's time after `patience_ms` of real time."""

    def start_at_least(self, stored_ms: int) -> None:
        """Not behind what is already stored."""

    def follow(self, ask: Callable[[], float]) -> None:
        """Keep step with another clock, which `ask` reads (ms); slowly, and never back. Waits for the answers."""

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm: ...

    def call_on(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Like `call_at`, by the calendar. After a step of the system's clock the callback may come late."""

    def call_when_patience_ends(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Like `call_at`, for a caller that waits on the other side of a wire: its patience is real."""


def wall_ms() -> float:
    """The machine's clock, which may be set at any time."""
    return time.time() * 1_000


_SINCE_BOOT: int | None = getattr(time, "CLOCK_BOOTTIME", None)
# Real time since some moment, in seconds; where the system can say so, the time that the machine slept counts.
elapsed_s: Callable[[], float] = time.monotonic if _SINCE_BOOT is None else partial(time.clock_gettime, _SINCE_BOOT)


class _Course(NamedTuple):
    """How a clock goes: from a reading on, faster or slower until a moment of real time, then straight."""

    from_s: float
    from_ms: float
    faster: float
    until_s: float

    def at_ms(self, at_s: float) -> float:
        straight_ms = self.from_ms + (at_s - self.from_s) * 1_000
        return straight_ms + (min(at_s, self.until_s) - self.from_s) * 1_000 * self.faster


class SystemClock:
    """Real time. `start_at` and `start_at_least` are for its beginning; `follow` for its life.

    `doubted_ms` is how much of the system clock's time is a jump that is not believed yet (`maintenance.timekeeper`).
    """

    def __init__(self, wall: Callable[[], float] = wall_ms, elapsed: Callable[[], float] = elapsed_s) -> None:
        """`wall` reads the machine's clock in ms, `elapsed` real time in s."""
        self.doubted_ms = 0
        self.stepped_ms = 0.0  # by how much the system's clock was set, since `take_step` was asked
        self._wall = wall
        self._elapsed = elapsed
        # Read and changed by several threads: under the lock, so that no reading is behind an earlier one.
        self._lock = threading.Lock()
        self._newest_ms = 0
        self._course = self._theirs = self._straight(wall())
        self._is_wall = True

    def wall_ms(self) -> float:
        """The machine's own clock."""
        return self._wall()

    def start_at(self, ask: Callable[[], float], ahead_ms: int = 0) -> None:
        """Begin where another clock stands, or as far ahead of it as other servers that follow it are."""
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
        """By how much the system's clock was set since this was last asked, in ms; 0 while it only runs."""
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
        """The system's clock: the machine's, or the database's as it was last read."""
        with self._lock:
            return int(self._wall() if self._is_wall else self._theirs.at_ms(self._elapsed()))

    def calendar_ms(self) -> int:
        system_ms = self.system_ms()
        return min(system_ms, self.now_ms()) if self.doubted_ms else system_ms

    def aged_ms(self) -> int:
        return min(self.now_ms(), self.system_ms() - self.doubted_ms)

    def ahead_ms(self) -> int:
        return self.now_ms() - self.system_ms()

    def patience_ends_ms(self, patience_ms: int) -> int:
        with self._lock:
            return int(self._course.at_ms(self._elapsed() + patience_ms / 1_000))

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return _SystemAlarm(lambda: at_ms - self.now_ms(), callback)

    def call_on(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return _SystemAlarm(lambda: at_ms - self.calendar_ms(), callback)

    call_when_patience_ends = call_at

    def _straight(self, from_ms: float) -> _Course:
        now_s = self._elapsed()
        return _Course(now_s, from_ms, 0.0, now_s)

    def _read(self, ask: Callable[[], float]) -> tuple[float, float]:
        """What the other clock says now, as the shortest of a few trips has it; and by how much that may be wrong."""
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
    """Rings when nothing is left; the clock may run slower than the timers of the event loop."""

    def __init__(self, left_ms: Callable[[], int], callback: Callable[[], None]) -> None:
        self._left_ms = left_ms
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._set(left_ms())

    def cancel(self) -> None:
        self._timer.cancel()

    def _set(self, left_ms: int) -> None:
        # One millisecond more: a timer that fires early by rounding would only have to be set again.
        self._timer = self._loop.call_later(max(0, left_ms + 1) / 1_000, self._ring)

    def _ring(self) -> None:
        left_ms = self._left_ms()
        if left_ms > 0:
            self._set(left_ms)
        else:
            self._callback()


class Calendar:
    """The clock of a sleeper that waits for a time of day."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.calendar_ms()

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return self._clock.call_on(at_ms, callback)


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

    calendar_ms = aged_ms = now_ms

    def times(self) -> Times:
        return Times(self._now_ms, self._now_ms, self._now_ms)

    def ahead_ms(self) -> int:
        return 0

    def patience_ends_ms(self, patience_ms: int) -> int:
        return self._now_ms + patience_ms

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        alarm = _ManualAlarm(callback)
        heapq.heappush(self._alarms, (at_ms, next(self._order), alarm))
        return alarm

    call_on = call_at

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
