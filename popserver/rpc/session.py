"""Being a client: heartbeat, the telemetry stream with its settings handshake, goodbye."""

from __future__ import annotations

import asyncio
from typing import Any

from popproto.v2 import service_pb2 as wire
from popserver.broker.broker import Broker
from popserver.domain.errors import ClientIdRequired, PopError
from popserver.domain.names import check_group
from popserver.rpc import convert, settings, status
from popserver.rpc.calls import Caller, Write, readable
from popserver.rpc.limits import Limits


class Session:
    """Who is there."""

    def __init__(self, broker: Broker, limits: Limits, version: str) -> None:
        self._broker = broker
        self._limits = limits
        self._version = version
        self._streams: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def heartbeat(self, request: wire.HeartbeatRequest, caller: Caller) -> wire.HeartbeatResponse:
        """Needs no settings before it. An empty one may come without a client id (contract 1.4)."""
        if not caller.client_id and request.ByteSize():
            raise ClientIdRequired
        if request.group.name:
            check_group(convert.resource(request.group, caller.namespace))
        return wire.HeartbeatResponse(status=status.OK)

    async def telemetry(self, commands: Any, caller: Caller, write: Write) -> None:
        """Answers every settings frame, whatever is wrong with it: the stream lives as long as the client.

        Of several streams of one client the newest counts; when that one ends without a goodbye, the client is gone.
        """
        stream = asyncio.current_task()
        assert stream is not None
        clients = self._broker.clients
        self._streams.add(stream)
        clients.connected(caller.client_id, stream)
        try:
            async for command in commands:
                clients.seen(caller.client_id)
                answer = await self._answer(command, caller)
                if answer is not None:
                    await write(answer)
        except asyncio.CancelledError:
            if not self._closing:
                raise
        finally:
            self._streams.discard(stream)
            if not self._closing:
                clients.disconnected(caller.client_id, stream)

    async def notify_client_termination(
        self, _request: wire.NotifyClientTerminationRequest, caller: Caller
    ) -> wire.NotifyClientTerminationResponse:
        """What the client still holds comes to others soon. Harmless for a client never seen."""
        self._broker.clients.ended(caller.client_id)
        return wire.NotifyClientTerminationResponse(status=status.OK)

    def close(self) -> None:
        """End every telemetry stream; its client does not count as gone, it will be back."""
        self._closing = True
        for stream in self._streams:
            stream.cancel()

    async def _answer(self, command: Any, caller: Caller) -> wire.TelemetryCommand | None:
        try:
            if not readable(command).HasField("settings"):
                return None
            merged = await settings.merge(
                command.settings, caller.namespace, self._broker.catalog, self._limits, self._version
            )
        except PopError as refusal:
            return wire.TelemetryCommand(status=status.of(refusal))
        return wire.TelemetryCommand(status=status.OK, settings=merged)
