"""The server: what it serves, where it listens, how it leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from popproto.v2 import service_pb2
from popserver.broker.access import Access
from popserver.broker.broker import Broker
from popserver.front.open_files import connections_max
from popserver.rpc import bulk, convert, legacy
from popserver.rpc.anybody import Anybody
from popserver.rpc.call import Door, Service
from popserver.rpc.calls import serve
from popserver.rpc.consuming import Consuming
from popserver.rpc.gates import ClientGate
from popserver.rpc.grpc_door import GrpcDoor
from popserver.rpc.health import Health
from popserver.rpc.incoming import Incoming
from popserver.rpc.limits import Limits
from popserver.rpc.listening import PLAINTEXT, Listening, Place, listen
from popserver.rpc.offsets import Offsets
from popserver.rpc.producing import Producing
from popserver.rpc.pulling import Pulling
from popserver.rpc.routing import Routing
from popserver.rpc.service import messaging_methods
from popserver.rpc.session import Session

SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]


class PopServer:
    """A listening server; it answers nothing before `start`."""

    def __init__(
        self,
        door: Door,
        place: Place,
        broker: Broker,
        session: Session,
        health: Health,
        connections_max: int,
    ) -> None:
        self.port = place.port
        self.connections_max = connections_max
        self.address = place.address
        self._door = door
        self._front = place.front
        self._broker = broker
        self._session = session
        self._health = health

    async def start(self) -> None:
        await self._door.start()
        if self._front is not None:
            await self._front.start()

    async def drain(self, timeout_s: float) -> None:
        """Leave: health says NOT_SERVING, parked polls are answered empty, calls on their way finish, then the port
        closes; what is not done after `timeout_s` is cut off."""
        self._health.leave()
        await self._broker.drain()
        if self._front is not None:
            self._front.close()
        stopping = asyncio.ensure_future(self._door.stop(timeout_s))
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
    extra: Sequence[Callable[[Incoming], Service]] = (),
    listening: Listening = PLAINTEXT,
    access: Access | None = None,
) -> PopServer:
    """A server bound to host and port (0: any free one, see `.port`). Call it in the running event loop.

    `extra` make further services with `calls.serve`. Without `access` callers need not sign. Raises
    `CannotListen` where the address is taken.
    """
    access = access or Access(broker.reader, broker.clock)
    door = GrpcDoor(limits, _directly_max(limits))
    place = listen(door, host, port, listening, limits, must_sign=access.is_on)
    if place.front is not None:
        broker.budgets.include(place.front.connections)
        broker.budgets.include(place.front.of_one_address)
        if access.is_on:
            broker.budgets.include(place.front.unsigned)
    own = convert.endpoints(host, place.port)
    session = Session(broker, limits, version, place.address)
    consuming, pulling = Consuming(broker, limits, place.address), Pulling(broker, limits, place.address)
    table = messaging_methods(
        Routing(broker, own), session, Producing(broker, limits), consuming, pulling, Offsets(broker)
    )
    access.on_change(session.expel)
    incoming = Incoming(broker.budgets, limits, place.front)
    services = [
        serve(SERVICE, table, ClientGate(access, broker.clients.seen, broker.clock), incoming),
        legacy.service(broker, access, pulling, incoming),
        bulk.service(broker, access, limits, incoming),
        *(make(incoming) for make in extra),
    ]
    anybody = Anybody(incoming, broker.budgets, limits, [service.name for service in services])
    door.serve([*services, *anybody.services])
    allowed = _directly_max(limits) if place.front is None else place.front.connections.limit
    return PopServer(door, place, broker, session, anybody.health, allowed)


def _directly_max(limits: Limits) -> int:
    return min(limits.connections_max, connections_max(files_each=1))
