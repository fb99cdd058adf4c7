"""Every service of the server, made of a broker's parts; each part gets only what it needs."""

from __future__ import annotations

from popproto.v2 import definition_pb2 as pb
from popserver.broker import users
from popserver.broker.access import Access
from popserver.broker.broker import Broker
from popserver.broker.operations import Operations
from popserver.broker.progress import GroupProgress
from popserver.broker.redrives import Redrives
from popserver.rpc import admin, bulk, convert, legacy
from popserver.rpc.admin import Admin, admin_methods
from popserver.rpc.admin_clients import ClientDesk
from popserver.rpc.admin_progress import Progress
from popserver.rpc.admin_redrives import DeadLetterDesk
from popserver.rpc.anybody import Anybody
from popserver.rpc.bulk import Bulk, bulk_methods
from popserver.rpc.calls import AnyMethod, serve
from popserver.rpc.consuming import Consuming
from popserver.rpc.gates import AdminGate, ClientGate
from popserver.rpc.group_members import GroupMembers
from popserver.rpc.grpc_door import GrpcDoor
from popserver.rpc.incoming import Incoming
from popserver.rpc.legacy import legacy_methods
from popserver.rpc.limits import Limits
from popserver.rpc.listening import PLAINTEXT, Listening, listen
from popserver.rpc.offsets import Offsets
from popserver.rpc.producing import Producing
from popserver.rpc.pulling import Pulling
from popserver.rpc.retries import Retries
from popserver.rpc.routing import Routing
from popserver.rpc.server import SERVICE, PopServer, directly_max
from popserver.rpc.service import messaging_methods
from popserver.rpc.session import Session
from popserver.rpc.users import Users


class Services:
    """What stands behind the methods of all services. `address` is the server's own, `HOST:PORT`."""

    def __init__(self, broker: Broker, limits: Limits, version: str, address: str, own: pb.Endpoints) -> None:
        self._broker = broker
        self._version = version
        self._limits = limits
        self._own = own
        self.session = Session(
            broker.catalog,
            broker.clients,
            broker.commands,
            broker.transactions,
            broker.group_members,
            limits,
            version,
            address,
            heeds_keys=broker.heeds_keys,
        )
        self.consuming = Consuming(
            broker.polls,
            broker.settling,
            broker.orphans,
            broker.clients,
            broker.clock,
            broker.reader,
            broker.undelivered,
            lambda: broker.open_polls,
            limits,
            address,
        )
        self.pulling = Pulling(
            broker.pulls,
            broker.clients,
            broker.clock,
            broker.reader,
            broker.undelivered,
            lambda: broker.open_polls,
            limits,
            address,
        )
        self.offsets = Offsets(broker.offsets)

    def messaging(self) -> dict[str, AnyMethod]:
        """Every method of MessagingService."""
        broker = self._broker
        routing = Routing(broker.catalog, broker.clients, broker.members, broker.group_members, self._own)
        producing = Producing(broker.sending, broker.transactions, broker.pending, broker.clock, self._limits)
        return messaging_methods(routing, self.session, producing, self.consuming, self.pulling, self.offsets)

    def legacy(self) -> dict[str, AnyMethod]:
        """Every method of popmq.v1.Legacy."""
        broker = self._broker
        members = GroupMembers(broker.group_members, broker.queue_locks)
        return legacy_methods(members, self.offsets, Retries(broker.retries), self.pulling)

    def bulk(self) -> dict[str, AnyMethod]:
        """Every method of popmq.v1.Bulk."""
        return bulk_methods(Bulk(self._broker.bulk, self._broker.clients, self._broker.reader, self._limits))

    def operations(self) -> Operations:
        broker = self._broker
        return Operations(
            broker.database,
            broker.reader,
            broker.catalog,
            broker.clock,
            broker.clients,
            broker.group_members,
            broker.pending,
            broker.transactions,
            broker.redeliveries,
            broker.timekeeper,
            broker.budgets,
            lambda: broker.parked,
        )

    def admin(self, access: Access) -> dict[str, AnyMethod]:
        """Every method of popmq.v1.Admin."""
        broker = self._broker
        operations = self.operations()
        return admin_methods(
            Admin(operations, self._version),
            ClientDesk(broker.clients, broker.commands, broker.transactions.producers, operations),
            DeadLetterDesk(Redrives(broker.reader, broker.writer)),
            Progress(GroupProgress(broker.reader, broker.writer, broker.catalog, broker.clock)),
            Users(users.Users(broker.writer, broker.reader, access)),
        )


def build(
    broker: Broker,
    *,
    host: str,
    port: int,
    limits: Limits,
    version: str,
    listening: Listening = PLAINTEXT,
    access: Access | None = None,
    is_administered: bool = False,
) -> PopServer:
    """A server bound to host and port (0: any free one, see `.port`). Call it in the running event loop.

    Without `access` callers need not sign; the service Admin is there if it `is_administered`. Raises `CannotListen`
    where the address is taken.
    """
    access = access or Access(broker.reader, broker.clock)
    door = GrpcDoor(limits, directly_max(limits))
    place = listen(door, host, port, listening, limits, must_sign=access.is_on)
    if place.front is not None:
        broker.budgets.include(place.front.connections)
        broker.budgets.include(place.front.of_one_address)
        if access.is_on:
            broker.budgets.include(place.front.unsigned)
    made = Services(broker, limits, version, place.address, convert.endpoints(host, place.port))
    access.on_change(made.session.expel)
    incoming = Incoming(broker.budgets, limits, place.front)
    gate = ClientGate(access, broker.clients.seen, broker.clock)
    services = [
        serve(SERVICE, made.messaging(), gate, incoming),
        serve(legacy.SERVICE, made.legacy(), gate, incoming),
        serve(bulk.SERVICE, made.bulk(), gate, incoming),
    ]
    if is_administered:
        services.append(serve(admin.SERVICE, made.admin(access), AdminGate(access), incoming))
    anybody = Anybody(incoming, broker.budgets, limits, [service.name for service in services])
    door.serve([*services, *anybody.services])
    allowed = directly_max(limits) if place.front is None else place.front.connections.limit
    return PopServer(door, place, broker.drain, made.session, anybody.health, allowed)
