"""Servers beside each other on one database: whose a task or an alarm is, and what Postgres tells them of each other.

Their connections that listen are replaced, because a notification would come when Postgres likes. Here it comes at once
or late in simulated time, always in the order of the commits, and not while the connection is cut.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Protocol, TypeVar

from popserver.cluster.listen import POLL_S, NotificationFeed
from popserver.database.database import Database
from popserver.database.notifications import Notification
from popserver.engine.clock import Clock
from popserver.model.retry import SECOND_MS
from tests.support.running_broker import TestedBroker

R = TypeVar("R")

LATE_MS = (0, 0, 0, 300, 2_000)
LOOK_MS = round(POLL_S * SECOND_MS)


class Server:
    """A server from its start to its end. `number`: its place among the servers, which its successor gets again."""

    def __init__(self, number: int, broker: TestedBroker) -> None:
        self.number = number
        self.broker = broker
        self._context = copy_context()
        self._context.run(HERE.set, self)

    def run(self, work: Callable[[], object]) -> None:
        """What it does, and what comes of that, belongs to this server."""
        self._context.copy().run(work)

    def task(self, work: Coroutine[Any, Any, R]) -> asyncio.Task[R]:
        """The work as a task that ends with this server."""
        return asyncio.create_task(work, context=self._context.copy())


HERE: ContextVar[Server | None] = ContextVar("HERE", default=None)  # the server that works now, or is called


class LineClock(Clock, Protocol):
    """A clock on which a call takes time."""

    def pass_at_once(self, by_ms: int) -> None: ...


class Line:
    """Carries the notifications of commits to the servers that listen."""

    def __init__(self, clock: LineClock, chance: random.Random) -> None:
        self.clock = clock
        self.feeds: dict[Server | None, SimulatedFeed] = {}
        self._chance = chance

    def carry(self, payload: str) -> None:
        if payload:
            for feed in self.feeds.values():
                feed.send(payload, self._chance.choice(LATE_MS))


class SimulatedFeed(NotificationFeed):
    """Listens in simulated time. While its connection is cut, the server looks once a second, as it does really."""

    def __init__(
        self, line: Line, database: Database, heard: Callable[[Notification], None], missed: Callable[[], None]
    ) -> None:
        super().__init__(database, heard, missed)
        self._line = line
        self._clock = line.clock
        self._sent: deque[str] = deque()
        self._up_again_ms = 0

    async def start(self) -> None:
        self._context = copy_context()
        self._line.feeds[HERE.get()] = self
        self.is_up = True
        self._missed()

    def send(self, payload: str, late_ms: int) -> None:
        """It is heard after this time."""
        if not self.is_up:
            return
        self._sent.append(payload)
        if late_ms:
            self._context.copy().run(self._clock.call_at, self._clock.now_ms() + late_ms, self._hear_next)
        else:
            asyncio.get_running_loop().call_soon(self._hear_next, context=self._context.copy())

    def cut(self, for_ms: int) -> None:
        """What is sent from now on is lost for so long."""
        self._up_again_ms = self._clock.now_ms() + for_ms
        if self.is_up:
            self._sent.clear()
            self._context.copy().run(self._look)

    def _look(self) -> None:
        self.is_up = self._clock.now_ms() >= self._up_again_ms
        self._missed()
        if not self.is_up:
            self._clock.call_at(self._clock.now_ms() + LOOK_MS, self._look)

    def _hear_next(self) -> None:
        if self._sent:
            self._heard(self._decoded(self._sent.popleft()))


class NoFailover:
    """In place of the watch for another primary: a simulation has one Postgres."""

    def __init__(self, *_given: object) -> None: ...

    def start(self) -> None: ...

    async def close(self) -> None: ...
