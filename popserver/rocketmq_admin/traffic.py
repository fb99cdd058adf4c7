"""How many messages a second this server takes and delivers, from the counts that it keeps for its metrics."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from popserver.engine.clock import Clock
from popserver.engine.meters import Meters
from popserver.model.retry import MINUTE_MS, SECOND_MS

WINDOW_MS = MINUTE_MS


class _Sample(NamedTuple):
    at_ms: int
    taken: int
    delivered: int


class Throughput(NamedTuple):
    """Messages per second."""

    taken: float
    delivered: float


class Traffic:
    """The throughput of the last minute, or of the time since the call before if that was earlier.

    Nothing runs between calls. The first call gets the throughput since the start.
    """

    def __init__(self, meters: Meters, clock: Clock) -> None:
        self._meters = meters
        self._clock = clock
        self._samples = deque([_Sample(clock.now_ms(), 0, 0)])

    def now(self) -> Throughput:
        """Adding up all counts takes some ms on a server with many topics, so it is done at most once a second."""
        now_ms = self._clock.now_ms()
        if now_ms - self._samples[-1].at_ms >= SECOND_MS:
            self._samples.append(self._sample(now_ms))
            while len(self._samples) > 2 and self._samples[1].at_ms <= now_ms - WINDOW_MS:
                self._samples.popleft()
        first, last = self._samples[0], self._samples[-1]
        seconds = (last.at_ms - first.at_ms) / SECOND_MS
        if not seconds:
            return Throughput(0.0, 0.0)
        return Throughput((last.taken - first.taken) / seconds, (last.delivered - first.delivered) / seconds)

    def _sample(self, now_ms: int) -> _Sample:
        sent, delivered = self._meters.sent, self._meters.delivered
        taken = sum(each.sizes.count for each in (*sent.values(), *([sent.others] if sent.others else [])))
        given = (*delivered.values(), *([delivered.others] if delivered.others else []))
        return _Sample(now_ms, taken, sum(each.delays.count + each.held + each.retries for each in given))
