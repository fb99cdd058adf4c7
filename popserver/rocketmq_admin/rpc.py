"""apache.rocketmq.v2.Admin: topics, the server itself, and the table of all methods that are not about progress.

An answer never has a made-up value: what this server does not know stays unset, and docs/rocketmq-admin.md says so for
each field. One server is one deployment, so `deployment_name` of a request is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from popproto.v2 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights
from popserver.administration.flow import Administration
from popserver.clients.clients import Clients
from popserver.cluster.servers import Servers
from popserver.model.errors import BadRequest
from popserver.producing.checks import Producers
from popserver.rocketmq_admin import route
from popserver.rocketmq_admin.route import RouteServer
from popserver.rocketmq_admin.traffic import Traffic
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method
from popserver.transport.convert import BROKER_NAME

# Python's logging has no level below DEBUG.
_LEVELS = {
    wire.ChangeLogLevelRequest.TRACE: "debug",
    wire.ChangeLogLevelRequest.DEBUG: "debug",
    wire.ChangeLogLevelRequest.INFO: "info",
    wire.ChangeLogLevelRequest.WARN: "warning",
    wire.ChangeLogLevelRequest.ERROR: "error",
}


class ServerFacts(NamedTuple):
    """Facts about the server. `set_log_level` and `drain` are None if the server runs inside another program.

    `drain` lets the server hand over its clients and stop, and returns for how many ms it hands over.
    """

    version: str
    address: str
    connections: Callable[[], int]
    set_log_level: Callable[[str], None] | None
    drain: Callable[[], int] | None = None


class RocketmqAdminMethods:
    """The methods about topics and the server, in the proto's order."""

    def __init__(
        self,
        facts: ServerFacts,
        operations: Administration,
        servers: Servers,
        clients: Clients,
        producers: Producers,
        traffic: Traffic,
    ) -> None:
        self._facts = facts
        self._operations = operations
        self._servers = servers
        self._clients = clients
        self._producers = producers
        self._traffic = traffic
        self.methods: dict[str, AnyMethod] = {
            "ChangeLogLevel": Method(self.change_log_level, rights.admin),
            "DescribeTopicStatus": Method(self.describe_topic_status, rights.admin),
            "GetTopicRoute": Method(self.get_topic_route, rights.admin),
            "GetProxyRuntimeStats": Method(self.get_proxy_runtime_stats, rights.admin),
        }

    async def change_log_level(
        self, request: wire.ChangeLogLevelRequest, _caller: Caller
    ) -> wire.ChangeLogLevelResponse:
        level = _LEVELS.get(request.level)
        if level is None:
            raise BadRequest(f"log level {request.level} is not known; use TRACE (0), DEBUG, INFO, WARN or ERROR (4)")
        if self._facts.set_log_level is None:
            return wire.ChangeLogLevelResponse(
                remark="unchanged: this server runs inside another program, which configures the log"
            )
        self._facts.set_log_level(level)
        return wire.ChangeLogLevelResponse(
            remark=f"the log level of this server is {level} now; after a restart it is that of --log-level again"
        )

    async def describe_topic_status(
        self, request: wire.DescribeTopicStatusRequest, caller: Caller
    ) -> wire.DescribeTopicStatusResponse:
        facts = await self._operations.topic(caller.resource(request.topic))
        topic, types = facts.topic, convert.message_types(facts.topic.accepts)
        return wire.DescribeTopicStatusResponse(
            status=status.OK,
            # RocketMQ says the same of a topic that takes several types.
            topic_message_type=types[0] if len(types) == 1 else pb.MESSAGE_TYPE_UNSPECIFIED,
            description=(
                f"queues={len(topic.queues)}, types={','.join(topic.accepts)}, messages={facts.message_count}"
            ),
            create_timestamp=convert.timestamp(topic.created_at_ms),
        )

    async def get_topic_route(self, request: wire.GetTopicRouteRequest, caller: Caller) -> wire.GetTopicRouteResponse:
        facts = await self._operations.topic(caller.resource(request.topic))
        return wire.GetTopicRouteResponse(
            status=status.OK, topic_route_data=route.as_json(facts.topic, self._route_servers())
        )

    async def get_proxy_runtime_stats(
        self, _request: wire.GetProxyRuntimeStatsRequest, _caller: Caller
    ) -> wire.GetProxyRuntimeStatsResponse:
        clients = self._clients.here()
        throughput = self._traffic.now()
        return wire.GetProxyRuntimeStatsResponse(
            status=status.OK,
            proxy_name=self._servers.address or self._facts.address,
            version=self._facts.version,
            in_tps=throughput.taken,
            out_tps=throughput.delivered,
            connections=self._facts.connections(),
            producers=sum(self._producers.stream_of(each.client_id) is not None for each in clients),
            consumers=sum(each.role is not None for each in clients),
        )

    def _route_servers(self) -> list[RouteServer]:
        """This server, and the others on its database, under the names that routes of the 5.x protocol give them."""
        reachable = self._servers.reachable()
        if len(reachable) == 1:
            return [RouteServer(BROKER_NAME, self._servers.address or self._facts.address)]
        return [
            RouteServer(f"{BROKER_NAME}-{each.address or each.server_id}", each.address or self._facts.address)
            for each in reachable
        ]
