"""Queries that change nothing: a small pool of connections beside the writer's connection.

An in-memory database has only one connection, so the writer runs its queries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import Connection

from popserver.database.database import READERS_MAX, Database
from popserver.engine.transaction import Read
from popserver.engine.writer import Writer
from popserver.model.retry import MINUTE_MS, SECOND_MS

T = TypeVar("T")
R = TypeVar("R")


class Reader:
    """Runs queries outside of the event loop's thread."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer
        self._pool = ThreadPoolExecutor(READERS_MAX, thread_name_prefix="popmq-reader")
        self._given: set[Future[Any]] = set()  # queries that the pool has not ended yet

    @property
    def waiting(self) -> int:
        """Queries that wait for a free connection."""
        return sum(not each.running() and not each.done() for each in self._given.copy())

    async def read(self, query: Callable[[Connection], T]) -> T:
        """The result of `query`, which sees one consistent state of the database."""
        return await self._read_in_pool(query, by_index=False)

    async def look_up(self, query: Callable[[Connection], T]) -> T:
        """The same for a query that finds few rows by an index. Postgres is kept from reading whole tables."""
        return await self._read_in_pool(query, by_index=True)

    async def read_then(self, query: Callable[[Connection], T], then: Callable[[T], R]) -> R:
        """The result of `then`, called with the result of `query`. `then` may be slow: it never runs in the writer."""
        if self._database.is_memory:
            found = await self.read(query)
            return await self._run(lambda: then(found))
        return await self._run(lambda: then(self._read(query)))

    async def close(self) -> None:
        """Wait for the queries that run."""
        await asyncio.to_thread(self._pool.shutdown)

    async def _read_in_pool(self, query: Callable[[Connection], T], *, by_index: bool) -> T:
        if self._database.is_memory:
            return await self._writer.submit(Read(query))
        return await self._run(lambda: self._read(query, by_index=by_index))

    async def _run(self, work: Callable[[], R]) -> R:
        given = self._pool.submit(work)
        self._given.add(given)
        given.add_done_callback(self._given.discard)
        return await asyncio.wrap_future(given)

    def _read(self, query: Callable[[Connection], T], *, by_index: bool = False) -> T:
        with self._database.read(by_index=by_index) as conn:
            return query(conn)


SLOW_QUERY_MS = 5 * SECOND_MS  # requirement A8


# A limit for log lines that callers can cause again and again.

LOG_AGAIN_MS = MINUTE_MS


class LogLimit:
    """Allows one log line per minute, or `lines`, and counts the others."""

    def __init__(self, again_ms: int = LOG_AGAIN_MS, lines: int = 1) -> None:
        self._again_ms = again_ms
        self._lines = self._left = lines
        self._began_ms: int | None = None
        self._dropped = 0

    def dropped(self, now_ms: int) -> int | None:
        """None if this line must not be logged. Otherwise how many lines were dropped since the last one."""
        if self._began_ms is None or now_ms - self._began_ms >= self._again_ms:
            self._began_ms, self._left = now_ms, self._lines
        if not self._left:
            self._dropped += 1
            return None
        self._left -= 1
        dropped, self._dropped = self._dropped, 0
        return dropped
