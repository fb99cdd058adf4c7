"""A connection in the event loop, where a real transport does not fail on demand."""

from __future__ import annotations

import asyncio
import errno
from typing import Any

from popserver.http2 import frames
from popserver.http2.protocol import ClientConnection, Patience, Shared


class GoneTransport(asyncio.Transport):
    """The client has disconnected, and the event loop does not know it yet."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def write_eof(self) -> None:
        raise OSError(errno.ENOTCONN, "not connected")

    def can_write_eof(self) -> bool:
        return True

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything fits."""


async def test_a_client_that_has_gone_already_is_let_go() -> None:
    transport = GoneTransport()
    client = ClientConnection(Shared(Patience(1.0, 1.0, 1.0), 10), "10.0.0.1:5", lambda: None, lambda: None)
    client.connection_made(transport)
    client.data_received(frames.PREFACE + frames.settings({}))
    client.leave()
    client.data_received(frames.frame(frames.PING, frames.ACK, 0, b"popmq-go"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert transport.is_aborted
