"""grpc.health.v1: SERVING from the start until the server leaves."""

from __future__ import annotations

import asyncio

from grpc_health.v1 import health_pb2

from popserver.rpc.call import Write

# What a health check may ask for: the server as a whole, and the two names that process supervisors use.
NAMES = frozenset({"", "startup", "liveness"})


class Health:
    """Whether the server takes calls."""

    def __init__(self) -> None:
        self._is_leaving = asyncio.Event()

    def leave(self) -> None:
        """From now on NOT_SERVING; those who watch are told."""
        self._is_leaving.set()

    def check(self, name: str) -> health_pb2.HealthCheckResponse | None:
        """None for a name that is not known."""
        return self._state() if name in NAMES else None

    async def watch(self, name: str, write: Write) -> None:
        """Tell the state now and whenever it changes, until the caller is cancelled."""
        if name not in NAMES:
            await write(health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVICE_UNKNOWN))
        else:
            await write(self._state())
            if not self._is_leaving.is_set():
                await self._is_leaving.wait()
                await write(self._state())
        await asyncio.get_running_loop().create_future()

    def _state(self) -> health_pb2.HealthCheckResponse:
        serving, leaving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse(status=leaving if self._is_leaving.is_set() else serving)
