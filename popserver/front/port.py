"""Listens on the server's port. A connection's first byte shows whether it uses TLS.

A TLS connection begins with a handshake record (0x16), a plaintext one with HTTP/2's preface ("PRI * …"). The byte is
read and left in the socket (MSG_PEEK), so that the event loop's own TLS reads it again. A connection that sends another
byte, or nothing for a while, is closed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from popport.addresses import network_of
from popserver.front.connections import Connections
from popserver.front.sockets import address_of_peer, listening_sockets
from popserver.front.turns import Turns

if TYPE_CHECKING:
    # Their libraries load slowly, and a server without TLS does not need them.
    from popserver.front.certificate import Certificate
    from popserver.front.source import Source

TLS_HANDSHAKE = 0x16
PREFACE = ord("P")
BACKLOG = 1_024
ACCEPTED_AT_ONCE = 64
# When the process has no more files, it tries again after so long.
NO_FILES_PAUSE_S = 1.0
# A TLS client understands from any bytes that are not TLS that it does not speak to a TLS server: here HTTP/2's first
# frame, empty.
NO_TLS = b"\0\0\0\4\0\0\0\0\0"
UNREAD_BYTES = 64 * 1024
TLS_SHUTDOWN_S = 1.0
# HTTP/2 forbids the other ciphers of TLS 1.2.
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"

log = structlog.get_logger("popserver.front")

# Makes the protocol of a connection. Gets the client's address, a function to call when the connection is lost, and
# one to call when a caller has signed.
MakeProtocol = Callable[[str, Callable[[], None], Callable[[], None]], asyncio.Protocol]


class PortListener:
    """The listening sockets of one server. Raises `OSError` if it cannot bind host and port (0: any free port)."""

    def __init__(
        self,
        host: str,
        port: int,
        kinds: Collection[int],
        tls: TlsContexts | None,
        connections: Connections,
        make: MakeProtocol,
        handshake_s: float,
        given: Sequence[socket.socket] = (),
    ) -> None:
        """`kinds`: the first bytes that are accepted. `given`: sockets that are bound there already."""
        self.kinds = kinds
        self.connections = connections
        self.make = make
        self.handshake_s = handshake_s
        self.turns = Turns()
        self._tls = tls
        self._sockets = list(given) or listening_sockets(host, port)
        self.port: int = self._sockets[0].getsockname()[1]
        self._retries: dict[socket.socket, asyncio.TimerHandle] = {}
        self._listens = False

    @property
    def tls(self) -> ssl.SSLContext:
        assert self._tls is not None, "TLS is accepted without a certificate"
        return self._tls.current()

    def start(self) -> None:
        """Accept connections."""
        loop = asyncio.get_running_loop()
        self._listens = True
        for listening in self._sockets:
            listening.listen(BACKLOG)
            self._accept_again(loop, listening)

    def close(self) -> None:
        """Accept no more connections. Open connections stay open, except those without a first byte."""
        self.stop_accepting()
        self.connections.end_silent()

    def stop_accepting(self) -> None:
        """Accept those connections that wait, and then no more. Other processes may have the sockets too."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            if self._listens:
                self._accept(loop, listening)
            loop.remove_reader(listening)
            listening.close()
        for retry in self._retries.values():
            retry.cancel()
        self._sockets.clear()

    def _accept_again(self, loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
        loop.add_reader(listening, self._accept, loop, listening)

    def _accept(self, loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                log.warning(
                    "connections refused", reason="the process has no more files", limit=os.strerror(error.errno)
                )
                loop.remove_reader(listening)
                self._retries[listening] = loop.call_later(
                    NO_FILES_PAUSE_S, loop.add_reader, listening, self._accept, loop, listening
                )
                return
            accepted.setblocking(False)
            if accepted.family in (socket.AF_INET, socket.AF_INET6):
                # Nagle's algorithm delays quiet connections by 40 ms.
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Accepted(self, loop, accepted, address_of_peer(address)).wait()


class Accepted:
    """A connection, from its first byte on a task or a protocol."""

    def __init__(
        self, listener: PortListener, loop: asyncio.AbstractEventLoop, accepted: socket.socket, peer: str
    ) -> None:
        self.peer = peer
        self.host = network_of(peer.rpartition(":")[0])
        self._listener = listener
        self._loop = loop
        self._socket: socket.socket | None = accepted
        self._transport: asyncio.Transport | None = None
        self._silence_timer: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[None] | None = None

    def wait(self) -> None:
        """Wait for the first byte."""
        assert self._socket is not None
        if not self._listener.connections.arrived(self):
            self._socket.close()
            return
        silence_s = self._listener.connections.limits.silence_s
        self._silence_timer = self._loop.call_later(silence_s, self.turn_away, "it sent no byte")
        self._loop.add_reader(self._socket, self._peek)

    def turn_away(self, why: str) -> None:
        log.debug("connection closed", peer=self.peer, reason=why)
        if self._joining is not None:
            self._joining.cancel()
        if self._transport is not None:
            self._transport.abort()
        elif self._socket is not None:
            self._stop_waiting()
            self._socket.close()
            self._socket = None
            self._left()

    def _peek(self) -> None:
        assert self._socket is not None
        try:
            first = self._socket.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.turn_away(str(error))
            return
        if not first:
            self.turn_away("the client closed it")
            return
        if first[0] not in self._listener.kinds:
            if first[0] == TLS_HANDSHAKE:
                with suppress(OSError):
                    self._socket.send(NO_TLS)
            with suppress(OSError):
                self._socket.recv(UNREAD_BYTES)  # otherwise the client sees a reset instead of an end
            self.turn_away(f"it is not a TLS or HTTP/2 connection (first byte 0x{first[0]:02x})")
            return
        self._stop_waiting()
        self._listener.connections.spoke(self)
        self._joining = self._loop.create_task(self._join(is_tls=first[0] == TLS_HANDSHAKE))

    async def _join(self, *, is_tls: bool) -> None:
        accepted, listener = self._socket, self._listener
        assert accepted is not None
        try:
            if is_tls:
                await listener.turns.wait(self.host)
            # From here on the transport closes the socket.
            self._socket = None
            transport, _ = await self._loop.connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=listener.tls if is_tls else None,
                ssl_handshake_timeout=listener.handshake_s if is_tls else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S if is_tls else None,
            )
            self._transport = transport
        except OSError as error:
            log.debug("connection closed", peer=self.peer, reason=str(error))
            self._left()
        except BaseException:
            accepted.close()
            self._left()
            raise
        finally:
            self._joining = None

    def _protocol(self) -> asyncio.Protocol:
        return self._listener.make(self.peer, self._left, self._signed)

    def _signed(self) -> None:
        self._listener.connections.signed(self)

    def _left(self) -> None:
        self._listener.connections.left(self)

    def _stop_waiting(self) -> None:
        if self._silence_timer is not None and self._socket is not None:
            self._silence_timer.cancel()
            self._silence_timer = None
            self._loop.remove_reader(self._socket)


class TlsContexts:
    """The certificate as contexts of Python's ssl. A replaced certificate is used from the next handshake on."""

    def __init__(self, source: Source, own_client: bytes = b"") -> None:
        """`own_client`: a certificate in PEM that is accepted besides those of the CA for clients."""
        self._source = source
        self._own_client = own_client
        self._current = _context(source.certificate, own_client)

    def current(self) -> ssl.SSLContext:
        fresh = self._source.fresh()
        if fresh is not None:
            self._current = _context(fresh, self._own_client)
        return self._current


def _context(certificate: Certificate, own_client: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["h2"])
    context.options |= ssl.OP_NO_RENEGOTIATION
    # ssl reads certificate and key from files only.
    with tempfile.NamedTemporaryFile(prefix="popmq-") as file:
        file.write(certificate.key + b"\n" + certificate.chain)
        file.flush()
        context.load_cert_chain(file.name)
    if certificate.client_ca is not None:
        context.load_verify_locations(cadata=(certificate.client_ca + b"\n" + own_client).decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context
