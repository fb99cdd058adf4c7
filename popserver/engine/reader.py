"""Reading without writing: a small pool of connections beside the writer's.

A database in memory has one connection only, so there a read takes its turn in the writer.
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
    """Runs look-ups off the event loop."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer
        self._pool = ThreadPoolExecutor(READERS_MAX, thread_name_prefix="popmq-reader")

    async def read(self, look: Callable[[Connection], T]) -> T:
        """What `look` finds, at one consistent moment."""
        if self._database.is_memory:
            return await self._writer.submit(Read(look))
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._read, look)

    async def read_then(self, look: Callable[[Connection], T], then: Callable[[T], R]) -> R:
        """What `then` makes of it: that takes time, and never the writer's."""
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


# A brake on what the log says: what callers can cause again and again is told once in a while.

AGAIN_MS = MINUTE_MS


class Brake:
    """Lets one line through a minute, and counts the others."""

    def __init__(self, again_ms: int = AGAIN_MS) -> None:
        self._again_ms = again_ms
        self._told_ms: int | None = None
        self._untold = 0

    def untold(self, now_ms: int) -> int | None:
        """How many lines were held back since the last one, where one may be told now; None where it is held back."""
        if self._told_ms is not None and now_ms - self._told_ms < self._again_ms:
            self._untold += 1
            return None
        untold, self._untold, self._told_ms = self._untold, 0, now_ms
        return untold
