"""The port of `popmq console`: uvicorn, with limits for what it lets browsers take.

uvicorn waits without end for the rest of a request, and for a browser to read its answer. Here both have a deadline,
and connections are counted. The HTTP port of a server has the same limits in the code of the server.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 64  # each has a form of at most 1 MiB
HEAD_BYTES_MAX: Final = 16 * 1024  # of a request line with its headers
REQUEST_S: Final = 10.0  # until a request is complete, from its first byte or from the start of the connection
UNREAD_S: Final = 30.0  # until a browser reads what it was sent
QUIET_S: Final = 75  # of an open connection between two requests


class Connection(H11Protocol):
    """One browser's connection. open_ones: all of the port."""

    def __init__(self, open_ones: set[Connection], *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._open_ones = open_ones
        self._deadline: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self._open_ones) >= CONNECTIONS_MAX:
            transport.abort()
            return
        self._open_ones.add(self)
        self._deadline = self.loop.call_later(REQUEST_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._open_ones.discard(self)
        for timer in (self._deadline, self._unread):
            if timer is not None:
                timer.cancel()

    def handle_events(self) -> None:
        super().handle_events()
        state = self.conn.their_state
        is_arriving = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
        if is_arriving and self._deadline is None:
            self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)
        elif not is_arriving and state is not h11.IDLE and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def server_of(app: ASGIApp) -> uvicorn.Server:
    """A server for the application; `run` it with listening sockets."""
    open_ones: set[Connection] = set()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=cast("type[Connection]", partial(Connection, open_ones)),
            ws="none",
            log_level="warning",
            lifespan="on",
            server_header=False,
            proxy_headers=False,  # anybody can write X-Forwarded-For, and so be as many addresses as they like
            timeout_keep_alive=QUIET_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
    )
