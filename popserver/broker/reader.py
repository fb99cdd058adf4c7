"""Reading without writing: a small pool of connections beside the writer's.

A database in memory has one connection only, so there a read takes its turn in the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sqlalchemy import Connection

from popserver.broker.writer import Writer
from popserver.store import Database
from popserver.store.database import READERS_MAX
from popserver.store.reading import Read

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
