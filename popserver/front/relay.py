"""Relays data between two connections, with back-pressure: each side reads only as fast as the other side can write."""

from __future__ import annotations

import asyncio
from typing import cast

# When one side is closed, the other side has this much time to receive the rest.
LINGER_S = 10.0


class RelayProtocol(asyncio.Protocol):
    """One of the two connections."""

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
        """Stop reading until `go_on` was called as often as `hold`."""
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
        """Send the rest of the data, then close."""
        if not self.transport.is_closing():
            self.transport.close()
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)
