"""Hearing what other servers say: a Postgres connection of its own, read when its socket has something."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from popserver.domain.errors import StoreUnavailable
from popserver.store.database import Database
from popserver.store.notices import CHANNEL

if TYPE_CHECKING:
    from psycopg import AsyncConnection


class Ear:
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
            raise _silent(self._name, error) from error
        while (notify := self._conn.pgconn.notifies()) is not None:
            yield notify.extra.decode(errors="replace")

    async def close(self) -> None:
        await self._conn.close()


async def listen(database: Database) -> Ear:
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
        raise _silent(database.name, error) from error
    return Ear(conn, database.name)


def _silent(name: str, error: Exception) -> StoreUnavailable:
    words = str(error).strip().splitlines()
    return StoreUnavailable(f"{name} tells nothing of other servers ({words[0] if words else type(error).__name__})")
