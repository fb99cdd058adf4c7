"""Queries that change nothing: a small pool of connections beside the writer's connection.

An in-memory database has only one connection, so the writer runs its queries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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

    async def read(self, look: Callable[[Connection], T]) -> T:
        """The result of `look`, which sees one consistent state of the database."""
        if self._database.is_memory:
            return await self._writer.submit(Read(look))
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, look)

    async def read_then(self, look: Callable[[Connection], T], then: Callable[[T], R]) -> R:
        """The result of `then`, called with the result of `look`. It may be slow: it never runs in the writer."""
        loop = asyncio.get_running_loop()
        if self._database.is_memory:
            return await loop.run_in_executor(self._pool, then, await self.read(look))
        return await loop.run_in_executor(self._pool, lambda: then(self._read(look)))

    def close(self) -> None:
        self._pool.shutdown(wait=True)

    def _read(self, look: Callable[[Connection], T]) -> T:
        with self._database.read() as conn:
            return look(conn)


SLOW_LOOK_MS = 5 * SECOND_MS  # requirement A8


# A limit for log lines that callers can cause again and again.

AGAIN_MS = MINUTE_MS


class Brake:
    """Allows one log line per minute, and counts the others."""

    def __init__(self, again_ms: int = AGAIN_MS) -> None:
        self._again_ms = again_ms
        self._told_ms: int | None = None
        self._untold = 0

    def untold(self, now_ms: int) -> int | None:
        """None if this line must not be logged. Otherwise how many lines were dropped since the last one."""
        if self._told_ms is not None and now_ms - self._told_ms < self._again_ms:
            self._untold += 1
            return None
        untold, self._untold, self._told_ms = self._untold, 0, now_ms
        return untold
