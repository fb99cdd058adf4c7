"""Routes: a topic's queues for all clients, and a push consumer's share of them."""

from __future__ import annotations

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import rights
from popserver.catalog.flow import Catalog
from popserver.clients.clients import Clients
from popserver.cluster.servers import Servers
from popserver.filters.subscription import ClientKind
from popserver.members.flow import GroupMembers
from popserver.model.names import check_group
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method
from popserver.transport.listen import address_of, split_address


class RouteMethods:
    """`own` is this server's address, for clients that send none."""

    def __init__(
        self, catalog: Catalog, clients: Clients, members: Servers, group_members: GroupMembers, own: pb.Endpoints
    ) -> None:
        self._catalog = catalog
        self._clients = clients
        self._members = members
        self._group_members = group_members
        self._own = own
        self.methods: dict[str, AnyMethod] = {
            "QueryRoute": Method(self.query_route, rights.route),
            "QueryAssignment": Method(self.query_assignment, rights.consume),
        }

    async def query_route(self, request: wire.QueryRouteRequest, caller: Caller) -> wire.QueryRouteResponse:
        """A client that owns whole queues reads their offsets next, so its topic is created here. Another client's is
        created by its first message, receive or assignment."""
        name, role = caller.resource(request.topic), self._clients.role_of(caller.client_id)
        owns_queues = role is not None and role.kind is ClientKind.PULL
        topic = await (self._catalog.topic(name) if owns_queues else self._catalog.topic_to_route(name))
        queues = convert.queues(topic, request.topic, self._brokers(request.endpoints))
        return wire.QueryRouteResponse(status=status.OK, message_queues=queues)

    async def query_assignment(
        self, request: wire.QueryAssignmentRequest, caller: Caller
    ) -> wire.QueryAssignmentResponse:
        """All queues for each member (requirement K1), as one assignment per server: a client polls once for each
        assignment, and a poll receives from all queues, whatever queue id it has.

        A consumer that owns whole queues gets its share of them instead (requirement J3).
        """
        if await self._owns_queues(request, caller):
            return await self._share(request, caller)
        kind = self._clients.kind_of(caller.client_id)
        await self._catalog.subscription(caller.resource(request.group), caller.resource(request.topic), kind)
        queues = [convert.lone_queue(request.topic, -1, each) for each in self._brokers(request.endpoints)]
        assignments = [pb.Assignment(message_queue=queue) for queue in queues]
        return wire.QueryAssignmentResponse(status=status.OK, assignments=assignments)

    async def _owns_queues(self, request: wire.QueryAssignmentRequest, caller: Caller) -> bool:
        """Whether the client owns whole queues: by its settings, or, if another server has these, as a group member."""
        role = self._clients.role_of(caller.client_id)
        if role is not None:
            return role.kind is ClientKind.PULL
        if not self._members.is_shared:
            return False
        group = await self._catalog.group(caller.resource(request.group))
        members = await self._group_members.of(group.name)
        return any(each.client_id == caller.client_id for each in members)

    async def _share(self, request: wire.QueryAssignmentRequest, caller: Caller) -> wire.QueryAssignmentResponse:
        """The member's share, at the servers that the route names for these queues."""
        group_name = caller.resource(request.group)
        check_group(group_name)  # first, because a refused request creates no topic
        topic = await self._catalog.topic(caller.resource(request.topic))
        group = await self._catalog.group(group_name)
        share = {each.number for each in await self._group_members.share_of(caller.client_id, group.name, topic)}
        route = convert.queues(topic, request.topic, self._brokers(request.endpoints))[: len(topic.queues)]
        assignments = [pb.Assignment(message_queue=queue) for queue in route if queue.id in share]
        return wire.QueryAssignmentResponse(status=status.OK, assignments=assignments)

    def _brokers(self, dialled: pb.Endpoints) -> list[pb.Broker]:
        """This server and the others that share its database. A client that sent several addresses knows them."""
        own = self._endpoints(dialled)
        servers, own_address = self._members.reachable(), self._members.address
        if len(own.addresses) > 1 or (len(servers) == 1 and servers[0].address == own_address):
            return [convert.broker(convert.BROKER_NAME, own)]
        return [
            convert.broker(
                f"{convert.BROKER_NAME}-{each.address or each.server_id}",
                own if each.address == own_address else convert.endpoints(*split_address(each.address)),
            )
            for each in servers
        ]

    def _endpoints(self, dialled: pb.Endpoints) -> pb.Endpoints:
        """The address that the client connected to, unchanged: it opens one channel per distinct value (protocol 1.2).

        Another server's address is replaced: some clients send the address of their first server to all servers.
        """
        if not dialled.addresses or dialled.scheme == pb.ADDRESS_SCHEME_UNSPECIFIED:
            return self._own
        members = self._members
        if members.address and all(
            members.is_elsewhere(address_of(each.host, each.port)) for each in dialled.addresses
        ):
            return convert.endpoints(*split_address(members.address))
        return dialled
