"""Notices that another Postgres has become the primary while the known one is silent.

A host that is frozen, or cut off from the other hosts, breaks no connection: a COMMIT to it waits without an end. So a
transaction that takes long is a reason to ask all hosts which of them is the primary. A heartbeat is written every few
seconds, so a server without requests notices it too.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from popserver.database.database import Database
from popserver.engine.writer import Writer
from popserver.model.errors import StoreUnavailable

LOOK_S = 0.5
SILENT_S = 2.0  # a transaction that takes longer is suspicious
ASK_AGAIN_S = 0.5  # after the next look, so all hosts are asked once a second

log = structlog.get_logger("popserver.failover")


class FailoverWatch:
    """Cuts the connections to a former primary, so that everything that waits for it goes on at the new one."""

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
        # Questions overlap: the server must not wait for a frozen host, which takes up to 4 s, before it asks the
        # others again.
        async with asyncio.TaskGroup() as questions:
            while True:
                await asyncio.sleep(LOOK_S)
                if self._is_silent():
                    questions.create_task(self._ask())
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
