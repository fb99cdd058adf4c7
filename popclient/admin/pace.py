"""Limits the number of messages per second; the clock is an argument."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

STEP_MAX: Final = 1_000  # what the server does in one transaction
SMOOTH_S: Final = 0.2  # a step is what this time allows: often enough to look even, seldom enough to be cheap


class Pace:
    """Hands out steps of at most `rate` messages a second; without a rate, whole steps at once.

    now: seconds on a clock that never goes back. wait: sleeps so many seconds. What a slow server leaves unused is not
    made up for: the rate is a bound at every moment, not an average.
    """

    def __init__(
        self,
        rate: float | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        if rate is not None and not 0 < rate < float("inf"):
            raise ValueError(
                f"rate is {rate} messages a second; it must be more than 0, or None for as fast as it goes"
            )
        self._rate = rate
        self._now = now
        self._wait = wait
        self._began = self._free_at = now()
        self.step = STEP_MAX if rate is None else max(1, min(STEP_MAX, int(rate * SMOOTH_S)))

    def await_turn(self) -> None:
        """Returns when the next step, of at most `step` messages, may begin."""
        if (rest := self._free_at - self._now()) > 0:
            self._wait(rest)
        self._began = self._now()

    async def turn(self) -> None:
        """`await_turn` for coroutines."""
        if (rest := self._free_at - self._now()) > 0:
            await asyncio.sleep(rest)
        self._began = self._now()

    def spent(self, messages: int) -> None:
        """The step that began last sent so many."""
        if self._rate is not None:
            self._free_at = self._began + messages / self._rate
