"""A broker that runs in one thread, in simulated time: the same calls in the same order give the same results.

The writer's thread and the readers' threads are replaced by calls in the event loop's own thread. Everything else is
the code that `popmq serve` runs. A database in memory outlives its broker, as a disk outlives a server.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import selectors
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TypeVar
from unittest.mock import patch

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from popserver import broker as brokers
from popserver.engine import writer as writers
from popserver.engine.batch import BatchEntry
from popserver.engine.batch_delay import BatchDelay
from popserver.engine.clock import Alarm, ManualClock, Times
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from proof.simulate.stores import Store
from tests.support.running_broker import TestedBroker

R = TypeVar("R")
HELD_UP_TURNS = 400  # of the event loop, after which what has not ended waits for time to pass


class SimulatedClock(ManualClock):
    """A clock on which waiting clients lose their patience too. Its time of day can be set."""

    ahead_of_server_ms = 0  # the system clock

    def set_forward(self, by_ms: int) -> None:
        """Set the system clock; the server's time goes on as before."""
        self.ahead_of_server_ms += by_ms

    def start_again(self) -> int:
        """The time of a new server is that of the system clock, but never goes back. Returns by how much it jumps."""
        jump_ms = max(0, self.ahead_of_server_ms)
        self._now_ms += jump_ms
        self.ahead_of_server_ms -= jump_ms
        return jump_ms

    def calendar_ms(self) -> int:
        return self._now_ms + self.ahead_of_server_ms

    def aged_ms(self) -> int:
        return min(self._now_ms, self.calendar_ms())

    def ahead_ms(self) -> int:
        return -self.ahead_of_server_ms

    def times(self) -> Times:
        return Times(self._now_ms, self.calendar_ms(), self.aged_ms())

    def call_on(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return self.call_at(at_ms - self.ahead_of_server_ms, callback)

    def call_when_patience_ends(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return self.call_at(at_ms, callback)

    @property
    def next_ms(self) -> int | None:
        """When the next alarm is due."""
        return self._alarms[0][0] if self._alarms else None

    def forget_alarms(self) -> None:
        """Those of a server that is gone."""
        self._alarms.clear()


class StuckError(Exception):
    """Everybody waits, and nothing is due: no event can come any more."""


class _Hurried(selectors.SelectSelector):
    """Does not wait: time that would pass has passed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise StuckError
        self.passed_s += max(0.0, timeout)
        return super().select(0) if timeout else []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in which short waits, such as those of a group commit, take no time."""

    def __init__(self) -> None:
        self._hurried = _Hurried()
        super().__init__(self._hurried)

    def time(self) -> float:
        return self._hurried.passed_s

    # There is one thread, so nothing has to be woken.
    call_soon_threadsafe = asyncio.SelectorEventLoop.call_soon


class Killed(BaseException):
    """The server is killed in the middle of a transaction."""


FULL_DISK = "full disk"
CLOCK_STEP = "clock step"


class Faults:
    """What the next transaction meets; each fault happens once."""

    def __init__(self) -> None:
        self.next = ""
        self.happened = 0
        self.is_dead = False
        self._execute: Callable[..., Any] = vars(writers)["execute_text"]

    def execute(self, conn: Connection, text: str, *values: Any) -> Any:
        """In place of the writer's own statements, which are BEGIN and COMMIT."""
        fault, at = self.next, "COMMIT" if text == "COMMIT" else "BEGIN"
        if not fault.endswith(at):
            return self._execute(conn, text, *values)
        self.next = ""
        self.happened += 1
        if fault.startswith("after"):
            self._execute(conn, text, *values)
        elif at == "COMMIT":
            conn.exec_driver_sql("ROLLBACK")
        if "killed" in fault:
            self.is_dead = True
            raise Killed
        raise OperationalError(text, None, Exception("the connection is lost"), connection_invalidated=True)


FAULTS = (
    "lost at BEGIN",
    "lost at COMMIT",
    "after, lost at COMMIT",
    "killed at BEGIN",
    "killed at COMMIT",
    "after, killed at COMMIT",
    FULL_DISK,
    CLOCK_STEP,
)


class _NoBatch(Exception):
    """The writer has carried out its batch, and asks for the next one."""


class _AtOnce(queue.SimpleQueue[Any]):
    """Lets the writer work as soon as it is given a batch, until it asks for the next one."""

    def __init__(self, writer: InlineWriter) -> None:
        self._writer = writer
        self._batch: Sequence[BatchEntry] = ()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._batch = item
        with suppress(_NoBatch):
            self._writer.work()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._batch:
            raise _NoBatch
        batch, self._batch = self._batch, ()
        return batch


class _NoDelay(BatchDelay):
    """Requests that arrive in one turn of the event loop are in one batch, and no others."""

    def wait_s(self, waiting: int, now_s: float) -> float:
        return 0.0


class InlineWriter(Writer):
    """A writer without a thread."""

    faults: Faults

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._batches = _AtOnce(self)
        self._delay = _NoDelay()

    def work(self) -> None:
        if not self.faults.is_dead:
            self._work()

    def _run(self, batch: Sequence[BatchEntry], *more: Any, **named: Any) -> None:
        try:
            super()._run(batch, *more, **named)
        except Killed:
            batch = []

    async def close(self) -> None:
        self._closed = True

    def die(self) -> None:
        """As the end of a process: its connection is gone, and the database rolls back what was open."""
        self._disconnect()


class InlineReader(Reader):
    """A reader without threads."""

    async def _run(self, work: Callable[[], R]) -> R:
        await asyncio.sleep(0)
        return work()


@contextmanager
def in_one_thread(faults: Faults, chance: random.Random) -> Iterator[None]:
    """Brokers made in this block run in one thread, and meet these faults. Random bytes come from `chance`."""
    with ExitStack() as patches:
        writer = type("FaultyWriter", (InlineWriter,), {"faults": faults})
        for where, name, instead in (
            (brokers, "Writer", writer),
            (brokers, "Reader", InlineReader),
            (writers, "execute_text", faults.execute),
            (os, "urandom", chance.randbytes),
        ):
            patches.enter_context(patch.object(where, name, instead))
        yield


def _number(task: asyncio.Task[Any]) -> tuple[int, str]:
    """Tasks are numbered as they begin: Task-1, Task-2 …"""
    name = task.get_name()
    return len(name), name


class Machine:
    """A server that can be killed, and its database."""

    def __init__(self, store: Store, clock: SimulatedClock, faults: Faults) -> None:
        self.store = store
        self.clock = clock
        self.faults = faults
        self.broker: TestedBroker
        self.clock_was_set: Callable[[int], None] = lambda _by_ms: None  # told of each step, in ms

    async def start(self) -> None:
        self.faults.next, self.faults.is_dead = "", False
        self.broker = TestedBroker(self.store.database, self.clock, auto_create=True)
        self.broker.writer.start()
        await self.broker.start()

    async def restart(self, calls: Sequence[asyncio.Task[None]] = ()) -> None:
        """Kill the server if it is not dead yet, and start another one on the same store.

        `calls` break off in their order.
        """
        self.faults.is_dead = True
        self.store.free()
        self.clock.forget_alarms()
        if jump_ms := self.clock.start_again():
            self.clock_was_set(-jump_ms)
        others = asyncio.all_tasks() - {asyncio.current_task(), *calls}
        left = [*calls, *sorted(others, key=_number)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self.stop()
        await self.start()

    def set_clock(self, by_ms: int) -> None:
        """The system clock is set, and the server notices it."""
        self.clock.set_forward(by_ms)
        self.clock_was_set(by_ms)
        self.broker._on_clock_change()

    def stop(self) -> None:
        """The server's connection ends with it."""
        writer = self.broker.writer
        assert isinstance(writer, InlineWriter)
        writer.die()

    async def settle(self) -> None:
        """Return when everything that is due now is done, or waits for time to pass."""
        waits = asyncio.ensure_future(self.broker.settle())
        for _ in range(HELD_UP_TURNS):
            if waits.done() or self.faults.is_dead:
                break
            await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)

    async def advance(self, by_ms: int) -> None:
        """Let time pass; after a fault has killed the server nothing else happens."""
        await self.clock.advance(by_ms, self.settle)
