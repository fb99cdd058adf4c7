"""The server: where it listens, how it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from popserver.clients.rpc import SessionMethods
from popserver.front.inner import connections_max
from popserver.transport.call import Door
from popserver.transport.limits import CallLimits
from popserver.transport.listen import ListenAddress
from popserver.transport.public_services import Health


class PopServer:
    """A listening server; it answers nothing before `start`. `drain` answers the polls that wait."""

    def __init__(
        self,
        door: Door,
        place: ListenAddress,
        drain: Callable[[], Awaitable[None]],
        session: SessionMethods,
        health: Health,
        connections_max: int,
    ) -> None:
        self.port = place.port
        self.connections_max = connections_max
        self.address = place.address
        self._door = door
        self._front = place.front
        self._drain = drain
        self._session = session
        self._health = health

    async def start(self) -> None:
        await self._door.start()
        if self._front is not None:
            await self._front.start()

    async def drain(self, timeout_s: float) -> None:
        """Leave: health says NOT_SERVING, parked polls are answered empty, calls on their way finish, then the port
        closes; what is not done after `timeout_s` is cut off."""
        self._health.leave()
        await self._drain()
        if self._front is not None:
            self._front.close()
        stopping = asyncio.ensure_future(self._door.stop(timeout_s))
        await asyncio.sleep(0)
        # Last of all: a client whose stream ends comes back at once, and must not be let in again.
        self._session.close()
        await stopping
        if self._front is not None:
            await self._front.finish()


def directly_max(limits: CallLimits) -> int:
    return min(limits.connections_max, connections_max(files_each=1))
