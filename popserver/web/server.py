"""Listens for HTTP in the server's own event loop."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import NamedTuple

import structlog
import uvicorn
from starlette.routing import Route

from popport.below import Below
from popport.bodies import Bodies, room_for
from popport.connections import ConnectionSlots
from popport.serving import http_config
from popserver.front.sockets import listening_sockets
from popserver.model.budget import Budgets
from popserver.transport.listen import address_of, cannot_listen_for_http
from popserver.web.guard import Guard
from popserver.web.log import HttpLog
from popserver.web.mounts import MountContext, Mounts, installed
from popserver.web.pages import PROBES, application

log = structlog.get_logger("popserver.web")

STOP_S = 1  # for requests that still run when the server stops


class HttpAddress(NamedTuple):
    """Where to listen; port 0: any free port."""

    host: str
    port: int


class WebServer:
    """The HTTP port. Make it inside the running event loop."""

    def __init__(
        self,
        at: HttpAddress,
        budgets: Budgets,
        connections_max: int,
        given: Sequence[socket.socket] = (),
        *,
        is_local: bool,
    ) -> None:
        """Bind the address, unless it is that of `given`. `is_local`: only this machine can reach it.

        Raises `CannotListen`.
        """
        try:
            self._sockets = list(given) or listening_sockets(*at)
        except OSError as error:
            raise cannot_listen_for_http(*at, error) from None
        self.address = address_of(at.host, self._sockets[0].getsockname()[1])
        self._is_local = is_local
        connections = budgets.add("HTTP connections", connections_max, "connections", "max_http_connections")
        self._log = HttpLog()
        self._slots = ConnectionSlots(connections, self._log.on_refused)
        self._bodies = budgets.add("HTTP requests", room_for(connections_max), "bytes", "max_http_connections")
        self._mounts: Mounts
        self._server: uvicorn.Server

    async def start(self, context: MountContext, own: Sequence[Route], path: str = "") -> None:
        """Serve the server's `own` routes, and what other packages mount. `path`: below which a proxy has the port."""
        entries = installed()
        if context.needs_certificate and context.certificate is None and entries:
            log.warning(
                "not served over HTTP",
                packages=[each.name for each in entries],
                reason="this server accepts only clients with a certificate (--tls-client-ca), and it has no users, so"
                " the HTTP port cannot authenticate anybody; give it users with --auth, or run popmq console with"
                " --client-cert and --client-key",
            )
            entries = []
        self._mounts = Mounts(context, entries, [each.path for each in own])
        served = Bodies(
            application(own, self._mounts), self._bodies, ", or start the server with a higher --max-http-connections"
        )
        config = http_config(
            Guard(
                Below(served, path),
                is_local=self._is_local,
                hosts=context.hosts,
                for_everybody={*PROBES, *(path + each for each in PROBES)},
            ),
            self._slots,
            self._log.logger,
            lifespan="off",
            log_config=None,
            date_header=False,
            timeout_graceful_shutdown=STOP_S,
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

    def stop_accepting(self) -> None:
        """Accept no more connections. Open ones are served."""
        for server in self._server.servers:
            server.close()

    async def stop(self) -> None:
        """Let running requests finish, but not for longer than a second."""
        await self._server.shutdown(sockets=self._sockets)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await self._mounts.close()
