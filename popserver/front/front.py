"""One port for TLS and plaintext: the front looks at a connection's first byte and relays it to a gRPC listener.

A TLS connection begins with a handshake record (0x16), a plaintext one with HTTP/2's preface ("PRI * …"). A connection
that sends something else, or nothing for a while, is closed. The front changes nothing in the data that it relays.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection

import structlog

from popserver.front.connections import ConnectionLimits, Connections
from popserver.front.inner import InnerListeners
from popserver.front.relay import RelayProtocol
from popserver.front.resets import RESET, SlowedResets
from popserver.front.sockets import address_of_peer, listening_sockets
from popserver.front.turns import Turns

TLS_HANDSHAKE = 0x16
PREFACE = ord("P")
KINDS = (TLS_HANDSHAKE, PREFACE)
BACKLOG = 1_024
# When the server has ended its calls, it relays their last bytes for at most this long.
FINISH_S = 1.0

log = structlog.get_logger("popserver.front")


class Front:
    """Listens on host and port (0: any free port, see `.port`). Raises `OSError` if it cannot."""

    def __init__(
        self, host: str, port: int, inner: InnerListeners, limits: ConnectionLimits, kinds: Collection[int] = KINDS
    ) -> None:
        """`kinds`: the first bytes that are accepted."""
        self.inner = inner
        self.kinds = kinds
        self.limits = limits
        self._sockets = listening_sockets(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        self._servers: list[asyncio.Server] = []
        self.connections = Connections(limits)
        self._numbers = itertools.count(1)
        self.turns = Turns()
        self._joined: dict[int, _Client] = {}  # by number
        self.passed = 0  # bytes that clients sent, over all connections

    async def start(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            self._servers.append(await loop.create_server(lambda: _Client(self), sock=listening, backlog=BACKLOG))

    def close(self) -> None:
        """Accept no more connections. Open connections stay open, except those without a first byte."""
        for server in self._servers:
            server.close()
        for listening in self._sockets:
            listening.close()
        self.connections.end_silent()

    async def finish(self) -> None:
        """Relay the last bytes of connections that the server has ended, then close the others."""
        try:
            await asyncio.wait_for(self.connections.all_gone(), FINISH_S)
        except TimeoutError:
            for client in self.connections:
                client.turn_away("the server has stopped")
            await asyncio.sleep(0)  # lets the event loop close the sockets
        self.inner.close()

    def signed(self, number: int) -> None:
        """A call of this connection was signed: from now on the connection is not closed to make room."""
        client = self._joined.get(number)
        if client is not None:
            self.connections.signed(client)

    def hang_up(self, number: int, why: str) -> None:
        """Close a connection."""
        client = self._joined.get(number)
        if client is not None:
            client.turn_away(why)

    def register(self, client: _Client) -> None:
        self.connections.spoke(client)
        client.number = next(self._numbers)
        self._joined[client.number] = client

    def bytes_from(self, number: int) -> int | None:
        """How many bytes a connection has sent; None if it is closed."""
        client = self._joined.get(number)
        return None if client is None else client.passed

    def connection(self, number: int) -> _Client | None:
        """The connection, whose `passed` and `returned` count bytes; None if it is closed."""
        return self._joined.get(number)

    def left(self, client: _Client) -> None:
        self._joined.pop(client.number, None)
        self.connections.left(client)


class _Client(RelayProtocol):
    """A client's connection. After its first byte it is joined with a connection to the matching inner listener."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self._front = front
        self._heard: list[bytes] = []
        self._patience: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[None] | None = None
        self._resets: SlowedResets | None = None  # set at the first reset
        self.peer = "unknown"
        self.host = ""
        self.number = 0  # set at the first byte
        self.passed = 0  # bytes that the client sent
        self.returned = 0  # bytes that the server sent

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.peer = address_of_peer(transport.get_extra_info("peername"))
        self.host = self.peer.rpartition(":")[0]
        if not self._front.connections.arrived(self):
            self.transport.abort()
            return
        silence_s = self._front.limits.silence_s
        self._patience = asyncio.get_running_loop().call_later(silence_s, self.turn_away, "it sent no byte")

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            if self._resets is None and RESET in data:
                self._resets = SlowedResets(self._pass_on, self.hold, self.go_on)
            if self._resets is None:
                self._pass_on(data)
            else:
                self._resets.take(data)
            return
        self._heard.append(data)
        if self._joining is None:
            self._choose(data[0])

    def _pass_on(self, data: bytes) -> None:
        assert self.other is not None
        self.other.transport.write(data)
        self.passed += len(data)
        self._front.passed += len(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._stop_waiting()
        if self._resets is not None:
            self._resets.drop()
        if self._joining is not None:
            self._joining.cancel()
        self._front.left(self)
        super().connection_lost(error)

    def turn_away(self, why: str) -> None:
        log.debug("connection closed", peer=self.peer, reason=why)
        self.transport.abort()

    def _choose(self, first: int) -> None:
        self._stop_waiting()
        self._front.register(self)
        if first not in self._front.kinds:
            self.turn_away(f"its first byte is 0x{first:02x}, which begins neither of the protocols of this port")
            return
        self.hold()
        self._joining = asyncio.get_running_loop().create_task(self._join(tls=first == TLS_HANDSHAKE))

    async def _join(self, *, tls: bool) -> None:
        inner = _Inner(self)
        try:
            await self._front.turns.wait(self.host)
            connection = await self._front.inner.connect(tls=tls, peer=self.peer, number=self.number)
            await asyncio.get_running_loop().create_unix_connection(lambda: inner, sock=connection)
        except OSError as error:
            log.warning("connection closed", peer=self.peer, reason=str(error))
            self.transport.abort()
            return
        if self.transport.is_closing():
            inner.transport.abort()
            return
        self.other = inner
        heard = b"".join(self._heard)
        self._heard.clear()
        self.data_received(heard)
        self.go_on()
        log.debug("connection joined", peer=self.peer, tls=tls)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class _Inner(RelayProtocol):
    """The connection to the inner listener."""

    def __init__(self, client: _Client) -> None:
        super().__init__(client)
        self._client = client

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._client.returned += len(data)
