"""The pull loop, which the queue consumers of one event loop share (requirements J15, J18).

Each consumer has a session of its own, which knows its group, and rounds of its own; one dispatcher pulls for all of
them. It starts with the first consumer and ends with the last.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from weakref import WeakKeyDictionary

from popclient._engine.clock import Clock, LoopClock
from popclient._queue_push.pull_requests import PullMessageService
from popclient._queue_push.rebalance import RebalanceService


class ServiceState(StrEnum):
    """The state of a consumer. It never goes back to an earlier one."""

    CREATE_JUST = "CREATE_JUST"
    RUNNING = "RUNNING"
    START_FAILED = "START_FAILED"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"


class PullLoop:
    """Serves all consumers, from the first one that joins until the last one leaves."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.pulls = PullMessageService(clock)
        self._consumers: set[RebalanceService] = set()

    def join(self, rebalancing: RebalanceService) -> None:
        """In the order of RocketMQ: pulls, then rebalancing. A consumer opens its session before it joins."""
        self._consumers.add(rebalancing)
        self.pulls.start()
        rebalancing.start()

    async def leave(self, rebalancing: RebalanceService) -> None:
        """Begins no more rounds; the pulls end with the last consumer. Another one may join while this waits."""
        self._consumers.discard(rebalancing)
        await rebalancing.stop()
        if not self._consumers:
            _forget(self)
            await self.pulls.stop()

    @property
    def consumers(self) -> int:
        return len(self._consumers)


_of_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, PullLoop] = WeakKeyDictionary()


def shared_pull_loop() -> PullLoop:
    """The pull loop of the running event loop."""
    loop = asyncio.get_running_loop()
    if loop not in _of_loop:
        _of_loop[loop] = PullLoop(LoopClock())
    return _of_loop[loop]


def _forget(pull_loop: PullLoop) -> None:
    """It knows its event loop, and would keep it after its end."""
    loop = asyncio.get_running_loop()
    if _of_loop.get(loop) is pull_loop:
        del _of_loop[loop]
