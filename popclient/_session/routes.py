"""The routes of a client's topics: which queues each has."""

from __future__ import annotations

from collections.abc import Sequence

from popclient._session import convert
from popclient._session.transport import Transport
from popclient._version import log
from popclient.config import ClientConfig
from popclient.errors import NotFound, PopError, check
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc


class Routes:
    """Keeps the queues of each topic that was added."""

    def __init__(self, config: ClientConfig, transport: Transport) -> None:
        self._config = config
        self._transport = transport
        self.queues: dict[str, Sequence[pb.MessageQueue]] = {}

    async def query(self, topic: str) -> Sequence[pb.MessageQueue]:
        """Asks the server for the topic's queues; raises NotFound and so on."""
        request = rpc.QueryRouteRequest(
            topic=convert.resource(topic, self._config.namespace),
            endpoints=convert.endpoints(self._transport.endpoints),
        )
        answer = await self._transport.unary(
            lambda link: link.messaging.QueryRoute, request, self._config.request_timeout
        )
        check(answer.status)
        return tuple(answer.message_queues)

    async def refresh(self, topic: str) -> None:
        """Asks again for one topic, now."""
        self.queues[topic] = await self.query(topic)

    async def refresh_all(self) -> None:
        """Asks again for every topic; forgets those that do not exist any more."""
        for topic in list(self.queues):
            try:
                await self.refresh(topic)
            except NotFound:
                del self.queues[topic]  # the next use queries it again and raises NotFound
            except PopError as failure:
                log.debug("route of %s not refreshed: %s", topic, failure)
