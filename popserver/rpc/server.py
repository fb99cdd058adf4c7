"""The gRPC server: where it listens, what it lets in, how it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from popproto.v2 import service_pb2
from popserver.broker.access import Access
from popserver.broker.broker import Broker
from popserver.front.open_files import connections_max
from popserver.rpc import bulk, convert, legacy
from popserver.rpc.anybody import Anybody
from popserver.rpc.calls import handlers
from popserver.rpc.consuming import Consuming
from popserver.rpc.gates import Door
from popserver.rpc.incoming import SMALL_BYTES, Incoming
from popserver.rpc.limits import Limits
from popserver.rpc.listening import PLAINTEXT, Listening, Place, listen
from popserver.rpc.offsets import Offsets
from popserver.rpc.producing import Producing
from popserver.rpc.pulling import Pulling
from popserver.rpc.routing import Routing
from popserver.rpc.service import verbs
from popserver.rpc.session import Session

SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]
# What a health check may ask for: the server as a whole, and the two names that process supervisors use.
HEALTH_NAMES = ("", "startup", "liveness")
KEEPALIVE_MS = 60_000
# A burst of polls of one client (10,000 and some) is taken up; of a flood no more than this waits, and costs memory.
PENDING_CALLS_MAX = 12_000

_SERVING = health_pb2.HealthCheckResponse.SERVING


class PopServer:
    """A listening server; it answers nothing before `start`."""

    def __init__(
        self,
        server: grpc.aio.Server,
        place: Place,
        broker: Broker,
        session: Session,
        health_: health.aio.HealthServicer,
        connections_max: int,
    ) -> None:
        self.port = place.port
        self.connections_max = connections_max
        self.address = place.address
        self._server = server
        self._front = place.front
        self._broker = broker
        self._session = session
        self._health = health_

    async def start(self) -> None:
        # Nobody can ask before the next line.
        for name in HEALTH_NAMES:
            await self._health.set(name, _SERVING)
        await self._server.start()
        if self._front is not None:
            await self._front.start()

    async def drain(self, timeout_s: float) -> None:
        """Leave: health says NOT_SERVING, parked polls are answered empty, calls on their way finish, then the port
        closes; what is not done after `timeout_s` is cut off."""
        await self._health.enter_graceful_shutdown()
        await self._broker.drain()
        if self._front is not None:
            self._front.close()
        stopping = asyncio.ensure_future(self._server.stop(timeout_s))
        await asyncio.sleep(0)
        # Last of all: a client whose stream ends comes back at once, and must not be let in again.
        self._session.close()
        await stopping
        if self._front is not None:
            await self._front.finish()


def build(
    broker: Broker,
    *,
    host: str,
    port: int,
    limits: Limits,
    version: str,
    extra: Sequence[Callable[[Incoming], Any]] = (),
    listening: Listening = PLAINTEXT,
    access: Access | None = None,
) -> PopServer:
    """A server bound to host and port (0: any free one, see `.port`). Call it in the running event loop.

    `extra` make further services with `calls.handlers`. Without `access` callers need not sign. Raises
    `CannotListen` where the address is taken.
    """
    access = access or Access(broker.reader, broker.clock)
    server = grpc.aio.server(options=_options(limits))
    place = listen(server, host, port, listening, limits, must_sign=access.is_on)
    if place.front is not None:
        broker.budgets.include(place.front.connections)
        broker.budgets.include(place.front.of_one_address)
        if access.is_on:
            broker.budgets.include(place.front.unsigned)
    own = convert.endpoints(host, place.port)
    session = Session(broker, limits, version, place.address)
    consuming, pulling = Consuming(broker, limits, place.address), Pulling(broker, limits, place.address)
    table = verbs(Routing(broker, own), session, Producing(broker, limits), consuming, pulling, Offsets(broker))
    access.on_change(session.expel)
    incoming = Incoming(broker.budgets, limits, place.front)
    services = [
        handlers(SERVICE, table, service_pb2, Door(access, broker.clients.seen, broker.clock), incoming),
        legacy.service(broker, access, pulling, incoming),
        bulk.service(broker, access, limits, incoming),
        *(make(incoming) for make in extra),
    ]
    anybody = Anybody(incoming, broker.budgets, limits, [service.service_name() for service in services])
    server.add_generic_rpc_handlers([*services, *anybody.services])
    allowed = _directly_max(limits) if place.front is None else place.front.connections.limit
    return PopServer(server, place, broker, session, anybody.health, allowed)


def _directly_max(limits: Limits) -> int:
    return min(limits.connections_max, connections_max(files_each=1))


def _options(limits: Limits) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", limits.request_bytes_max),
        ("grpc.max_send_message_length", -1),
        # Two servers must not share a port: half of the calls would go to the other one.
        ("grpc.so_reuseport", 0),
        # A peer that connects and does not make itself understood is let go; so many may be there at all.
        ("grpc.server_handshake_timeout_ms", limits.handshake_ms),
        ("grpc.max_allowed_incoming_connections", _directly_max(limits)),
        # So is one that is mute: keepalive asks its machine alone, not whether it wants anything.
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
        # Official clients ping every 60 s to 300 s without a call; gRPC's own rule would hang up on them.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        # A peer that vanished without a word is noticed, not kept for hours.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ]
