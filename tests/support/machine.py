"""A machine whose clock a test can set: time passes there when the test says so."""

from __future__ import annotations

from popserver.engine.clock import SystemClock

START_MS = 1_735_689_600_000.0


class Machine:
    """Its wall clock, and the real time that has passed."""

    def __init__(self, wall_ms: float = START_MS) -> None:
        self.now_s = 1_000.0
        self.wall_ms = wall_ms

    def run(self, seconds: float) -> None:
        """Real time passes, and the wall clock with it."""
        self.now_s += seconds
        self.wall_ms += seconds * 1_000

    def set_clock(self, by_ms: float) -> None:
        self.wall_ms += by_ms

    def clock(self) -> SystemClock:
        return SystemClock(lambda: self.wall_ms, lambda: self.now_s)

    def live(self, clock: SystemClock, seconds: float, beat_s: float = 10.0) -> None:
        """The clock follows the wall at every beat."""
        while seconds > 0:
            self.run(min(beat_s, seconds))
            clock.follow(clock.wall_ms)
            seconds -= beat_s
