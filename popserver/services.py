"""The server: all gRPC services, with the methods of each and the rights that they need."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from popproto.v1 import admin_pb2 as wire
from popproto.v1 import bulk_pb2 as bulk
from popproto.v1 import legacy_pb2 as legacy
from popproto.v1 import receiving_pb2 as receiving
from popproto.v2 import admin_pb2 as rocketmq_admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as service
from popserver.access import rights, users
from popserver.access.flow import Access
from popserver.access.gate import AdminElsewhere, AdminGate, ClientGate
from popserver.access.rpc import UserMethods
from popserver.administration.clients import ClientMethods
from popserver.administration.flow import Administration
from popserver.administration.readiness import Readiness
from popserver.administration.rpc import AdminMethods
from popserver.broker import Broker
from popserver.bulk.rpc import BulkMethods
from popserver.clients.routes import RouteMethods
from popserver.clients.rpc import SessionMethods
from popserver.clients.settings import ask_for_metrics
from popserver.dead_letters.flow import Redrives
from popserver.dead_letters.rpc import DeadLetterMethods
from popserver.delivery import origins
from popserver.front.sockets import NONE_GIVEN, GivenSockets, connections_max
from popserver.http2.door import Http2Door
from popserver.lite.rpc import LiteMethods, LiteTopicMethods
from popserver.members.rpc import MemberMethods
from popserver.producing.rpc import ProducerMethods
from popserver.progress.flow import GroupProgress
from popserver.progress.rpc import ProgressMethods
from popserver.progress.rpc_rocketmq import GroupAdminMethods
from popserver.pulling.rpc import PullMethods, SendBackMethods
from popserver.pulling.rpc_offsets import OffsetMethods
from popserver.receiving.rpc import ReceiveMethods
from popserver.rocketmq_admin.consumers import ConsumerAdminMethods
from popserver.rocketmq_admin.messages import MessageAdminMethods
from popserver.rocketmq_admin.online import OnlineConsumers
from popserver.rocketmq_admin.rpc import RocketmqAdminMethods, ServerFacts
from popserver.rocketmq_admin.traffic import Traffic
from popserver.server import PopServer
from popserver.settling.rpc import SettleMethods, refuse_to_change
from popserver.transport import convert
from popserver.transport.call import Door, Service, encode
from popserver.transport.calls import AnyMethod, ConversationMethod, Method, StreamMethod, serve
from popserver.transport.incoming import Incoming
from popserver.transport.limits import CallLimits
from popserver.transport.listen import PLAINTEXT, Engine, Listening, address_of
from popserver.transport.public_services import PublicServices

if TYPE_CHECKING:
    from popserver.metrics.client_numbers import ClientMeters


class Services:
    """Makes the methods of all services. `address` is the server's `HOST:PORT`."""

    def __init__(
        self,
        broker: Broker,
        limits: CallLimits,
        version: str,
        address: str,
        own: pb.Endpoints,
        ask_for_metrics: Callable[[pb.Settings], None] | None = None,
    ) -> None:
        self._broker = broker
        self._version = version
        self._limits = limits
        self._own = own
        self.session = SessionMethods(
            broker.catalog,
            broker.clients,
            broker.commands,
            broker.transactions,
            broker.group_members,
            limits,
            version,
            address,
            has_idempotency_keys=broker.has_idempotency_keys,
            ask_for_metrics=ask_for_metrics,
        )
        self.settling = SettleMethods(broker.settling, limits)
        self.receives = ReceiveMethods(
            broker.polls,
            broker.hold_release,
            broker.clients,
            broker.clock,
            broker.undelivered,
            broker.pulls.parked,
            limits,
            address,
        )
        self.pulling = PullMethods(
            broker.pulls,
            broker.clients,
            broker.clock,
            broker.undelivered,
            lambda: broker.open_polls,
            limits,
            address,
        )
        self.offsets = OffsetMethods(broker.offsets)

    def messaging(self) -> dict[str, AnyMethod]:
        """Every method of MessagingService."""
        broker = self._broker
        routing = RouteMethods(broker.catalog, broker.clients, broker.servers, broker.group_members, self._own)
        producing = ProducerMethods(broker.sending, broker.transactions, broker.pending, broker.clock, self._limits)
        lite = LiteMethods(broker.lite)
        return messaging_methods(
            routing, self.session, producing, self.receives, self.settling, self.pulling, self.offsets, lite
        )

    def legacy(self) -> dict[str, AnyMethod]:
        """Every method of popmq.v1.Legacy."""
        broker = self._broker
        members = MemberMethods(broker.group_members, broker.queue_locks)
        return legacy_methods(members, self.offsets, SendBackMethods(broker.retries), self.pulling)

    def receiving(self) -> dict[str, AnyMethod]:
        """Every method of popmq.v1.Receiving."""
        return receiving_methods(self.receives)

    def bulk(self) -> dict[str, AnyMethod]:
        """Every method of popmq.v1.Bulk."""
        return bulk_methods(BulkMethods(self._broker.bulk, self._broker.clients, self._limits))

    def operations(self) -> Administration:
        broker = self._broker
        return Administration(
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

    def admin(self, access: Access, readiness: Readiness) -> dict[str, AnyMethod]:
        """Every method of popmq.v1.Admin."""
        broker = self._broker
        operations, server_id = self.operations(), broker.servers.server_id
        clients, producers = broker.clients, broker.transactions.producers
        seen = broker.meters.commits, broker.undelivered, broker.patrol
        return {
            **AdminMethods(operations, readiness, self._version, server_id, *seen).methods,
            **ClientMethods(clients, broker.commands, producers).methods,
            **DeadLetterMethods(Redrives(broker.reader, broker.writer)).methods,
            **ProgressMethods(self.progress()).methods,
            **LiteTopicMethods(broker.reader).methods,
            **UserMethods(users.Users(broker.writer, broker.reader, access)).methods,
        }

    def progress(self) -> GroupProgress:
        broker = self._broker
        online = broker.clients, broker.group_members, broker.servers
        return GroupProgress(broker.reader, broker.writer, broker.catalog, broker.clock, broker.paused, *online)

    def rocketmq_admin(self, facts: ServerFacts) -> dict[str, AnyMethod]:
        """Every method of apache.rocketmq.v2.Admin."""
        broker, operations = self._broker, self.operations()
        producers, traffic = broker.transactions.producers, Traffic(broker.meters, broker.clock)
        online = OnlineConsumers(broker.clients, broker.catalog, broker.group_members, broker.reader, broker.clock)
        return {
            **RocketmqAdminMethods(facts, operations, broker.servers, broker.clients, producers, traffic).methods,
            **ConsumerAdminMethods(online, broker.commands, operations, broker.reader).methods,
            **MessageAdminMethods(operations, broker.sending, broker.reader, broker.clock, broker.undelivered).methods,
            **GroupAdminMethods(self.progress(), broker.clock).methods,
        }


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
    given: GivenSockets = NONE_GIVEN,
    engine: Engine = "builtin",
) -> PopServer:
    """A server that is bound to host and port (0: any free port, see `.port`). Call it in the running event loop.

    Without `access` callers need not sign. The two services Admin exist only with `is_administered`; with `admin_at` on
    that host and port, otherwise beside messages. The service for metrics of clients exists only with `client_meters`.
    `set_log_level`: None if the log is not the server's own. `given`: sockets that are bound already. Raises
    `CannotListen` if an address cannot be bound.
    """
    access = access or Access(broker.reader, broker.clock)
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
            broker.budgets.include(budget)
    incoming = Incoming(broker.budgets, limits, broker.meters)
    own = convert.endpoints(host, port)
    ask = None if client_meters is None else partial(ask_for_metrics, own=own, must_sign=access.is_on)
    made = Services(broker, limits, version, address_of(host, port), own, ask)
    access.on_change(made.session.end_forbidden_streams)
    access.on_change(broker.waits.change_all)
    gate = ClientGate(
        access, broker.clients, broker.clock, lambda keys: broker.reader.read(partial(origins.topics_behind, keys=keys))
    )
    services = [
        serve(MESSAGING, made.messaging(), gate, incoming),
        serve(LEGACY, made.legacy(), gate, incoming),
        serve(RECEIVING, made.receiving(), gate, incoming),
        serve(BULK, made.bulk(), gate, incoming),
    ]
    readiness = Readiness(
        broker.database, broker.reader, broker.writer, broker.timekeeper.hints, broker.patrol.sentences
    )
    administration: list[Service] = []
    refused: list[Service] = []
    if is_administered:
        facts = ServerFacts(version, address_of(host, port), lambda: door.connected, set_log_level)
        tables = {ADMIN: made.admin(access, readiness), ROCKETMQ_ADMIN: made.rocketmq_admin(facts)}
        gate_of_admins = AdminGate(access, broker.clock)
        administration = [serve(each, table, gate_of_admins, incoming) for each, table in tables.items()]
        refused = [serve(each, table, AdminElsewhere(), incoming) for each, table in tables.items()]
    anybody = PublicServices(incoming, broker.budgets, limits, readiness)
    if door is admin_door:
        services += [*administration, *anybody.beside([*services, *administration])]
    else:
        services += [*anybody.beside(services), *refused]
        admin_door.serve([*administration, *anybody.beside(administration)])
    if client_meters is not None:
        # Loaded here, because it needs OpenTelemetry's messages.
        from popserver.metrics.rpc import ClientMetricMethods

        methods = ClientMetricMethods(client_meters, broker.catalog, incoming, gate, must_sign=access.is_on)
        services.append(methods.service)
    door.serve(services)
    address, most = address_of(host, port), door.connections_max
    return PopServer(doors, address, admin_address, port, broker.drain, made.session, readiness, most)


