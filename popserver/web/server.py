"""Listens for HTTP in the server's own event loop."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, cast

import structlog
import uvicorn
from starlette.routing import Route

from popserver.front.sockets import listening_sockets
from popserver.model.budget import Budgets, Shares
from popserver.model.errors import CannotListen
from popserver.transport.listen import address_of
from popserver.web.guard import BODY_BYTES_EACH, BODY_BYTES_MAX, Guard
from popserver.web.mounts import Mounts, Place, installed
from popserver.web.pages import application
from popserver.web.protocol import HEAD_BYTES_MAX, QUIET_S, HttpConnection, HttpLog, Places

log = structlog.get_logger("popserver.web")

STOP_S = 1  # for requests that still run when the server stops


class HttpAddress(NamedTuple):
    """Where to listen; port 0: any free port."""

    host: str
    port: int


class WebServer:
    """The HTTP port. Make it inside the running event loop."""

    def __init__(self, at: HttpAddress, budgets: Budgets, connections_max: int, *, is_local: bool) -> None:
        """Bind the address. `is_local`: only this machine can reach it. Raises `CannotListen`."""
        try:
            self._sockets: list[socket.socket] = listening_sockets(*at)
        except OSError as error:
            raise CannotListen(
                f"cannot listen for HTTP on {address_of(*at)} ({error.strerror or error}); stop the other server, give"
                " another address with --http HOST:PORT, or serve no HTTP with --http off"
            ) from None
        self.address = address_of(at.host, self._sockets[0].getsockname()[1])
        self._is_local = is_local
        connections = budgets.add("HTTP connections", connections_max, "connections", "max_http_connections")
        self._places = Places(Shares(connections, max(1, connections_max // 2)))
        bodies_max = max(BODY_BYTES_MAX, connections_max * BODY_BYTES_EACH)
        self._bodies = budgets.add("HTTP requests", bodies_max, "bytes", "max_http_connections")
        self._mounts: Mounts
        self._server: uvicorn.Server

    async def start(self, place: Place, own: Sequence[Route]) -> None:
        """Serve the server's `own` routes, and what other packages mount."""
        entries = installed()
        if place.needs_certificate and entries:
            log.warning(
                "not served over HTTP",
                packages=[each.name for each in entries],
                reason="this server accepts only clients with a certificate (--tls-client-ca), and these have none; run"
                " popmq console with --client-cert and --client-key",
            )
            entries = []
        self._mounts = Mounts(place, entries, [each.path for each in own])
        config = uvicorn.Config(
            Guard(application(own, self._mounts), self._bodies, is_local=self._is_local, hosts=place.hosts),
            http=cast("type[HttpConnection]", partial(HttpConnection, self._places, HttpLog())),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(QUIET_S),
            timeout_graceful_shutdown=STOP_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )
        config.load()
        # Not `serve`, which takes the process's signals and wakes up ten times a second.
        self._server = uvicorn.Server(config)
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=self._sockets)

    def close(self) -> None:
        """Give the address back, if `start` was not called."""
        for each in self._sockets:
            each.close()

    async def stop(self) -> None:
        """Let running requests finish, but not for longer than a second."""
        await self._server.shutdown(sockets=self._sockets)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await self._mounts.close()
