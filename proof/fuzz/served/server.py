"""A server for a fuzzing target: its handlers called without a network, on a manual clock and a SQLite file."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sqlite3
import tempfile
from collections.abc import Callable, Collection, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, ClassVar, NoReturn, TypeVar

import structlog

from popserver.database.check import check_integrity
from popserver.engine.clock import ManualClock
from popserver.transport.call import Encodable, EndStatus, Route, Write
from tests.support.wire_server import LIMITS, WireServer, opened

T = TypeVar("T")
PATIENCE_S = 60.0  # no proof of speed, a net: every input is answered without waiting
START_MS = 1_735_689_600_000


class ServedStore:
    """A server in an event loop; what it logs as an error is in `errors`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.errors: list[str] = []
        self._loop = loop
        self._folder = tempfile.TemporaryDirectory(prefix="popmq-fuzz-")
        self._log_before = structlog.get_config()
        structlog.configure(processors=[self._note], wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
        self._loop.set_exception_handler(lambda _loop, found: self.errors.append(repr(found)))
        self._stack = AsyncExitStack()
        self.clock = ManualClock(START_MS)
        folder = Path(self._folder.name)
        opening = opened(
            folder, clock=self.clock, limits=LIMITS._replace(poll_ms_max=0, silence_ms=60_000), administered=True
        )
        self.wire_server: WireServer = self.run(self._stack.enter_async_context(opening))
        self.routes: Mapping[str, Route] = self.wire_server.server._doors[0]._shared.routes  # type: ignore[attr-defined]
        self._snapshot = sqlite3.connect(folder / "popmq.db", isolation_level=None)
        self._present = sqlite3.connect(folder / "popmq.db", isolation_level=None)
        names = self._present.execute(_TABLES).fetchall()
        self._tables = [name for (name,) in names]

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def in_time() -> T:
            async with asyncio.timeout(PATIENCE_S):
                return await work

        return self._loop.run_until_complete(in_time())

    def call(
        self, path: str, headers: Mapping[str, str], frames: Sequence[bytes]
    ) -> tuple[list[bytes], EndStatus | None]:
        """The frames of the answer, and the gRPC status if it is not OK."""
        route = self.routes[path]
        call = FakeCall(headers, frames)

        async def answer() -> None:
            returned = await route.handler(call)
            if returned is not None:
                call.answers.append(returned)
            for callback in call.callbacks:
                callback()
            await self.wire_server.broker.settle()

        self.run(answer())
        return [route.encode(each) for each in call.answers], call.status

    def remember(self) -> None:
        """Keep the store as it is now for `changes`."""
        self._snapshot.execute("BEGIN")
        self._snapshot.execute("SELECT COUNT(*) FROM topic").fetchone()
        self._version = self._version_now()

    def changes(self, only_grown: Collection[str] = ()) -> list[str]:
        """The tables that differ from what was remembered. Those of `only_grown` may have more rows."""
        if self._version_now() == self._version:
            return []
        return [each for each in self._tables if self._differs(each, may_grow=each in only_grown)]

    def _differs(self, table: str, *, may_grow: bool) -> bool:
        before, after = self._rows(self._snapshot, table), self._rows(self._present, table)
        return before != after and not (may_grow and set(before) <= set(after))

    def forget(self) -> None:
        self._snapshot.execute("ROLLBACK")

    def check(self) -> None:
        """Raises if an invariant of the store does not hold."""
        with self.wire_server.broker.engine.database.read() as conn:
            check_integrity(conn)

    def advance(self, by_ms: int) -> None:
        self.run(self.clock.advance(by_ms, self.wire_server.broker.settle))

    def close(self) -> None:
        self._snapshot.close()
        self._present.close()
        self.run(self._stack.aclose())
        self._loop.set_exception_handler(None)
        self._folder.cleanup()
        structlog.configure(**self._log_before)

    def _version_now(self) -> int:
        (version,) = self._present.execute("PRAGMA data_version").fetchone()
        return int(version)

    def _rows(self, connection: sqlite3.Connection, table: str) -> list[Any]:
        return connection.execute(f"SELECT * FROM {table}").fetchall()

    def _note(self, _logger: object, _method: str, event: MutableMapping[str, Any]) -> NoReturn:
        self.errors.append("; ".join(f"{name}={value}" for name, value in event.items()))
        raise structlog.DropEvent


def digest_of(connection: sqlite3.Connection) -> dict[str, str]:
    """For each table, a number for its rows."""
    names = [name for (name,) in connection.execute(_TABLES).fetchall()]
    rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in names}
    return {name: hashlib.sha256(repr(of_table).encode()).hexdigest() for name, of_table in rows.items()}


_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"


class Gone(Exception):
    """Never raised: the caller always reads."""


class FakeCall:
    """`transport.call.Call` of a caller that has sent everything, and reads everything."""

    Disconnected: ClassVar[type[Exception]] = Gone
    peer = "127.0.0.1:50000"
    is_cancelled = False

    def __init__(self, headers: Mapping[str, str | bytes], frames: Sequence[bytes]) -> None:
        self.headers = headers
        self.answers: list[Encodable] = []
        self.callbacks: list[Callable[[], None]] = []
        self.status: EndStatus | None = None
        self._frames = list(frames)

    def remaining_ms(self) -> int | None:
        return None

    def take(self) -> bytes | None:
        return self._frames.pop(0) if self._frames else None

    async def next_size(self) -> int | None:
        return len(self._frames[0]) if self._frames else None

    def grant(self) -> None: ...

    async def next(self) -> bytes | None:
        return self.take()

    def signed(self) -> None: ...

    def hang_up(self, why: str) -> None:
        raise AssertionError(why)

    async def send_headers(self) -> None: ...

    @property
    def write(self) -> Write:
        async def write(frame: Encodable) -> None:
            self.answers.append(frame)

        return write

    def end(self, status: EndStatus) -> None:
        self.status = status

    def on_end(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)
