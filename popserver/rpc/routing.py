"""Where to go: a topic's queues for everybody, a push consumer's share of them."""

from __future__ import annotations

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.broker.broker import Broker
from popserver.rpc import convert, status
from popserver.rpc.calls import Caller


class Routing:
    """`own` is this server's address, for clients that name none."""

    def __init__(self, broker: Broker, own: pb.Endpoints) -> None:
        self._broker = broker
        self._own = own

    async def query_route(self, request: wire.QueryRouteRequest, caller: Caller) -> wire.QueryRouteResponse:
        topic = await self._broker.catalog.topic(convert.resource(request.topic, caller.namespace))
        queues = convert.queues(topic, request.topic, self._endpoints(request.endpoints))
        return wire.QueryRouteResponse(status=status.OK, message_queues=queues)

    async def query_assignment(
        self, request: wire.QueryAssignmentRequest, caller: Caller
    ) -> wire.QueryAssignmentResponse:
        """Every queue to every member (mission row K1), as one assignment: a client polls once per assignment, and
        a poll takes from all queues whatever id it names."""
        await self._broker.catalog.subscription(
            convert.resource(request.group, caller.namespace), convert.resource(request.topic, caller.namespace)
        )
        queue = convert.every_queue(request.topic, self._endpoints(request.endpoints))
        return wire.QueryAssignmentResponse(status=status.OK, assignments=[pb.Assignment(message_queue=queue)])

    def _endpoints(self, dialled: pb.Endpoints) -> pb.Endpoints:
        """What the client dialled, unchanged: it opens one channel per distinct value (contract 1.2)."""
        return dialled if dialled.addresses and dialled.scheme != pb.ADDRESS_SCHEME_UNSPECIFIED else self._own
