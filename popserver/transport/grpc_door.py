"""The door that uses gRPC's own server. No other module imports `grpc.aio`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, cast

import grpc

from popserver.front.inner import connection_number, peer_address
from popserver.transport.call import Encodable, EndStatus, Handler, Route, Service, Write
from popserver.transport.limits import CallLimits
from popserver.transport.requests import SMALL_BYTES

if TYPE_CHECKING:
    # Their libraries load slowly, and a server without TLS does not need them.
    from popserver.front.certificate import Certificate
    from popserver.front.source import Source

KEEPALIVE_MS = 60_000
# Enough for a burst of polls from one client (10,000 and some more). Each waiting call costs memory.
PENDING_CALLS_MAX = 12_000
PEERS_REMEMBERED_MAX = 4_096

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_connection_number = lru_cache(PEERS_REMEMBERED_MAX)(connection_number)

Context = grpc.aio.ServicerContext[bytes, Encodable]
# A handler with the signature that gRPC's server calls.
GrpcHandler = Callable[[object, Context], Awaitable[Encodable | None]]


@dataclass(slots=True)
class GrpcCall:
    """One call, made from gRPC's context."""

    Disconnected: ClassVar[type[Exception]] = grpc.aio.InternalError
    _context: Context
    headers: Mapping[str, str | bytes]

    @property
    def peer(self) -> str:
        return peer_address(self._context.peer())

    @property
    def connection(self) -> int | None:
        return _connection_number(self._context.peer())

    @property
    def is_cancelled(self) -> bool:
        return self._context.cancelled()

    def remaining_ms(self) -> int | None:
        remaining_s = self._context.time_remaining()
        return None if remaining_s is None else int(remaining_s * 1_000)

    async def read(self) -> bytes | None:
        data: bytes | object = await self._context.read()
        return data if isinstance(data, bytes) else None

    async def send_headers(self) -> None:
        await self._context.send_initial_metadata(())

    @property
    def write(self) -> Write:
        return self._context.write

    def end(self, status: EndStatus) -> None:
        self._context.set_code(_CODES[status.code])
        self._context.set_details(status.sentence)

    def on_end(self, callback: Callable[[], None]) -> None:
        self._context.add_done_callback(lambda _: callback())  # type: ignore[arg-type]


class GrpcDoor:
    """A gRPC server. Make it inside the running event loop."""

    def __init__(self, limits: CallLimits, connections_max: int) -> None:
        self._server = grpc.aio.server(options=_options(limits, connections_max))

    def listen_plaintext(self, address: str) -> int:
        return self._server.add_insecure_port(address)

    def listen_tls(self, address: str, source: Source) -> int:
        return self._server.add_secure_port(address, _credentials(source))

    def serve(self, services: Sequence[Service]) -> None:
        self._server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    service.name, {name: _method_handler(route) for name, route in service.routes.items()}
                )
                for service in services
            ]
        )

    async def start(self) -> None:
        await self._server.start()

    async def stop(self, timeout_s: float) -> None:
        await self._server.stop(timeout_s)


def _method_handler(route: Route) -> grpc.RpcMethodHandler[bytes, Encodable]:
    """Declare every call as a stream of requests: gRPC reads the request of other kinds before it calls the handler."""
    kind = grpc.stream_stream_rpc_method_handler if route.streams else grpc.stream_unary_rpc_method_handler
    return kind(cast("Callable[..., object]", _grpc_handler(route.handler)), response_serializer=route.encode)


def _grpc_handler(handler: Handler) -> GrpcHandler:
    # Does not use gRPC's iterator of requests, which keeps the last request in memory until it is collected.
    async def handle(_requests: object, context: Context) -> Encodable | None:
        return await handler(GrpcCall(context, dict(context.invocation_metadata() or ())))

    return handle


def _credentials(source: Source) -> grpc.ServerCredentials:
    def fresh() -> grpc.ServerCertificateConfiguration | None:
        """gRPC calls this at every handshake; None keeps the current certificate."""
        certificate = source.fresh()
        return None if certificate is None else _configuration(certificate)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(source.certificate),
        # gRPC accepts None, but its types do not say so.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", fresh),
        require_client_authentication=source.certificate.client_ca is not None,
    )


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], root_certificates=certificate.client_ca
    )


def _options(limits: CallLimits, connections_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", -1),
        # Two servers must not share a port: half of the calls would go to the other server.
        ("grpc.so_reuseport", 0),
        # Closes connections that do not complete a handshake, and limits the number of connections.
        ("grpc.server_handshake_timeout_ms", limits.handshake_ms),
        ("grpc.max_allowed_incoming_connections", connections_max),
        # Closes connections without calls. Keepalive does not: it only checks that the client's machine answers.
        ("grpc.max_connection_idle_ms", limits.idle_ms),
        ("grpc.max_concurrent_streams", limits.calls_per_connection_max),
        # How much a client may send of a request before the server reads it. By default gRPC raises this to 4 MiB for a
        # fast client, on each stream.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", SMALL_BYTES),
        # No compression: gRPC decompresses a request before the server can count it, up to a thousand times its size.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # By default gRPC drops calls at random when a thousand wait to be started.
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
        # Official clients ping every 60 s to 300 s without a call; by default gRPC closes such connections.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        # Closes the connection of a client that has disappeared, instead of keeping it for hours.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ]
