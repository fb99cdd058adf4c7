"""The notice board of several servers: hears what the others say, and knows when it has missed something.

It lives on the event loop and in real time: a connection has no manual clock. While there is none, once a second
everything counts as missed, so that nobody waits longer than that for what could not be told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from popserver.domain.errors import StoreUnavailable
from popserver.store import Database
from popserver.store.listening import Ear, listen
from popserver.store.notices import UNREADABLE, Notice, decode

LOOK_S = 1.0
UNREADABLE_AGAIN_S = 60.0
PAYLOAD_LOGGED_MAX = 64

log = structlog.get_logger("popserver.board")


class Board:
    """Calls `heard` for every notice, and `missed` whenever some may have been lost."""

    def __init__(self, database: Database, heard: Callable[[Notice], None], missed: Callable[[], None]) -> None:
        self._database = database
        self._heard = heard
        self._missed = missed
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._told_at: float | None = None  # of a notice that cannot be read
        self.is_up = False

    async def start(self) -> None:
        """Listen from now on; returns after the first try, whatever came of it."""
        self._task = asyncio.get_running_loop().create_task(self._keep_listening())
        await self._tried.wait()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _keep_listening(self) -> None:
        while True:
            try:
                await self._listen()
            except StoreUnavailable as error:
                if self.is_up or not self._tried.is_set():
                    log.warning("no notices of other servers; looking once a second", reason=error.sentence)
                self.is_up = False
                self._tried.set()
                self._missed()
                await asyncio.sleep(LOOK_S)

    async def _listen(self) -> None:
        """Hear notices until the connection breaks."""
        ear = await listen(self._database)
        try:
            self.is_up = True
            self._tried.set()
            # What was said before we listened.
            self._missed()
            await self._read(ear)
        finally:
            await ear.close()

    async def _read(self, ear: Ear) -> None:
        loop = asyncio.get_running_loop()
        broken: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                for payload in ear.heard():
                    self._heard(self._decoded(payload))
            except StoreUnavailable as error:
                loop.remove_reader(number)
                if not broken.done():
                    broken.set_exception(error)

        number = ear.fileno()
        loop.add_reader(number, read)
        try:
            await broken
        finally:
            loop.remove_reader(number)

    def _decoded(self, payload: str) -> Notice:
        notice = decode(payload)
        if notice is UNREADABLE:
            now = asyncio.get_running_loop().time()
            # Every user of the database can send any number of them.
            if self._told_at is None or now - self._told_at >= UNREADABLE_AGAIN_S:
                self._told_at = now
                log.warning("a notice cannot be read; looking at everything", payload=payload[:PAYLOAD_LOGGED_MAX])
        return notice
