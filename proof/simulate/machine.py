"""Brokers that run in one thread, in simulated time: the same calls in the same order give the same results.

The writer's thread and the readers' threads are replaced by calls in the event loop's own thread. Everything else is
the code that `popmq serve` runs. A database in memory outlives its broker, as a disk outlives a server.
"""

from __future__ import annotations

import asyncio
import heapq
import queue
import random
import selectors
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch
from weakref import WeakKeyDictionary

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from popserver.broker import engine as brokers
from popserver.cluster import servers as clusters
from popserver.database.database import Database
from popserver.engine import writer as writers
from popserver.engine.batch import BatchDelay, BatchEntry
from popserver.engine.clock import Alarm, ManualClock, Times
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from popserver.producing import pending
from popserver.receiving import receive
from proof.simulate.servers import HERE, Line, NoFailover, Server, SimulatedFeed
from proof.simulate.stores import Store
from tests.support.running_broker import TestedBroker

R = TypeVar("R")
HELD_UP_TURNS = 400  # of the event loop, after which what has not ended waits for time to pass


class SimulatedClock(ManualClock):
    """A clock on which waiting clients lose their patience too. Its time of day can be set."""

    ahead_of_server_ms = 0  # the system clock

    def __init__(self) -> None:
        super().__init__()
        self._owners: WeakKeyDictionary[Alarm, Server] = WeakKeyDictionary()

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

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        alarm = super().call_at(at_ms, partial(copy_context().run, callback))
        if (server := HERE.get()) is not None:
            self._owners[alarm] = server
        return alarm

    def call_on(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return self.call_at(at_ms - self.ahead_of_server_ms, callback)

    def call_at_deadline(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return self.call_at(at_ms, callback)

    def pass_at_once(self, by_ms: int) -> None:
        """A call takes so long; what is due meanwhile comes late."""
        self._now_ms += by_ms

    def forget_alarms(self, server: Server) -> None:
        """Those of a server that is gone."""
        self._alarms = [each for each in self._alarms if self._owners.get(each[2]) is not server]
        heapq.heapify(self._alarms)


class ApartClock:
    """A server's own clock, which is ahead of the right one: servers on Postgres agree to a few milliseconds."""

    def __init__(self, right: SimulatedClock, by_ms: int) -> None:
        self._right, self._by_ms = right, by_ms

    def start_at_least(self, stored_ms: int) -> None:
        self._by_ms = max(self._by_ms, stored_ms - self._right.now_ms())

    def follow(self, ask: Callable[[], float]) -> None:
        """It stays apart."""

    def now_ms(self) -> int:
        return self._right.now_ms() + self._by_ms

    def calendar_ms(self) -> int:
        return self._right.calendar_ms()

    def aged_ms(self) -> int:
        return min(self.now_ms(), self.calendar_ms())

    def ahead_ms(self) -> int:
        return self.now_ms() - self.calendar_ms()

    def times(self) -> Times:
        return Times(self.now_ms(), self.calendar_ms(), self.aged_ms())

    def deadline_ms(self, timeout_ms: int) -> int:
        return self.now_ms() + timeout_ms

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return self._right.call_at(at_ms - self._by_ms, callback)

    def call_on(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        return self._right.call_on(at_ms, callback)

    call_at_deadline = call_at


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
        self._owners: WeakKeyDictionary[asyncio.Task[Any], Server | None] = WeakKeyDictionary()

    def time(self) -> float:
        return self._hurried.passed_s

    def create_task(self, *given: Any, **more: Any) -> asyncio.Task[Any]:
        task = super().create_task(*given, **more)
        self._owners[task] = (more.get("context") or copy_context()).get(HERE)
        return task

    def tasks_of(self, server: Server) -> list[asyncio.Task[Any]]:
        """Those that belong to this server, in the order of their beginning."""
        found = [task for task in asyncio.all_tasks(self) if self._owners.get(task) is server]
        return sorted(found, key=_number)

    # There is one thread, so nothing has to be woken.
    call_soon_threadsafe = asyncio.SelectorEventLoop.call_soon


class Killed(BaseException):
    """The server is killed in the middle of a transaction."""


FULL_DISK = "full disk"
CLOCK_STEP = "clock step"
CLIENT_DIES = "client dies"
CUT_OFF = "server hears no other"
RESTART = "server killed and started"


class Faults:
    """What the next transaction of any server meets; each fault happens once."""

    def __init__(self, line: Line, flush_ms: int = 0) -> None:
        """`flush_ms`: how long each COMMIT takes."""
        self.next = ""
        self.flush_ms = flush_ms
        self.happened: Counter[str] = Counter()
        self.unforeseen: list[str] = []  # exceptions that no fault explains
        self.line = line
        self._execute: Callable[..., Any] = vars(writers)["execute_text"]
        self._commit = Database.commit

    def execute(self, conn: Connection, text: str, *values: Any) -> Any:
        """In place of the writer's own statements, which are BEGIN and COMMIT."""
        return self._meet(conn, text, lambda: self._execute(conn, text, *values))

    def commit(self, database: Database, conn: Connection, notification: str = "", *, waits: bool = False) -> None:
        """In place of the COMMIT of a server beside others, which notifies them."""

        def commit() -> None:
            self._commit(database, conn, notification, waits=waits)
            self.line.carry(notification)

        self._meet(conn, "COMMIT", commit)

    def _meet(self, conn: Connection, text: str, execute: Callable[[], Any]) -> Any:
        fault, at = self.next, "COMMIT" if text == "COMMIT" else "BEGIN"
        if at == "COMMIT":
            self.line.clock.pass_at_once(self.flush_ms)
        if not fault.endswith(at):
            return execute()
        self.next = ""
        self.happened[fault] += 1
        if fault.startswith("after"):
            execute()
        elif at == "COMMIT":
            conn.exec_driver_sql("ROLLBACK")
        if "killed" in fault:
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


class _Log:
    """In place of the writer's: errors with an exception are mistakes of the code. What faults do has none."""

    def __init__(self, unforeseen: list[str]) -> None:
        self._unforeseen = unforeseen

    def error(self, event: str, *, exception: str = "", **_named: object) -> None:
        if exception:
            self._unforeseen.append(f"{event}: {exception}")

    def __getattr__(self, _level: str) -> Callable[..., None]:
        return lambda *_given, **_named: None


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

    is_dead = False

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._batches = _AtOnce(self)
        self._delay = _NoDelay()

    def work(self) -> None:
        if not self.is_dead:
            self._work()

    def _run(self, batch: Sequence[BatchEntry], *more: Any, **named: Any) -> None:
        try:
            if not self.is_dead:  # killed in the first half of a batch
                super()._run(batch, *more, **named)
        except Killed:
            self.is_dead = True

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

    def commit(*given: Any, **named: Any) -> None:
        faults.commit(*given, **named)

    with ExitStack() as patches:
        for where, name, instead in (
            (brokers, "Writer", InlineWriter),
            (brokers, "Reader", InlineReader),
            (writers, "execute_text", faults.execute),
            (writers, "log", _Log(faults.unforeseen)),
            (Database, "commit", commit),
            (clusters, "NotificationFeed", partial(SimulatedFeed, faults.line)),
            (clusters, "FailoverWatch", NoFailover),
            (clusters, "secrets", SimpleNamespace(token_hex=lambda size: chance.randbytes(size).hex())),
            # Only there: libraries take random bytes too, at their first use in a process.
            (receive, "os", SimpleNamespace(urandom=chance.randbytes)),
            (pending, "os", SimpleNamespace(urandom=chance.randbytes)),
        ):
            patches.enter_context(patch.object(where, name, instead))
        yield


def _number(task: asyncio.Task[Any]) -> tuple[int, str]:
    """Tasks are numbered as they begin: Task-1, Task-2 …"""
    name = task.get_name()
    return len(name), name


class Machine:
    """So many servers, each of which can be killed, and their database."""

    def __init__(
        self, store: Store, clock: SimulatedClock, faults: Faults, count: int = 1, apart: Sequence[int] = ()
    ) -> None:
        """`apart`: by how many milliseconds the clock of each server is ahead."""
        self._apart = apart
        self.store = store
        self.clock = clock
        self.faults = faults
        self.count = count
        self.servers: list[Server] = []  # that were started and not killed
        self.clock_was_set: Callable[[int], None] = lambda _by_ms: None  # told of each step, in ms

    @property
    def here(self) -> Server:
        """The server that the running task calls; any one if it calls none."""
        return HERE.get() or self.servers[0]

    @property
    def broker(self) -> TestedBroker:
        return self.here.broker

    @property
    def dead(self) -> list[Server]:
        """Those that a fault has killed."""
        return [each for each in self.servers if _writer(each).is_dead]

    async def start(self) -> None:
        """Start the servers that do not run."""
        missing = sorted(set(range(self.count)) - {each.number for each in self.servers})
        if not missing:
            return
        self.faults.next = ""
        if jump_ms := self.clock.start_again():
            self.clock_was_set(-jump_ms)
        for number in missing:
            clock = ApartClock(self.clock, self._apart[number]) if self._apart else self.clock
            broker = TestedBroker(self.store.database, clock, auto_create=True, shared=self.count > 1)
            server = Server(number, broker)
            server.run(broker.engine.writer.start)
            self.servers.append(server)
            await server.task(broker.start())

    async def kill(self, server: Server, calls: Sequence[asyncio.Task[None]] = ()) -> None:
        """Kill the server if it is not dead yet. Those of `calls` that it would answer break off in their order."""
        _writer(server).is_dead = True
        self.store.free()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        tasks = loop.tasks_of(server)
        left = [*(each for each in calls if each in tasks), *(each for each in tasks if each not in calls)]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        self._silence(server)
        self.servers.remove(server)
        _writer(server).die()

    def set_clock(self, by_ms: int) -> None:
        """The system clock is set, and the servers notice it."""
        self.clock.set_forward(by_ms)
        self.clock_was_set(by_ms)
        for each in self.servers:
            each.run(each.broker._on_clock_change)

    def stop(self) -> None:
        """The servers' connections end with them."""
        for each in self.servers:
            _writer(each).die()

    async def settle(self) -> None:
        """Return when everything that is due now is done, or waits for time to pass."""
        dead = self.dead
        for each in dead:
            self._silence(each)
        waits = asyncio.ensure_future(self._settled([each for each in self.servers if each not in dead]))
        for _ in range(HELD_UP_TURNS):
            if waits.done() or self.dead != dead:
                break
            await asyncio.sleep(0)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)

    async def advance(self, by_ms: int) -> None:
        """Let time pass; a server that a fault has killed does nothing any more."""
        await self.clock.advance(by_ms, self.settle)

    async def _settled(self, servers: Sequence[Server]) -> None:
        for _ in servers:  # once more for each, because what one has done may give the others something to do
            await asyncio.gather(*(each.broker.settle() for each in servers))

    def _silence(self, server: Server) -> None:
        self.clock.forget_alarms(server)
        self.faults.line.feeds.pop(server, None)


def _writer(server: Server) -> InlineWriter:
    writer = server.broker.engine.writer
    assert isinstance(writer, InlineWriter)
    return writer
