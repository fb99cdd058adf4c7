"""What a consumer does again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from popclient._engine.clock import Clock, sleep
from popclient._session import log
from popclient._tasks import Tasks


class Beats:
    """The beats of one consumer."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks = Tasks()

    def every(self, period: float, work: Callable[[], Awaitable[None]], first: float | None = None) -> None:
        """Does the work every `period` seconds, for the first time in `first` (or `period`) seconds."""
        self._tasks.spawn(self._beat(period if first is None else first, period, work))

    async def _beat(self, first: float, period: float, work: Callable[[], Awaitable[None]]) -> None:
        pause = first
        while True:
            await sleep(self._clock, pause)
            try:
                await work()
            except Exception:  # noqa: BLE001  the next beat may do
                log.exception("%r failed; it is done again in %g s", work, period)
            pause = period

    async def stop(self) -> None:
        self._tasks.cancel()
        await self._tasks.ended()
