"""Receives the notifications of other servers through Postgres, and reports when some may be lost.

It runs in the event loop and in real time, because a connection cannot use a manual clock. Without a connection it
reports lost notifications once a second, so that no client waits longer.
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
from popserver.postgres.connections import first_line

if TYPE_CHECKING:
    from psycopg import AsyncConnection


POLL_S = 1.0
UNREADABLE_AGAIN_S = 60.0
PAYLOAD_LOGGED_MAX = 64

log = structlog.get_logger("popserver.board")


class NotificationFeed:
    """Calls `heard` for every notification, and `missed` when some may be lost."""

    def __init__(self, database: Database, heard: Callable[[Notification], None], missed: Callable[[], None]) -> None:
        self._database = database
        self._heard = heard
        self._missed = missed
        self._tried = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._logged_at: float | None = None  # when a notification that cannot be read was logged
        self.is_up = False

    async def start(self) -> None:
        """Listen from now on. Returns after the first try, also if it failed."""
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
                    log.warning("no notifications from other servers; checking once a second", reason=error.sentence)
                self.is_up = False
                self._tried.set()
                self._missed()
                await asyncio.sleep(POLL_S)

    async def _listen(self) -> None:
        """Receive notifications until the connection breaks. Raises `StoreUnavailable` then."""
        connection = await listen(self._database)
        try:
            self.is_up = True
            self._tried.set()
            # Notifications before this time may be lost.
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
            # Logged rarely, because each user of the database can send any number of such notifications.
            if self._logged_at is None or now - self._logged_at >= UNREADABLE_AGAIN_S:
                self._logged_at = now
                log.warning(
                    "a notification cannot be decoded; checking everything", payload=payload[:PAYLOAD_LOGGED_MAX]
                )
        return notification


class NotificationConnection:
    """A Postgres connection that only listens. If it breaks, its methods raise `StoreUnavailable`."""

    def __init__(self, conn: AsyncConnection, name: str) -> None:
        self._conn = conn
        self._name = name

    def fileno(self) -> int:
        """The socket to watch for reading."""
        return self._conn.fileno()

    def heard(self) -> Iterator[str]:
        """The payloads that have arrived. Call it when the socket is readable."""
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
    """Connect and listen. Raises `StoreUnavailable` if Postgres does not answer."""
    from psycopg import Error

    try:
        conn = await database.connections.connect_async()
        try:
            await conn.execute(f"LISTEN {CHANNEL}")
        except BaseException:
            await conn.close()
            raise
    except Error as error:
        raise _unavailable(database.name, error) from error
    return NotificationConnection(conn, database.name)


def _unavailable(name: str, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"{name} sends no notifications ({first_line(error)})")
