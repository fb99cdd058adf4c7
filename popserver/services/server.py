"""The server: binds its addresses, and has the services of clients, of operators and of anybody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from popserver.access.flow import Access
from popserver.access.gate import AdminElsewhere, AdminGate, ClientGate
from popserver.administration.readiness import Readiness
from popserver.broker.broker import Broker
from popserver.clients.rpc import SessionMethods
from popserver.clients.settings import ask_for_metrics
from popserver.delivery import origins
from popserver.front.sockets import NONE_GIVEN, GivenSockets, connections_max
from popserver.http2.door import Http2Door
from popserver.rocketmq_admin.rpc import ServerFacts
from popserver.services.administration import admin_methods
from popserver.services.clients import ClientServices
from popserver.transport import convert
from popserver.transport.call import Door, Service
from popserver.transport.calls import serve
from popserver.transport.incoming import Incoming
from popserver.transport.limits import CallLimits
from popserver.transport.listen import PLAINTEXT, Engine, Listening, address_of
from popserver.transport.public_services import PublicServices

if TYPE_CHECKING:
    from popserver.client_metrics.numbers import ClientMeters


class PopServer:
    """A listening server. It answers no call before `start`. `drain` ends the waiting polls.

    `admin_address` is where the administration is served; the same as `address` if it has no port of its own.
    """

    def __init__(
        self,
        doors: Sequence[Door],
        address: str,
        admin_address: str,
        port: int,
        drain: Callable[[], Awaitable[None]],
        session: SessionMethods,
        readiness: Readiness,
        connections_max: int,
    ) -> None:
        self.port = port
        self.readiness = readiness
        self.connections_max = connections_max
        self.address = address
        self.admin_address = admin_address
        self._doors = doors
        self._drain = drain
        self._session = session

    async def start(self) -> None:
        for door in self._doors:
            await door.start()

    def stop_accepting(self) -> None:
        """Accept no more connections. Open ones stay, and their calls are served."""
        for door in self._doors:
            door.stop_accepting()

    def close(self) -> None:
        """Free the addresses at once, if the server cannot start."""
        for door in self._doors:
            door.close()

    async def send_away(self) -> None:
        """Not ready any more, although it serves: load balancers and our own clients turn to other servers."""
        self.readiness.leave()
        await self._session.send_away()

    async def drain(self, timeout_s: float) -> None:
        """Stop: the server is not ready any more, waiting polls end, running calls finish, then the port is closed.

        Calls that still run after `timeout_s` seconds are cancelled.
        """
        self.readiness.leave()
        await self._drain()
        stopping = asyncio.gather(*(door.stop(timeout_s) for door in self._doors))
        await asyncio.sleep(0)
        # Last, because clients reconnect at once when their stream ends, and the server must refuse them then.
        self._session.close()
        await stopping


def build(
    broker: Broker,
    *,
    host: str,
    port: int,
    limits: CallLimits,
    version: str,
    listening: Listening = PLAINTEXT,
    access: Access | None = None,
    is_administered: bool = False,
    admin_at: tuple[str, int] | None = None,
    client_meters: ClientMeters | None = None,
    set_log_level: Callable[[str], None] | None = None,
    drain: Callable[[], int] | None = None,
    given: GivenSockets = NONE_GIVEN,
    engine: Engine = "builtin",
) -> PopServer:
    """A server that is bound to host and port (0: any free port, see `.port`). Call it in the running event loop.

    Without `access` callers need not sign. The two services Admin exist only with `is_administered`; with `admin_at` on
    that host and port, otherwise beside messages. The service for metrics of clients exists only with `client_meters`.
    `set_log_level`: None if the log is not the server's own. `drain`: see `AdminMethods`. `given`: sockets that are
    bound already. Raises `CannotListen` if an address cannot be bound.
    """
    access = access or Access(broker.engine.reader, broker.engine.clock)
    make = partial(_door, engine, limits, must_sign=access.is_on)
    door = admin_door = make(min(limits.connections_max, connections_max()))
    port = door.listen(host, port, listening, given.clients)
    admin_address = address_of(host, port)
    if admin_at is not None:
        admin_door = make(limits.admin_connections_max, purpose="admin")
        try:
            admin_address = address_of(admin_at[0], admin_door.listen(*admin_at, listening, given.admin))
        except BaseException:
            door.close()
            raise
    doors = list(dict.fromkeys([door, admin_door]))
    for each in doors:
        for budget in each.budgets:
            broker.engine.budgets.include(budget)
    incoming = Incoming(broker.engine.budgets, limits, broker.engine.meters)
    address, own = address_of(host, port), convert.endpoints(host, port)
    ask = None if client_meters is None else partial(ask_for_metrics, own=own, must_sign=access.is_on)
    made = ClientServices(broker, limits, version, address, own, ask)
    access.on_change(made.session.end_forbidden_streams)
    access.on_change(broker.sessions.waits.change_all)
    gate = ClientGate(
        access,
        broker.sessions.clients,
        broker.engine.clock,
        lambda keys: broker.engine.reader.read(partial(origins.topics_behind, keys=keys)),
    )
    services = [serve(each, methods, gate, incoming) for each, methods in made.methods.items()]
    readiness = Readiness(
        broker.engine.database,
        broker.engine.reader,
        broker.engine.writer,
        broker.timekeeper.hints,
        broker.patrol.sentences,
    )
    administration: list[Service] = []
    refused: list[Service] = []
    if is_administered:
        facts = ServerFacts(version, address, lambda: door.connected, set_log_level, drain)
        tables = admin_methods(broker, access, readiness, facts, limits)
        gate_of_admins = AdminGate(access, broker.engine.clock)
        administration = [serve(each, table, gate_of_admins, incoming) for each, table in tables.items()]
        refused = [serve(each, table, AdminElsewhere(), incoming) for each, table in tables.items()]
    anybody = PublicServices(incoming, broker.engine.budgets, limits, readiness)
    if door is admin_door:
        services += [*administration, *anybody.beside([*services, *administration])]
    else:
        services += [*anybody.beside(services), *refused]
        admin_door.serve([*administration, *anybody.beside(administration)])
    if client_meters is not None:
        # Loaded here, because it needs OpenTelemetry's messages.
        from popserver.client_metrics.rpc import ClientMetricMethods

        methods = ClientMetricMethods(client_meters, broker.catalog, incoming, gate, must_sign=access.is_on)
        services.append(methods.service)
    door.serve(services)
    return PopServer(doors, address, admin_address, port, broker.drain, made.session, readiness, door.connections_max)


def _door(engine: Engine, limits: CallLimits, connections_max: int, *, must_sign: bool, purpose: str = "") -> Door:
    if engine == "builtin":
        return Http2Door(limits, connections_max, must_sign=must_sign, purpose=purpose)
    # gRPC's library loads slowly.
    from popserver.grpcio.door import GrpcioDoor

    return GrpcioDoor(limits, connections_max, purpose=purpose)
