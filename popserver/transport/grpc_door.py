"""The door that is gRPC's own server: the only module that knows `grpc.aio`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import grpc

from popserver.front.inner import connection_number, peer_address
from popserver.transport.call import Encodable, EndStatus, Handler, Route, Service, Write
from popserver.transport.incoming import SMALL_BYTES
from popserver.transport.limits import Limits

if TYPE_CHECKING:
    # Their libraries take a while to load; a server without TLS does without them.
    from popserver.front.certificate import Certificate
    from popserver.front.source import Source

KEEPALIVE_MS = 60_000
# A burst of polls of one client (10,000 and some) is taken up; of a flood no more than this waits, and costs memory.
PENDING_CALLS_MAX = 12_000
PEERS_REMEMBERED_MAX = 4_096

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_connection_number = lru_cache(PEERS_REMEMBERED_MAX)(connection_number)

Context = grpc.aio.ServicerContext[bytes, Encodable]
# A method's handler as gRPC's server calls it.
GrpcHandler = Callable[[object, Context], Awaitable[Encodable | None]]


class GrpcCall:
    """One call, by the context that gRPC has for it."""

    __slots__ = ("_context", "_headers")

    Disconnected: type[Exception] = grpc.aio.InternalError

    def __init__(self, context: Context) -> None:
        self._context = context
        self._headers: dict[str, str | bytes] = dict(context.invocation_metadata() or ())

    @property
    def headers(self) -> Mapping[str, str | bytes]:
        return self._headers

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
    """A gRPC server; call it in the running event loop."""

    def __init__(self, limits: Limits, connections_max: int) -> None:
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
    """Every call is a stream of requests to gRPC: of any other it reads the request before it calls the handler."""
    kind = grpc.stream_stream_rpc_method_handler if route.streams else grpc.stream_unary_rpc_method_handler
    return kind(cast("Callable[..., object]", _grpc_handler(route.handler)), response_serializer=route.encode)


def _grpc_handler(handler: Handler) -> GrpcHandler:
    # Not by gRPC's iterator of requests: that keeps the last one until it is garbage, which may take long.
    async def handle(_requests: object, context: Context) -> Encodable | None:
        return await handler(GrpcCall(context))

    return handle


def _credentials(source: Source) -> grpc.ServerCredentials:
    def fresh() -> grpc.ServerCertificateConfiguration | None:
        """Asked at every handshake; None keeps what gRPC has."""
        certificate = source.fresh()
        return None if certificate is None else _configuration(certificate)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(source.certificate),
        # gRPC's types do not know that it may be None.
        cast("Callable[[], grpc.ServerCertificateConfiguration]", fresh),
        require_client_authentication=source.certificate.client_ca is not None,
    )


def _configuration(certificate: Certificate) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(certificate.key, certificate.chain)], root_certificates=certificate.client_ca
    )


def _options(limits: Limits, connections_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", -1),
        # Two servers must not share a port: half of the calls would go to the other one.
        ("grpc.so_reuseport", 0),
        # A peer that connects and sends nothing that can be understood is let go; so many may be there at all.
        ("grpc.server_handshake_timeout_ms", limits.handshake_ms),
        ("grpc.max_allowed_incoming_connections", connections_max),
        # A connection without a call is let go as well: keepalive only asks whether its machine is there.
        ("grpc.max_connection_idle_ms", limits.idle_ms),
        ("grpc.max_concurrent_streams", limits.calls_per_connection_max),
        # What a client may send of a request that is not read yet. gRPC would raise it to 4 MiB for a fast client,
        # on each of its streams.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", SMALL_BYTES),
        # Nothing but identity. A packed request would be unpacked before it is counted, to a thousand times its size.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        # By default gRPC drops calls at random once a thousand arrive faster than they are taken up.
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
        # Official clients ping every 60 s to 300 s without a call; gRPC's own rule would end their connections.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        # A peer that has vanished is noticed, and not kept for hours.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ]
