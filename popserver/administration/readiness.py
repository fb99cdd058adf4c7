"""Whether the server should get requests, and if not, why.

Liveness asks only this process, never the database: a supervisor that restarts servers while their database is away
makes it worse. Readiness also asks the database. Warnings change neither, because acks and receives free a full disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from popserver.administration import disk
from popserver.administration.disk import DiskSpace
from popserver.database.database import Database
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from popserver.model.errors import PopError
from popserver.model.retry import SECOND_MS
from popserver.model.times import span

ANSWER_MS = 2 * SECOND_MS  # within which the database has to answer
REMEMBERED_MS = SECOND_MS  # how long a report is given again, so that many callers cost one query
TRANSACTION_MS = 10 * SECOND_MS  # from then on a transaction is too slow


class ReadinessCheck(NamedTuple):
    """One condition, and a sentence about it."""

    name: str
    ok: bool
    sentence: str


class ReadinessReport(NamedTuple):
    """The conditions of readiness, and warnings for an operator.

    `space`: that of a SQLite file; None for another database, and for one that did not answer.
    """

    checks: Sequence[ReadinessCheck]
    warnings: Sequence[str]
    space: DiskSpace | None

    @property
    def is_ready(self) -> bool:
        return all(check.ok for check in self.checks)


class Readiness:
    """Checks the parts of one server."""

    def __init__(
        self,
        database: Database,
        reader: Reader,
        writer: Writer,
        hints: Callable[[], Sequence[str]],
        stuck: Callable[[], Awaitable[Sequence[str]]],
    ) -> None:
        """`hints`: further warnings, for example of the clock. `stuck`: what keeps messages from being delivered."""
        self._database = database
        self._reader = reader
        self._writer = writer
        self._hints = hints
        self._stuck = stuck
        self.leaving = asyncio.Event()  # the server stops
        self._asking: asyncio.Task[DiskSpace | None] | None = None
        self._asked_at_s = 0.0
        self._report: ReadinessReport | None = None
        self._reported_at_s = 0.0

    def leave(self) -> None:
        """The server stops: from now on it is not ready."""
        self.leaving.set()

    def liveness(self) -> ReadinessCheck:
        """Whether this process works. That it answers shows that the event loop runs."""
        sentence = "the event loop and the writer run"
        if not self._writer.is_alive:
            sentence = "the writer's thread has ended, so nothing can be stored; restart the server"
        return ReadinessCheck("writer", self._writer.is_alive, sentence)

    def is_live(self) -> bool:
        return self.liveness().ok

    async def is_ready(self) -> bool:
        """A server that stops does not ask the database."""
        return not self.leaving.is_set() and (await self.report()).is_ready

    async def report(self) -> ReadinessReport:
        now_s = asyncio.get_running_loop().time()
        if self._report is None or self.leaving.is_set() or now_s - self._reported_at_s > REMEMBERED_MS / 1_000:
            database, space = await self._database_check()
            checks = [self._leaving(), self.liveness(), self._pace(), database]
            file = self._database.file
            warnings = disk.disk_warnings(file, space) if file is not None and space is not None else []
            stuck = await self._stuck() if database.ok else ()
            self._report = ReadinessReport(checks, [*stuck, *warnings, *self._hints()], space)
            self._reported_at_s = asyncio.get_running_loop().time()
        return self._report

    def _leaving(self) -> ReadinessCheck:
        sentence = "the server is not stopping"
        if self.leaving.is_set():
            sentence = "the server is stopping; it finishes the calls that it has"
        return ReadinessCheck("accepts requests", not self.leaving.is_set(), sentence)

    def _pace(self) -> ReadinessCheck:
        """Whether transactions end soon."""
        began_s, now_s = self._writer.batch_began_s, asyncio.get_running_loop().time()
        running_ms = 0 if began_s is None else round((now_s - began_s) * 1_000)
        sentence = f"{self._writer.waiting} requests wait for the next transaction"
        if running_ms > TRANSACTION_MS:
            sentence = (
                f"the current transaction has run for {span(running_ms)}, and {self._writer.waiting} requests wait"
                f" behind it; more than {span(TRANSACTION_MS)} means a slow disk, a lock, or a database that does not"
                " answer"
            )
        return ReadinessCheck("transactions", running_ms <= TRANSACTION_MS, sentence)

    async def _database_check(self) -> tuple[ReadinessCheck, DiskSpace | None]:
        """Ask the database and the disk below it, unless an earlier question is still without an answer."""
        loop = asyncio.get_running_loop()
        if self._asking is None:
            self._asked_at_s = loop.time()
            self._asking = loop.create_task(self._reader.read(lambda conn: disk.check(conn, self._database.file)))
        asking = self._asking  # another caller may take its answer first
        await asyncio.wait([asking], timeout=ANSWER_MS / 1_000)
        took_ms = round((loop.time() - self._asked_at_s) * 1_000)
        if not asking.done():
            sentence = f"{self._database.name} has not answered for {span(took_ms)}"
            return ReadinessCheck("database", False, sentence), None
        if self._asking is asking:
            self._asking = None
        try:
            space = asking.result()
        except PopError as error:
            return ReadinessCheck("database", False, error.sentence), None
        return ReadinessCheck("database", True, f"{self._database.name} answered in {took_ms} ms"), space
