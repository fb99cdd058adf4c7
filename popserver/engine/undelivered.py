"""The memory for bodies of answers: counted from their read in the database until the client has received them."""

from __future__ import annotations

import asyncio
from functools import partial

from popserver.engine.clock import Clock
from popserver.engine.transaction import ANSWER_BYTES_MAX
from popserver.model.budget import Budget


class Undelivered:
    """Counts the bodies of all answers that are being sent. A read waits while the budget is used up."""

    def __init__(self, budget: Budget, clock: Clock) -> None:
        self._budget = budget
        self._clock = clock
        self._waiting: set[asyncio.Future[bool]] = set()
        self.has_capacity = budget.used < budget.limit

    def capacity(self) -> int:
        """How many bytes of bodies one transaction may read. Its last message may exceed that."""
        return min(ANSWER_BYTES_MAX, self._budget.limit - self._budget.used)

    def carry(self, size: int) -> None:
        """Count `size` bytes of an answer until `carried`. They may exceed the budget: they are in memory already."""
        self._budget.used += size
        self._budget.peak = max(self._budget.peak, self._budget.used)
        self.has_capacity = self._budget.used < self._budget.limit

    def carried(self, size: int) -> None:
        """The client received the answer, or its call ended."""
        self._budget.give_back(size)
        self.has_capacity = self._budget.used < self._budget.limit
        if self.has_capacity and self._waiting:
            waiting, self._waiting = self._waiting, set()
            for each in waiting:
                _end(each, has_capacity=True)

    async def wait(self, until_ms: int) -> None:
        """Wait until bytes of the budget are free. Raises `TooManyRequests` if none are until `until_ms`."""
        while not self.has_capacity:
            waiting: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiting)
            alarm = self._clock.call_at_deadline(until_ms, partial(_end, waiting, has_capacity=False))
            try:
                if not await waiting:
                    self._budget.refused += 1
                    raise self._budget.refusal("the messages of an answer")
            finally:
                alarm.cancel()
                self._waiting.discard(waiting)


def _end(waiting: asyncio.Future[bool], *, has_capacity: bool) -> None:
    if not waiting.done():
        waiting.set_result(has_capacity)
