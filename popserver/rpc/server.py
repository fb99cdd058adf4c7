"""The gRPC server: where it listens, what it lets in, how it leaves."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from popproto.pool import POOL
from popproto.v2 import service_pb2
from popserver.broker.broker import Broker
from popserver.domain.errors import CannotListen
from popserver.rpc import convert
from popserver.rpc.calls import handlers
from popserver.rpc.consuming import Consuming
from popserver.rpc.limits import Limits
from popserver.rpc.producing import Producing
from popserver.rpc.routing import Routing
from popserver.rpc.service import verbs
from popserver.rpc.session import Session

SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
# What a health check may ask for: the server as a whole, and the two names that process supervisors use.
HEALTH_NAMES = ("", "startup", "liveness")
KEEPALIVE_MS = 60_000
PENDING_CALLS_MAX = 100_000

_SERVING = health_pb2.HealthCheckResponse.SERVING


class PopServer:
    """A listening server; it answers nothing before `start`."""

    def __init__(
        self, server: grpc.aio.Server, host: str, port: int, broker: Broker, session: Session, health_: Any
    ) -> None:
        self.port = port
        self.address = address_of(host, port)
        self._server = server
        self._broker = broker
        self._session = session
        self._health = health_

    async def start(self) -> None:
        # Nobody can ask before the next line.
        for name in HEALTH_NAMES:
            await self._health.set(name, _SERVING)
        await self._server.start()

    async def drain(self, timeout_s: float) -> None:
        """Leave: health says NOT_SERVING, parked polls are answered empty, calls on their way finish, then the port
        closes; what is not done after `timeout_s` is cut off."""
        await self._health.enter_graceful_shutdown()
        await self._broker.drain()
        stopping = asyncio.ensure_future(self._server.stop(timeout_s))
        await asyncio.sleep(0)
        # Last of all: a client whose stream ends comes back at once, and must not be let in again.
        self._session.close()
        await stopping


def build(
    broker: Broker,
    *,
    host: str,
    port: int,
    limits: Limits,
    version: str,
    extra: Sequence[Any] = (),
) -> PopServer:
    """A server bound to host and port (0: any free one, see `.port`). Call it in the running event loop.

    `extra` are further services as `calls.handlers` makes them. Raises `CannotListen` where the address is taken.
    """
    server = grpc.aio.server(options=_options(limits))
    bound = _bind(server, host, port)
    own = convert.endpoints(host, bound)
    session = Session(broker, limits, version)
    table = verbs(
        Routing(broker, own), session, Producing(broker, limits), Consuming(broker, limits, address_of(host, bound))
    )
    services = [handlers(SERVICE, table, service_pb2, broker.clients.seen), *extra]
    server.add_generic_rpc_handlers(services)
    return PopServer(server, host, bound, broker, session, _add_health_and_reflection(server, services))


def address_of(host: str, port: int) -> str:
    """`HOST:PORT`; an IPv6 host stands in brackets, or its last part would be taken for the port."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", -1),
        # Two servers must not share a port: half of the calls would go to the other one.
        ("grpc.so_reuseport", 0),
        # By default gRPC drops calls at random once a thousand arrive faster than they are taken up.
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
        # Official clients ping every 60 s to 300 s without a call; gRPC's own rule would hang up on them.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        # A peer that vanished without a word is noticed, not kept for hours.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ]


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    address = address_of(host, port)
    try:
        # Asked first, the system says no in silence; gRPC would write a line of its own beside ours.
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
        return server.add_insecure_port(address)
    except (OSError, RuntimeError):
        raise CannotListen(
            f"cannot listen on {address}: the port is taken or the address is not this machine's;"
            " stop the other server, or choose another with --port"
        ) from None


def _add_health_and_reflection(server: grpc.aio.Server, services: Sequence[Any]) -> Any:
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    own_files = (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
    for file in own_files:
        POOL.AddSerializedFile(file.serialized_pb)
    names = [service.service_name() for service in services]
    names += [service.full_name for file in own_files for service in file.services_by_name.values()]
    reflection.enable_server_reflection(names, server, pool=POOL)
    return servicer
