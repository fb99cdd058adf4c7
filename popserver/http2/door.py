"""The door that speaks HTTP/2 itself. TLS and plaintext share one port, or one of them has it alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

import structlog

from popserver.front.connections import ConnectionLimits, Connections
from popserver.front.port import PREFACE, TLS_HANDSHAKE, PortListener, TlsContexts
from popserver.http2.frames import ConnectionFailure, ErrorCode
from popserver.http2.protocol import ClientConnection, Shared, Timeouts
from popserver.model.budget import Budget
from popserver.transport.call import Service
from popserver.transport.limits import CallLimits
from popserver.transport.listen import Listening, cannot_listen

# How often connections and calls are checked for what takes too long.
CHECK_S = 1.0
# Bytes that no handler has asked for may stay this long above their limit.
KEPT_S = 0.1
# When calls were cancelled, their ends are sent within this time.
FINISH_S = 1.0

_KINDS = {"permissive": (TLS_HANDSHAKE, PREFACE), "plaintext": (PREFACE,), "tls": (TLS_HANDSHAKE,)}

log = structlog.get_logger("popserver.http2")


class Http2Door:
    """A server of gRPC calls. Make it inside the running event loop."""

    def __init__(self, limits: CallLimits, connections_max: int, *, must_sign: bool = False, purpose: str = "") -> None:
        """`must_sign`: connections without a signed call are closed for new ones. `purpose`: see `ConnectionLimits`."""
        self.connections = Connections(
            ConnectionLimits(
                limits.silence_ms / 1_000,
                limits.silent_max,
                connections_max,
                0 if purpose else limits.connections_per_address_max,
                must_sign,
                purpose,
            )
        )
        self._option = f"--{purpose or 'port'}"
        self._handshake_s = limits.handshake_ms / 1_000
        self._shared = Shared(
            Timeouts(self._handshake_s, limits.idle_ms / 1_000, limits.answer_ms / 1_000),
            limits.calls_per_connection_max,
            kept_max=limits.incoming_bytes_max // 4,
            too_much=self._too_much,
        )
        self._listeners: list[PortListener] = []
        self._check: asyncio.TimerHandle | None = None
        self._closing: asyncio.TimerHandle | None = None

    @property
    def connections_max(self) -> int:
        return self.connections.limits.connections_max

    @property
    def budgets(self) -> Sequence[Budget]:
        return self.connections.budgets

    @property
    def connected(self) -> int:
        return self.connections.connections.used

    def listen(self, host: str, port: int, listening: Listening, given: Sequence[socket.socket] = ()) -> int:
        """Bind host and port (0: any free port), and return the port. `given`: sockets that are bound there already.

        Raises `CannotListen` if the address cannot be bound.
        """
        kinds, source = _KINDS[listening.mode], listening.certificate
        tls = None if source is None else TlsContexts(source, listening.own_client)
        try:
            listener = PortListener(host, port, kinds, tls, self.connections, self._protocol, self._handshake_s, given)
        except OSError:
            raise cannot_listen(host, port, self._option) from None
        self._listeners.append(listener)
        return listener.port

    def serve(self, services: Sequence[Service]) -> None:
        self._shared.routes = {
            f"/{service.name}/{method}": route for service in services for method, route in service.routes.items()
        }

    async def start(self) -> None:
        for listener in self._listeners:
            listener.start()
        self._check = asyncio.get_running_loop().call_later(CHECK_S, self._check_all)

    def stop_accepting(self) -> None:
        for listener in self._listeners:
            listener.stop_accepting()

    def close(self) -> None:
        """Free the address at once, for a server that cannot start."""
        for listener in self._listeners:
            listener.close()
        if self._check is not None:
            self._check.cancel()
        for each in self.connections:
            each.turn_away("the server does not start")

    async def stop(self, timeout_s: float) -> None:
        """Accept no more calls. After the timeout, cancel the calls that still run."""
        for listener in self._listeners:
            listener.close()
        self._shared.is_leaving = True
        for client in self._clients:
            client.leave()
        try:
            await asyncio.wait_for(self.connections.all_closed(), timeout_s)
        except TimeoutError:
            await self._cancel()
        if self._check is not None:
            self._check.cancel()
        if self._closing is not None:
            self._closing.cancel()

    async def _cancel(self) -> None:
        for client in self._clients:
            client.cancel()
        try:
            await asyncio.wait_for(self.connections.all_closed(), FINISH_S)
        except TimeoutError:
            for each in self.connections:
                each.turn_away("the server has stopped")
            await asyncio.sleep(0)  # lets the event loop close the sockets

    def _protocol(self, peer: str, left: Callable[[], None], signed: Callable[[], None]) -> ClientConnection:
        return ClientConnection(self._shared, peer, left, signed)

    @property
    def _clients(self) -> list[ClientConnection]:
        return list(self._shared.clients)

    def _check_all(self) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        for client in self._clients:
            client.check_timeouts(now_s)
        self._check = loop.call_later(CHECK_S, self._check_all)

    def _too_much(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().call_later(KEPT_S, self._close_largest)

    def _close_largest(self) -> None:
        """Close the connections that sent most, until the rest fits."""
        self._closing = None
        # What a failed connection keeps is freed some time later, so it is subtracted here.
        excess = self._shared.kept - self._shared.kept_max
        for client in sorted(self._clients, key=lambda each: each.kept, reverse=True):
            if excess <= 0:
                return
            excess -= client.kept
            if client.has_failed:
                continue
            log.warning("connection closed", peer=client.peer, bytes=client.kept, reason="too much that no call reads")
            client.fail(ConnectionFailure(ErrorCode.ENHANCE_YOUR_CALM, "too much data that no call reads"))
