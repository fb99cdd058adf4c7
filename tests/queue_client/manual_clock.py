"""A client's clock that stands still until a test moves it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable


class ManualTimer:
    def __init__(self, work: Callable[[], object]) -> None:
        self.work: Callable[[], object] | None = work

    def cancel(self) -> None:
        self.work = None


class ManualClock:
    """`advance` calls what falls due, in order, each at its own time."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._due: list[tuple[float, int, ManualTimer]] = []
        self._count = itertools.count()

    def now(self) -> float:
        return self._now

    def epoch_ms(self) -> int:
        return 1_700_000_000_000 + round(self._now * 1_000)

    def call_later(self, seconds: float, work: Callable[[], object], /) -> ManualTimer:
        timer = ManualTimer(work)
        heapq.heappush(self._due, (self._now + max(seconds, 0.0), next(self._count), timer))
        if seconds <= 0:
            asyncio.get_running_loop().call_soon(self._call_due)
        return timer

    async def advance(self, seconds: float) -> None:
        await self._advance_to(self._now + seconds)

    async def _advance_to(self, target: float) -> None:
        while self._due and self._due[0][0] <= target:
            self._now = max(self._now, self._due[0][0])
            self._call_due()
            await self._settle()
        self._now = target
        await self._settle()

    def _call_due(self) -> None:
        while self._due and self._due[0][0] <= self._now:
            _, _, timer = heapq.heappop(self._due)
            if timer.work is not None:
                timer.work()

    @staticmethod
    async def _settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def waits(self, seconds: float) -> bool:
        """Is something due in so many seconds, to the millisecond?"""
        return any(timer.work is not None and abs(at - self._now - seconds) < 0.001 for at, _, timer in self._due)
