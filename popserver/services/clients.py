"""The services for clients: RocketMQ's MessagingService, and beside it those of popclient."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.descriptor import ServiceDescriptor

from popproto.v1 import bulk_pb2 as bulk
from popproto.v1 import legacy_pb2 as legacy
from popproto.v1 import receiving_pb2 as receiving
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as service
from popserver.broker.broker import Broker
from popserver.bulk.rpc import BulkMethods
from popserver.clients.routes import RouteMethods
from popserver.clients.rpc import SessionMethods
from popserver.lite.rpc import LiteMethods
from popserver.members.rpc import MemberMethods
from popserver.producing.rpc import ProducerMethods
from popserver.pulling.rpc import PullMethods
from popserver.pulling.rpc_offsets import OffsetMethods
from popserver.pulling.rpc_send_back import SendBackMethods
from popserver.receiving.rpc import ReceiveMethods
from popserver.settling.rpc import SettleMethods
from popserver.transport.calls import AnyMethod
from popserver.transport.limits import CallLimits

MESSAGING = service.DESCRIPTOR.services_by_name["MessagingService"]
# Methods for consumers that own whole queues, which MessagingService does not have.
LEGACY = legacy.DESCRIPTOR.services_by_name["Legacy"]
RECEIVING = receiving.DESCRIPTOR.services_by_name["Receiving"]
BULK = bulk.DESCRIPTOR.services_by_name["Bulk"]


class ClientServices:
    """Every method of each service. All have one gate: callers need a client id, and the rights of their requests."""

    def __init__(
        self,
        broker: Broker,
        limits: CallLimits,
        version: str,
        address: str,
        own: pb.Endpoints,
        ask_for_metrics: Callable[[pb.Settings], None] | None = None,
    ) -> None:
        """`address` is the server's `HOST:PORT`, `own` the same on the wire."""
        engine, producing, sessions, consuming = broker.engine, broker.producing, broker.sessions, broker.consuming
        clock, undelivered, clients = engine.clock, engine.undelivered, sessions.clients
        self.session = SessionMethods(
            broker.catalog,
            clients,
            sessions.commands,
            producing.transactions,
            sessions.group_members,
            limits,
            version,
            address,
            has_idempotency_keys=producing.has_idempotency_keys,
            ask_for_metrics=ask_for_metrics,
        )
        self.receives = receives = ReceiveMethods(
            consuming.polls,
            sessions.hold_release,
            clients,
            clock,
            undelivered,
            consuming.pulls.parked,
            limits,
            address,
        )
        pulls = PullMethods(consuming.pulls, clients, clock, undelivered, lambda: consuming.open, limits, address)
        routes = RouteMethods(broker.catalog, clients, broker.servers, sessions.group_members, own)
        sends = ProducerMethods(producing.sending, producing.transactions, producing.pending, clock, limits)
        settles = SettleMethods(consuming.settling, limits)
        offsets = OffsetMethods(consuming.offsets)
        members = MemberMethods(sessions.group_members, sessions.queue_locks)
        self.methods: dict[ServiceDescriptor, dict[str, AnyMethod]] = {
            MESSAGING: {
                **routes.methods,
                **self.session.methods,
                **sends.methods,
                **receives.methods,
                **settles.methods,
                **pulls.methods,
                **offsets.methods,
                **LiteMethods(sessions.lite).methods,
            },
            LEGACY: {
                **members.methods,
                **offsets.legacy,
                **SendBackMethods(consuming.retries).legacy,
                **pulls.legacy,
            },
            RECEIVING: receives.in_batches,
            BULK: BulkMethods(consuming.bulk, clients, limits).methods,
        }
