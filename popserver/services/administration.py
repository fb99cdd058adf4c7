"""The two services of operators: popmq.v1.Admin and RocketMQ's own."""

from __future__ import annotations

from google.protobuf.descriptor import ServiceDescriptor

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import admin_pb2 as rocketmq_admin
from popserver.access.flow import Access
from popserver.access.rpc import UserMethods
from popserver.access.users import Users
from popserver.administration.clients import ClientMethods
from popserver.administration.flow import Administration
from popserver.administration.readiness import Readiness
from popserver.administration.rpc import AdminMethods
from popserver.alerts.rpc import AlertMethods
from popserver.broker.broker import Broker
from popserver.charts.rpc import ChartMethods
from popserver.dead_letters.flow import Redrives
from popserver.dead_letters.rpc import DeadLetterMethods
from popserver.importing.flow import Importing
from popserver.importing.rpc import ImportMethods
from popserver.lite.rpc import LiteTopicMethods
from popserver.mirrors.flow import Mirrors
from popserver.mirrors.rpc import MirrorMethods
from popserver.progress.flow import GroupProgress
from popserver.progress.rpc import ProgressMethods
from popserver.progress.rpc_rocketmq import GroupAdminMethods
from popserver.rocketmq_admin.consumers import ConsumerAdminMethods
from popserver.rocketmq_admin.messages import MessageAdminMethods
from popserver.rocketmq_admin.online import OnlineConsumers
from popserver.rocketmq_admin.rpc import RocketmqAdminMethods, ServerFacts
from popserver.rocketmq_admin.traffic import Traffic
from popserver.transport.calls import AnyMethod
from popserver.transport.limits import CallLimits

ADMIN = wire.DESCRIPTOR.services_by_name["Admin"]
ROCKETMQ_ADMIN = rocketmq_admin.DESCRIPTOR.services_by_name["Admin"]


def operations_of(broker: Broker) -> Administration:
    """What operators do with topics, groups and messages, in both services."""
    engine, sessions, producing = broker.engine, broker.sessions, broker.producing
    return Administration(
        engine.database,
        engine.reader,
        broker.catalog,
        engine.clock,
        sessions.clients,
        sessions.group_members,
        producing.pending,
        producing.transactions,
        broker.consuming.redeliveries,
        broker.paused,
        broker.timekeeper,
        engine.budgets,
        lambda: broker.parked,
    )


def admin_methods(
    broker: Broker, access: Access, readiness: Readiness, facts: ServerFacts, limits: CallLimits
) -> dict[ServiceDescriptor, dict[str, AnyMethod]]:
    """Every method of each service."""
    engine, sessions = broker.engine, broker.sessions
    reader, writer, clock, clients = engine.reader, engine.writer, engine.clock, sessions.clients
    producers, traffic = broker.producing.transactions.producers, Traffic(engine.meters, clock)
    operations, members = operations_of(broker), sessions.group_members
    online = OnlineConsumers(clients, broker.catalog, members, reader, clock)
    progress = GroupProgress(reader, writer, broker.catalog, clock, broker.paused, clients, members, broker.servers)
    seen = engine.meters.commits, engine.undelivered, broker.patrol, facts.drain
    sending = broker.producing.sending
    return {
        ADMIN: {
            **AdminMethods(operations, readiness, facts.version, broker.servers, *seen).methods,
            **ClientMethods(clients, sessions.commands, producers).methods,
            **DeadLetterMethods(Redrives(reader, writer)).methods,
            **ProgressMethods(progress).methods,
            **ImportMethods(Importing(writer, broker.catalog, clock), clock, limits).methods,
            **LiteTopicMethods(reader).methods,
            **ChartMethods(broker.charts).methods,
            **AlertMethods(broker.alerts).methods,
            **MirrorMethods(Mirrors(reader, writer, clock)).methods,
            **UserMethods(Users(writer, reader, access)).methods,
        },
        ROCKETMQ_ADMIN: {
            **RocketmqAdminMethods(facts, operations, broker.servers, clients, producers, traffic).methods,
            **ConsumerAdminMethods(online, sessions.commands, operations, reader).methods,
            **MessageAdminMethods(operations, sending, reader, clock, engine.undelivered).methods,
            **GroupAdminMethods(progress, clock).methods,
        },
    }