def _door(engine: Engine, limits: CallLimits, connections_max: int, *, must_sign: bool, purpose: str = "") -> Door:
    if engine == "builtin":
        return Http2Door(limits, connections_max, must_sign=must_sign, purpose=purpose)
    # gRPC's library loads slowly.
    from popserver.grpcio.door import GrpcioDoor

    return GrpcioDoor(limits, connections_max, purpose=purpose)


ADMIN = wire.DESCRIPTOR.services_by_name["Admin"]
ROCKETMQ_ADMIN = rocketmq_admin.DESCRIPTOR.services_by_name["Admin"]
BULK = bulk.DESCRIPTOR.services_by_name["Bulk"]


def bulk_methods(bulk: BulkMethods) -> dict[str, AnyMethod]:
    """Every method of the service."""
    return {
        "PullBulk": StreamMethod(bulk.pull_bulk, rights.consume, encode=encode),
        "ReceiveBulk": StreamMethod(bulk.receive_bulk, rights.consume, encode=encode),
        "RenewAttempt": Method(bulk.renew_attempt, rights.consume),
        "AckAttempt": Method(bulk.ack_attempt, rights.consume),
    }


# popmq.v1.Legacy: methods for consumers that own whole queues, which MessagingService does not have.
#
# It has the same port and the same gate as MessagingService: callers need a client id and the rights of their requests.

