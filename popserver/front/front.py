"""One port for TLS and plaintext: the front looks at a connection's first byte and relays it to a gRPC listener.

A TLS connection begins with a handshake record (0x16), a plaintext one with HTTP/2's preface ("PRI * …"). A connection
that sends something else, or nothing for a while, is closed. The front changes nothing in the data that it relays.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import math
import socket
from collections.abc import Collection
from typing import Any, NamedTuple

import structlog

from popserver.front.inner import InnerListeners
from popserver.front.relay import RelayProtocol
from popserver.front.resets import RESET, SlowedResets
from popserver.front.turns import Turns
from popserver.model.budget import Budget, Shares

TLS_HANDSHAKE = 0x16
PREFACE = ord("P")
KINDS = (TLS_HANDSHAKE, PREFACE)
BACKLOG = 1_024
LOG_FULL_EVERY_S = 60.0
# When the server has ended its calls, it relays their last bytes for at most this long.
FINISH_S = 1.0

log = structlog.get_logger("popserver.front")


class ConnectionLimits(NamedTuple):
    """Limits of connections."""

    silence_s: float = 5.0  # until the first byte
    silent_max: int = 1_000  # connections without a first byte; beyond that the oldest is closed
    connections_max: int = 5_000
    connections_per_address: int = 0  # 0: half of `connections_max`
    # Callers must sign. Then connections without a signed call get half of `connections_max`; the oldest makes room.
    must_sign: bool = False


class Front:
    """Listens on host and port (0: any free port, see `.port`). Raises `OSError` if it cannot."""

    def __init__(
        self, host: str, port: int, inner: InnerListeners, limits: ConnectionLimits, kinds: Collection[int] = KINDS
    ) -> None:
        """`kinds`: the first bytes that are accepted."""
        self.inner = inner
        self.kinds = kinds
        self.limits = limits
        self._sockets = _listen(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        self._servers: list[asyncio.Server] = []
        self._clients: set[_Client] = set()
        self._silent: dict[_Client, None] = {}  # the oldest first
        self.connections = Budget("connections", limits.connections_max, "connections", "max_connections")
        self.unsigned = Budget(
            "connections without a signature", max(1, limits.connections_max // 2), "connections", "max_connections"
        )
        share = limits.connections_per_address or max(1, limits.connections_max // 2)
        self.of_one_address = Budget("connections of one address", share, "connections", "max_connections_per_address")
        self._shares = Shares(self.connections, share, self.of_one_address)
        self._unsigned: dict[str, dict[_Client, None]] = {}  # by address, the oldest first
        self._all_unsigned: dict[_Client, None] = {}  # the oldest first
        self._said_full_at_s: dict[Budget, float] = {}
        self._all_gone = asyncio.Event()
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
        for client in list(self._silent):
            client.transport.abort()

    async def finish(self) -> None:
        """Relay the last bytes of connections that the server has ended, then close the others."""
        self._all_gone.clear()
        if self._clients:
            try:
                await asyncio.wait_for(self._all_gone.wait(), FINISH_S)
            except TimeoutError:
                for client in list(self._clients):
                    client.transport.abort()
                await asyncio.sleep(0)  # lets the event loop close the sockets
        self.inner.close()

    def arrived(self, client: _Client) -> bool:
        """Count a new connection. False if there is no room for it."""
        if self.limits.must_sign:
            self._make_room(client.host)
        if not self._shares.take(client.host):
            self._log_full(self.of_one_address if self._shares.has_all(client.host) else self.connections, client.host)
            return False
        self._clients.add(client)
        if self.limits.must_sign:
            self.unsigned.take()
            self._all_unsigned[client] = None
            self._unsigned.setdefault(client.host, {})[client] = None
        self._silent[client] = None
        if len(self._silent) > self.limits.silent_max:
            next(iter(self._silent)).turn_away("it sent no byte, and there are too many such connections")
        return True

    def signed(self, number: int) -> None:
        """A call of this connection was signed: from now on the connection is not closed to make room."""
        client = self._joined.get(number)
        if client is not None:
            self._is_signed(client)

    def hang_up(self, number: int, why: str) -> None:
        """Close a connection."""
        client = self._joined.get(number)
        if client is not None:
            client.turn_away(why)

    def _is_signed(self, client: _Client) -> None:
        if client in self._all_unsigned:
            del self._all_unsigned[client]
            self.unsigned.give_back()
            there = self._unsigned[client.host]
            del there[client]
            if not there:
                del self._unsigned[client.host]

    def _make_room(self, host: str) -> None:
        """Close the oldest connection without a signed call, if a new one from `host` needs its place."""
        if self._shares.has_all(host):
            # The address has its whole share, so only a connection of this address may be closed.
            if host in self._unsigned:
                self._end_oldest(self._unsigned[host], self.of_one_address)
        elif self._all_unsigned and len(self._all_unsigned) >= self.unsigned.limit:
            self._end_oldest(self._all_unsigned, self.unsigned)
        elif self._all_unsigned and self.connections.used >= self.connections.limit:
            self._end_oldest(self._all_unsigned, self.connections)

    def _end_oldest(self, there: dict[_Client, None], short: Budget) -> None:
        short.refused += 1
        oldest = next(iter(there))
        self._log_full(short, oldest.host)
        oldest.turn_away("it never signed a call, and a new connection needs its place")
        self.left(oldest)

    def register(self, client: _Client) -> None:
        self._silent.pop(client, None)
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
        if client not in self._clients:
            return
        self._silent.pop(client, None)
        self._joined.pop(client.number, None)
        self._is_signed(client)
        self._shares.give_back(client.host)
        self._clients.remove(client)
        if not self._clients:
            self._all_gone.set()

    def _log_full(self, short: Budget, host: str) -> None:
        """Log at most one line a minute for each limit, so that a flood does not fill the log."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._said_full_at_s.get(short, -math.inf) >= LOG_FULL_EVERY_S:
            self._said_full_at_s[short] = now_s
            log.warning(
                "connections refused",
                reason=f"no room for more {short.name}",
                limit=short.limit,
                option=f"--{short.option.replace('_', '-')}",
                address=host,
            )


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
        self.peer = _peer_of(transport)
        self.host = self.peer.rpartition(":")[0]
        if not self._front.arrived(self):
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


def _listen(host: str, port: int) -> list[socket.socket]:
    """One socket for each address of the host, all on one port. Unsupported address families are left out."""
    places = dict.fromkeys(
        (family, place) for family, _, _, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    )
    listening: list[socket.socket] = []
    lacking: OSError | None = None
    for family, place in places:
        wanted = listening[0].getsockname()[1] if listening else port
        try:
            listening.append(_bound(family, (place[0], wanted, *place[2:])))
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                for each in listening:
                    each.close()
                raise
            lacking = error
    if lacking is not None and not listening:
        raise lacking
    return listening


def _bound(family: int, place: tuple[Any, ...]) -> socket.socket:
    # With the protocol given, asyncio switches Nagle's algorithm off, which delays quiet connections by 40 ms.
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # "::" stands for every address of the machine, IPv4 too, as in gRPC.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if place[0] == "::" else 1)
        bound.bind(place)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def _peer_of(transport: asyncio.BaseTransport) -> str:
    name = transport.get_extra_info("peername")
    if not name:
        return "unknown"
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
