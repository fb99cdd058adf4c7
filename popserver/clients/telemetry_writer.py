"""Writes to a client's telemetry stream, which is never silent for long.

Proxies end a stream on which nothing goes: nginx after 60 s, HAProxy often after 50 s. The official Python client
notices that after five minutes, and gets no command and no check of a half message before.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from popproto.v2 import service_pb2 as wire
from popserver.transport.call import Encodable, Write


class TelemetryWriter:
    """Writes one frame at a time, because answers and commands share the stream; repeats the settings while it is idle.

    Every official client takes settings at any time, and the same ones change nothing for it.
    """

    def __init__(self, write: Write, disconnected: type[Exception], idle_ms: int) -> None:
        """`write` raises `disconnected`. `idle_ms`: after this long without a frame the settings are repeated."""
        self._write = write
        self._disconnected = disconnected
        self._idle_s = idle_ms / 1_000
        self._in_turn = asyncio.Lock()
        self._settings: Encodable | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._repeating: asyncio.Task[None] | None = None

    async def write(self, frame: Encodable) -> None:
        async with self._in_turn:
            await self._write(frame)
        if isinstance(frame, wire.TelemetryCommand) and frame.HasField("settings"):
            self._settings = frame
        self._stop_timer()
        if self._settings is not None:
            self._timer = asyncio.get_running_loop().call_later(self._idle_s, self._repeat)

    def close(self) -> None:
        """The stream has ended."""
        self._stop_timer()
        if self._repeating is not None:
            self._repeating.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _repeat(self) -> None:
        self._repeating = asyncio.get_running_loop().create_task(self._write_settings())

    async def _write_settings(self) -> None:
        assert self._settings is not None, "the timer starts with settings"
        with suppress(self._disconnected):
            await self.write(self._settings)
