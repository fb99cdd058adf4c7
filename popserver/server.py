"""A server of calls: its ports, and how it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from popserver.administration.readiness import Readiness
from popserver.clients.rpc import SessionMethods
from popserver.transport.call import Door


class PopServer:
    """A listening server. It answers no call before `start`. `drain` ends the waiting polls.

    `admin_address` is where the administration is served; the same as `address` if it has no port of its own.
    """

    def __init__(
        self,
        doors: Sequence[Door],
        address: str,
        admin_address: str,
        port: int,
        drain: Callable[[], Awaitable[None]],
        session: SessionMethods,
        readiness: Readiness,
        connections_max: int,
    ) -> None:
        self.port = port
        self.readiness = readiness
        self.connections_max = connections_max
        self.address = address
        self.admin_address = admin_address
        self._doors = doors
        self._drain = drain
        self._session = session

    async def start(self) -> None:
        for door in self._doors:
            await door.start()

    def stop_accepting(self) -> None:
        """Accept no more connections. Open ones stay, and their calls are served."""
        for door in self._doors:
            door.stop_accepting()

    def close(self) -> None:
        """Free the addresses at once, if the server cannot start."""
        for door in self._doors:
            door.close()

    async def drain(self, timeout_s: float) -> None:
        """Stop: the server is not ready any more, waiting polls end, running calls finish, then the port is closed.

        Calls that still run after `timeout_s` seconds are cancelled.
        """
        self.readiness.leave()
        await self._drain()
        stopping = asyncio.gather(*(door.stop(timeout_s) for door in self._doors))
        await asyncio.sleep(0)
        # Last, because clients reconnect at once when their stream ends, and the server must refuse them then.
        self._session.close()
        await stopping
