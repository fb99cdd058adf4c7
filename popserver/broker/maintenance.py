"""The duties nobody asks for: ending what is due, and removing what is deleted.

Each duty goes in steps of at most 1,000 rows with the users' requests in between.
"""

from __future__ import annotations

import asyncio

import structlog

from popserver.broker.clock import Clock
from popserver.broker.reader import Reader
from popserver.broker.sleeper import Sleeper
from popserver.broker.writer import Writer
from popserver.domain.errors import PopError
from popserver.domain.retry import SECOND_MS
from popserver.store import catalog, due
from popserver.store.holds import push_clients

RETRY_MS = 1 * SECOND_MS  # when the store did not answer

log = structlog.get_logger("popserver.maintenance")


class Maintenance:
    """Keeps the store in step with time."""

    def __init__(self, reader: Reader, writer: Writer, clock: Clock) -> None:
        self._reader = reader
        self._writer = writer
        self._clock = clock
        self._sleeper = Sleeper(clock, self._end_due)
        self._purging: asyncio.Task[None] | None = None

    async def start(self) -> list[str]:
        """Take up what fell due while nobody was there; returns the clients whose push holds are open."""
        self._sleeper.tell(await self._reader.read(due.next_due_ms))
        self.purge()
        return await self._reader.read(push_clients)

    def tell(self, due_ms: int | None) -> None:
        """Something falls due at `due_ms`."""
        self._sleeper.tell(due_ms)

    def purge(self) -> None:
        """Something was deleted: remove its rows, step by step, behind everybody's back."""
        if self._purging is None or self._purging.done():
            self._purging = asyncio.get_running_loop().create_task(self._purge())

    async def idle(self) -> None:
        await self._sleeper.idle()
        if self._purging is not None:
            await asyncio.gather(self._purging, return_exceptions=True)

    async def close(self) -> None:
        await self._sleeper.close()
        if self._purging is not None:
            self._purging.cancel()
            await asyncio.gather(self._purging, return_exceptions=True)

    async def _end_due(self) -> int | None:
        try:
            ended = await self._writer.submit(due.end_due, due.EndDue())
        except PopError as error:
            log.warning("due deliveries wait", reason=error.sentence)
            return self._clock.now_ms() + RETRY_MS
        return ended.next_due_ms

    async def _purge(self) -> None:
        try:
            removed = 1
            while removed:
                removed = await self._writer.submit(catalog.purge, catalog.Purge())
        except PopError as error:
            log.warning("deleted rows wait for the next start", reason=error.sentence)
