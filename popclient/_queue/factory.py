"""What the queue consumers of one event loop share: the loop of pulls, and the beat of rebalancing (rows J6, J15, J18).

Each consumer has a session of its own, which knows its group; all of them are balanced in turn by one task, and pulled
for by one dispatcher. Both start with the first consumer and end with the last.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from popclient._queue.clock import Clock, LoopClock, wait_for
from popclient._queue.pulling import PullMessageService
from popclient._session import log
from popclient._tasks import Tasks

WAIT_INTERVAL: Final = 20.0  # seconds between two rounds when every queue is where it belongs
MIN_INTERVAL: Final = 1.0  # seconds between two rounds at least, and when something is not
AFTER_LOCK_REFUSAL: Final = 0.5  # seconds


class ServiceState(StrEnum):
    """Where a consumer is in its life; there is no way back."""

    CREATE_JUST = "CREATE_JUST"
    RUNNING = "RUNNING"
    START_FAILED = "START_FAILED"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"


class Balanced(Protocol):
    """A consumer, as the beat sees it."""

    async def do_rebalance(self) -> bool:
        """Is each of its queues where it belongs now?"""


class RebalanceService:
    """Rounds of rebalancing: every 20 s, sooner when something is to be done, never less than a second apart."""

    def __init__(self, clock: Clock, consumers: set[Balanced]) -> None:
        self._clock = clock
        self._consumers = consumers
        self._wanted = asyncio.Event()
        self._at_once = False
        self._tasks = Tasks()
        self._started = False

    def start(self) -> None:
        """Starting it twice is no more than once (mission row J18)."""
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
        """A lock was refused: the next round comes in half a second."""
        self._clock.call_later(AFTER_LOCK_REFUSAL, self.wake_at_once)

    async def stop(self) -> None:
        self._tasks.cancel()
        await self._tasks.ended()
        self._started = False

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
        """Every consumer in turn; a failure of one stops no other."""
        balanced = True
        for consumer in list(self._consumers):
            try:
                balanced = await consumer.do_rebalance() and balanced
            except Exception:  # noqa: BLE001  one consumer's failure must not stop the others'
                log.exception("%r was not rebalanced; it is in the next round", consumer)
                balanced = False
        return balanced


class ClientFactory:
    """The services that consumers share, from the first that joins to the last that leaves."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._consumers: set[Balanced] = set()
        self.pulls = PullMessageService(clock)
        self.rebalancing = RebalanceService(clock, self._consumers)

    def join(self, consumer: Balanced) -> None:
        """In the order of the field: pulls, then rebalancing; whoever joins has opened its session before."""
        self._consumers.add(consumer)
        self.pulls.start()
        self.rebalancing.start()
        self.rebalancing.wake_at_once()

    async def leave(self, consumer: Balanced) -> None:
        """No further round begins with it; with the last one the services end."""
        self._consumers.discard(consumer)
        if not self._consumers:
            await self.rebalancing.stop()
            await self.pulls.stop()

    @property
    def consumers(self) -> int:
        return len(self._consumers)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, ClientFactory] = WeakKeyDictionary()


def client_factory() -> ClientFactory:
    """That of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loop:
        _of_loop[loop] = ClientFactory(LoopClock())
    return _of_loop[loop]
