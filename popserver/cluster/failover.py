"""Detects that another Postgres has become the primary while the known one is silent.

A host that is frozen, or cut off from the other hosts, breaks no connection: a COMMIT to it waits for ever. So while a
transaction takes long, the server asks all hosts which of them is the primary. It writes a heartbeat every few seconds,
so it detects a failover also without requests.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from popserver.database.database import Database
from popserver.engine.writer import Writer
from popserver.model.errors import StoreUnavailable

CHECK_S = 0.5
SILENT_S = 2.0  # a transaction that takes longer starts a query to all hosts
ASK_AGAIN_S = 0.5  # before the next check, so all hosts are asked once a second

log = structlog.get_logger("popserver.failover")


class FailoverWatch:
    """Cuts the connections to a former primary, so that all requests that wait for it continue at the new one."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _watch(self) -> None:
        # Queries overlap: the server must not wait for a frozen host, which takes up to 4 s, before it asks the other
        # hosts again.
        async with asyncio.TaskGroup() as queries:
            while True:
                await asyncio.sleep(CHECK_S)
                if self._is_silent():
                    queries.create_task(self._ask())
                    await asyncio.sleep(ASK_AGAIN_S)

    def _is_silent(self) -> bool:
        began_s = self._writer.batch_began_s
        return began_s is not None and asyncio.get_running_loop().time() - began_s >= SILENT_S

    async def _ask(self) -> None:
        try:
            host = await self._database.connections.newer_primary()
        except StoreUnavailable as error:
            log.error("another database answers instead of the known one", reason=error.sentence)
            return
        if host is not None:
            log.warning("another Postgres is the primary now; connections to the former one are cut", host=str(host))
