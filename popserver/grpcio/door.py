"""The door that is gRPC's own server (grpc.aio). It has plaintext or TLS on its port, not both."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import grpc

from popserver.front.sockets import listening_sockets
from popserver.grpcio.call import Context, GrpcioCall
from popserver.grpcio.connections import close_connections
from popserver.model.budget import Budget
from popserver.transport.call import Encodable, Route, Service
from popserver.transport.incoming import SMALL_BYTES
from popserver.transport.limits import CallLimits
from popserver.transport.listen import Listening, address_of, cannot_listen

if TYPE_CHECKING:
    # Their libraries load slowly, and a server without TLS does not need them.
    from popserver.front.certificate import Certificate

# When calls were cancelled, their ends are sent within this time.
FINISH_S = 1.0
KEEPALIVE_MS = 60_000
HEADERS_BYTES_MAX = 16_384
# Enough for a burst of polls from one client (10,000 and some more). Each waiting call costs memory.
PENDING_CALLS_MAX = 12_000


class _Port(NamedTuple):
    """An address that this process keeps bound until the library binds it."""

    host: str
    number: int
    sockets: Sequence[socket.socket]
    listening: Listening


class GrpcioDoor:
    """A server of gRPC calls. Make it inside the running event loop."""

    def __init__(self, limits: CallLimits, connections_max: int, *, purpose: str = "") -> None:
        """`purpose`: of a port that is not for clients."""
        self.connections_max = connections_max
        self.budgets: Sequence[Budget] = ()  # the library counts its connections itself
        self._limits = limits
        self._option = f"--{purpose or 'port'}"
        self._ports: list[_Port] = []
        self._is_shared = False  # other processes listen on the port too
        self._services: Sequence[Service] = ()
        self._server: grpc.aio.Server | None = None
        self._calls: set[GrpcioCall] = set()
        self._leaving: set[str] = set()  # clients whose connections are closed in the next round of the event loop
        self._closing: asyncio.Task[None] | None = None

    @property
    def connected(self) -> int:
        """How many clients have a call."""
        return len({call.peer for call in self._calls})

    def listen(self, host: str, port: int, listening: Listening, given: Sequence[socket.socket] = ()) -> int:
        """Bind host and port (0: any free port), and return the port. `given`: sockets that are bound there already.

        Raises `CannotListen` if the address cannot be bound.
        """
        assert listening.mode != "permissive", "gRPC's library cannot have plaintext and TLS on one port"
        try:
            sockets = list(given) or listening_sockets(host, port)
        except OSError:
            raise cannot_listen(host, port, self._option) from None
        number: int = sockets[0].getsockname()[1]
        self._ports.append(_Port(host, number, sockets, listening))
        self._is_shared |= bool(given)
        return number

    def serve(self, services: Sequence[Service]) -> None:
        self._services = services

    async def start(self) -> None:
        """Raises `CannotListen` if another program has taken an address meanwhile."""
        options = _options(self._limits, self.connections_max, is_shared=self._is_shared)
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers([self._handlers(service) for service in self._services])
        refusal = None
        for port in self._ports:
            try:
                _bind(self._server, port)
            except RuntimeError:
                refusal = cannot_listen(port.host, port.number, self._option)
        await self._server.start()  # a server that was not started frees no address
        if refusal is not None:
            await self._server.stop(None)
            raise refusal

    def stop_accepting(self) -> None:
        """The library cannot do this. Clients that connect until `stop` get GOAWAY then."""

    def close(self) -> None:
        for port in self._ports:
            _close(port.sockets)
        if self._server is not None:
            self._closing = asyncio.get_running_loop().create_task(self._server.stop(None))

    async def stop(self, timeout_s: float) -> None:
        if self._server is None:
            return
        stopping = asyncio.ensure_future(self._server.stop(timeout_s + FINISH_S))
        await asyncio.wait([stopping], timeout=timeout_s)
        for call in list(self._calls):
            call.stop()
        await stopping

    def _handlers(self, service: Service) -> grpc.GenericRpcHandler:
        handlers = {name: self._handler(route) for name, route in service.routes.items()}
        return grpc.method_handlers_generic_handler(service.name, handlers)

    def _handler(self, route: Route) -> grpc.RpcMethodHandler[bytes, Encodable]:
        """Every call is declared as a stream of requests: otherwise the library reads a request before the handler."""

        async def handle(_requests: object, context: Context) -> Encodable | None:
            call = GrpcioCall(context, self._hang_up)
            self._calls.add(call)
            call.on_end(lambda: self._calls.discard(call))
            return await call.run(route.handler)

        kind = grpc.stream_stream_rpc_method_handler if route.streams else grpc.stream_unary_rpc_method_handler
        return kind(cast("Callable[..., object]", handle), response_serializer=route.encode)

    def _hang_up(self, peer: str) -> None:
        if not self._leaving:
            asyncio.get_running_loop().call_soon(self._close_connections)
        self._leaving.add(peer)

    def _close_connections(self) -> None:
        leaving, self._leaving = self._leaving, set()
        close_connections(leaving)


def _bind(server: grpc.aio.Server, port: _Port) -> None:
    """Let the library listen where the sockets are bound. Raises `RuntimeError`."""
    addresses = [address_of(*each.getsockname()[:2]) for each in port.sockets]
    _close(port.sockets)
    for address in addresses:
        if port.listening.certificate is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, _credentials(port.listening))


def _close(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        each.close()


def _credentials(listening: Listening) -> grpc.ServerCredentials:
    source, own_client = listening.certificate, listening.own_client
    assert source is not None

    def fresh() -> grpc.ServerCertificateConfiguration | None:
        """The library calls this at every handshake, in a thread of its own; None keeps the current certificate."""
        certificate = source.fresh()
        return None if certificate is None else _configuration(certificate, own_client)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(source.certificate, own_client),
        # gRPC accepts None, but its types do not say so.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", fresh),
        require_client_authentication=source.certificate.client_ca is not None,
    )


def _configuration(certificate: Certificate, own_client: bytes) -> grpc.ServerCertificateConfiguration:
    roots = None if certificate.client_ca is None else certificate.client_ca + b"\n" + own_client
    return grpc.ssl_server_certificate_configuration([(certificate.key, certificate.chain)], root_certificates=roots)


def _options(limits: CallLimits, connections_max: int, *, is_shared: bool) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", -1),
        # Two servers that know nothing of each other must not share a port: each would get a part of the calls.
        ("grpc.so_reuseport", int(is_shared)),
        # Closes connections that do not complete a handshake, and limits the number of connections.
        ("grpc.server_handshake_timeout_ms", limits.handshake_ms),
        ("grpc.max_allowed_incoming_connections", connections_max),
        # Closes connections without calls. Keepalive does not: it only checks that the client's machine answers.
        ("grpc.max_connection_idle_ms", limits.idle_ms),
        ("grpc.max_concurrent_streams", limits.calls_per_connection_max),
        # Between two limits the library refuses headers at random.
        ("grpc.max_metadata_size", HEADERS_BYTES_MAX),
        ("grpc.absolute_max_metadata_size", HEADERS_BYTES_MAX),
        # How much a client may send of a request before the server reads it. By default the library raises this to
        # 4 MiB for a fast client, on each stream.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", SMALL_BYTES),
        # No compression: the library decompresses a request before the server can count it, up to a thousand times
        # its size.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # By default the library drops calls at random when a thousand wait to be started.
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
        # Official clients ping every 60 s to 300 s without a call; by default the library closes such connections.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        # Closes the connection of a client that has disappeared, instead of keeping it for hours.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ]
