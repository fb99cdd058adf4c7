"""When a consumer looks at its share of the queues (requirements J6, J18).

Every consumer has a task of its own for this, so that one whose server or strategy is slow holds up no other of the
same process, and what fails in one stops no other.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from popclient._engine.clock import Clock, Timer, wait_for
from popclient._session import log
from popclient._tasks import Tasks

WAIT_INTERVAL: Final = 20.0  # seconds between two rounds when every queue is where it belongs
MIN_INTERVAL: Final = 1.0  # seconds between two rounds at least, and when something is not
AFTER_LOCK_REFUSAL: Final = 0.5  # seconds


class Balanced(Protocol):
    """A consumer, as its rounds see it."""

    async def do_rebalance(self) -> bool:
        """Is each of its queues where it belongs now?"""


class RebalanceService:
    """Rounds of one consumer: every 20 s, sooner when something is to be done, a second apart at least.

    A notice of the server and a lock that was refused do not wait for that second; the server's are 200 ms apart.
    """

    def __init__(self, clock: Clock, consumer: Balanced) -> None:
        self._clock = clock
        self._consumer = consumer
        self._wanted = asyncio.Event()
        self._at_once = False
        self._refusal: Timer | None = None
        self._tasks = Tasks()
        self._started = False

    def start(self) -> None:
        """Starting it twice is no more than once (requirement J18)."""
        if not self._started:
            self._started = True
            self._tasks.spawn(self._beat())

    def wake(self) -> None:
        """A round is due: at once if the last was a second ago or more."""
        self._wanted.set()

    def wake_at_once(self) -> None:
        """A round is due, however near that is to the last."""
        self._at_once = True
        self._wanted.set()

    def retry_refused(self) -> None:
        """A lock was refused: the next round comes in half a second, one for all that are refused until then."""
        if self._refusal is None:
            self._refusal = self._clock.call_later(AFTER_LOCK_REFUSAL, self._try_refused)

    def _try_refused(self) -> None:
        self._refusal = None
        self.wake_at_once()

    async def stop(self) -> None:
        """No further round begins; the one that goes on is broken off."""
        if self._refusal is not None:
            self._refusal.cancel()
        self._tasks.cancel()
        await self._tasks.ended()

    async def _beat(self) -> None:
        while True:
            self._wanted.clear()
            self._at_once = False
            balanced = await self._round()
            last = self._clock.now()
            await wait_for(self._clock, self._wanted, WAIT_INTERVAL if balanced else MIN_INTERVAL)
            while not self._at_once and (left := last + MIN_INTERVAL - self._clock.now()) > 0:
                self._wanted.clear()
                await wait_for(self._clock, self._wanted, left)

    async def _round(self) -> bool:
        try:
            return await self._consumer.do_rebalance()
        except Exception:  # noqa: BLE001  the next round may do
            log.exception("%r was not rebalanced; it is in the next round", self._consumer)
            return False
