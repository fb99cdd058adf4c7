"""Two connections made one: what comes in on one side goes out on the other, no faster than that takes it."""

from __future__ import annotations

import asyncio
from typing import cast

# What one side still has to take when the other is gone must be taken within this time.
LINGER_S = 10.0


class RelayProtocol(asyncio.Protocol):
    """One end of a splice."""

    def __init__(self, other: RelayProtocol | None = None) -> None:
        self.transport: asyncio.Transport
        self.other = other
        self._lingering: asyncio.TimerHandle | None = None
        self._holds = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.hold()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.go_on()

    def hold(self) -> None:
        """Read nothing until `go_on` was called as often."""
        self._holds += 1
        if self._holds == 1:
            self.transport.pause_reading()

    def go_on(self) -> None:
        self._holds -= 1
        if not self._holds:
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._lingering is not None:
            self._lingering.cancel()
        if self.other is not None:
            self.other.leave()

    def leave(self) -> None:
        """Pass on what is still to be passed on, and end."""
        if not self.transport.is_closing():
            self.transport.close()
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)