LEGACY = legacy.DESCRIPTOR.services_by_name["Legacy"]


def legacy_methods(
    group_members: MemberMethods, offsets: OffsetMethods, retries: SendBackMethods, pulling: PullMethods
) -> dict[str, AnyMethod]:
    """Every method of the service."""
    return {
        "ListMembers": Method(group_members.list_members, rights.group),
        "LockQueues": Method(group_members.lock_queues, rights.consume_queues),
        "UnlockQueues": Method(group_members.unlock_queues, rights.consume_queues),
        "FetchOffsets": Method(offsets.fetch_offsets, rights.consume_queues),
        "CommitOffsets": Method(offsets.commit_offsets, rights.commit_offsets),
        "SendBack": Method(retries.send_back, rights.consume_queue),
        "PullBatch": Method(pulling.pull_batch, rights.consume_queue),
    }


RECEIVING = receiving.DESCRIPTOR.services_by_name["Receiving"]


def receiving_methods(receives: ReceiveMethods) -> dict[str, AnyMethod]:
    """Every method of the service."""
    return {
        # On the wire a unary answer is a stream of one frame. Written as one, it ends like a stream's if nobody reads.
        "ReceiveBatch": StreamMethod(receives.receive_batch, rights.consume_message_queue, encode=encode),
    }


MESSAGING = service.DESCRIPTOR.services_by_name["MessagingService"]


# MessagingService of the RocketMQ protocol: every method, in the proto's order.


def messaging_methods(
    routing: RouteMethods,
    session: SessionMethods,
    producing: ProducerMethods,
    receives: ReceiveMethods,
    settling: SettleMethods,
    pulling: PullMethods,
    offsets: OffsetMethods,
    lite: LiteMethods,
) -> dict[str, AnyMethod]:
    """Every method of the service."""
    return {
        "QueryRoute": Method(routing.query_route, rights.route),
        "Heartbeat": Method(session.heartbeat, rights.group_if_named, anonymous=True),
        "SendMessage": Method(producing.send_message, rights.send, bytes_max=producing.bytes_max),
        "QueryAssignment": Method(routing.query_assignment, rights.consume),
        "ReceiveMessage": StreamMethod(
            receives.receive_message,
            rights.consume_message_queue,
            refuse=receives.refuse_to_receive,
            delay_refusal=receives.delay_refusal,
        ),
        "AckMessage": Method(settling.ack_message, rights.consume),
        "ForwardMessageToDeadLetterQueue": Method(settling.forward_to_dead_letter_queue, rights.consume),
        "PullMessage": StreamMethod(pulling.pull_message, rights.consume_message_queue),
        "UpdateOffset": Method(offsets.update_offset, rights.consume_message_queue),
        "GetOffset": Method(offsets.get_offset, rights.consume_message_queue),
        "QueryOffset": Method(offsets.query_offset, rights.read_message_queue),
        "EndTransaction": Method(producing.end_transaction, rights.publish),
        "Telemetry": ConversationMethod(session.telemetry, session.delay_refusal),
        "NotifyClientTermination": Method(session.notify_client_termination, rights.own_client),
        "ChangeInvisibleDuration": Method(
            settling.change_invisible_duration, rights.consume, refuse=refuse_to_change, echoes=True
        ),
        "RecallMessage": Method(producing.recall_message, rights.publish),
        "SyncLiteSubscription": Method(lite.sync_lite_subscription, rights.consume),
    }
