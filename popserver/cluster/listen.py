"""The notice board of several servers: hears what the others say, and knows when it has missed something.

It lives on the event loop and in real time: a connection has no manual clock. While there is none, once a second
everything counts as missed, so that nobody waits longer than that for what could not be told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from popserver.database.database import Database
from popserver.database.notifications import CHANNEL, UNREADABLE, Notification, decode
from popserver.model.errors import StoreUnavailable

if TYPE_CHECKING:
    from psycopg import AsyncConnection


POLL_S = 1.0
UNREADABLE_AGAIN_S = 60.0
PAYLOAD_LOGGED_MAX = 64

log = structlog.get_logger("popserver.board")


class NotificationFeed:
    """Calls `heard` for every notice, and `missed` whenever some may have been lost."""

    def __init__(self, database: Database, heard: Callable[[Notification], None], missed: Callable[[], None]) -> None:
        self._database = database
        self._heard = heard
        self._missed = missed
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._logged_at: float | None = None  # of a notice that cannot be read
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
                await asyncio.sleep(POLL_S)

    async def _listen(self) -> None:
        """Hear notices until the connection breaks."""
        connection = await listen(self._database)
        try:
            self.is_up = True
            self._tried.set()
            # What was said before we listened.
            self._missed()
            await self._read(connection)
        finally:
            await connection.close()

    async def _read(self, connection: NotificationConnection) -> None:
        loop = asyncio.get_running_loop()
        broken: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                for payload in connection.heard():
                    self._heard(self._decoded(payload))
            except StoreUnavailable as error:
                loop.remove_reader(number)
                if not broken.done():
                    broken.set_exception(error)

        number = connection.fileno()
        loop.add_reader(number, read)
        try:
            await broken
        finally:
            loop.remove_reader(number)

    def _decoded(self, payload: str) -> Notification:
        notification = decode(payload)
        if notification is UNREADABLE:
            now = asyncio.get_running_loop().time()
            # Every user of the database can send any number of them.
            if self._logged_at is None or now - self._logged_at >= UNREADABLE_AGAIN_S:
                self._logged_at = now
                log.warning("a notice cannot be read; looking at everything", payload=payload[:PAYLOAD_LOGGED_MAX])
        return notification


# Hearing what other servers say: a Postgres connection of its own, read when its socket has something.


class NotificationConnection:
    """An open connection that listens. Needs no statement any more; a broken one raises `StoreUnavailable`."""

    def __init__(self, conn: AsyncConnection, name: str) -> None:
        self._conn = conn
        self._name = name

    def fileno(self) -> int:
        """What to watch for reading."""
        return self._conn.fileno()

    def heard(self) -> Iterator[str]:
        """The payloads that have come; call it when there is something to read."""
        from psycopg import Error

        try:
            self._conn.pgconn.consume_input()
        except Error as error:
            raise _unavailable(self._name, error) from error
        while (notify := self._conn.pgconn.notifies()) is not None:
            yield notify.extra.decode(errors="replace")

    async def close(self) -> None:
        await self._conn.close()


async def listen(database: Database) -> NotificationConnection:
    """Begin to hear. Raises `StoreUnavailable` where Postgres does not answer."""
    from psycopg import AsyncConnection, Error

    try:
        conn = await AsyncConnection.connect(autocommit=True, **database.driver_arguments())
        try:
            await conn.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            await conn.close()
            raise
    except Error as error:
        raise _unavailable(database.name, error) from error
    return NotificationConnection(conn, database.name)


def _unavailable(name: str, error: Exception) -> StoreUnavailable:
    lines = str(error).strip().splitlines()
    return StoreUnavailable(f"{name} tells nothing of other servers ({lines[0] if lines else type(error).__name__})")
