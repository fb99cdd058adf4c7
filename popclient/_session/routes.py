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
    """Keeps the queues of each topic that was added.

    missing: the topics that do not exist, and that this client waits for. who: for the log.
    """

    def __init__(self, config: ClientConfig, transport: Transport, who: str) -> None:
        self._config = config
        self._transport = transport
        self._who = who
        self.queues: dict[str, Sequence[pb.MessageQueue]] = {}
        self.missing: set[str] = set()

    async def query(self, topic: str) -> Sequence[pb.MessageQueue]:
        """As `query_route`."""
        queues = await query_route(self._config, self._transport, topic)
        self.is_there(topic)
        return queues

    def awaits(self, topic: str, failure: PopError) -> bool:
        """Has it failed because the topic does not exist, and does this client wait for that? Logs it once."""
        if failure.code != pb.TOPIC_NOT_FOUND or not self._config.wait_for_topic:
            return False
        self.queues.pop(topic, None)
        if topic not in self.missing:
            self.missing.add(topic)
            log.warning("%s waits for topic %s: %s", self._who, topic, failure)
        return True

    def is_there(self, topic: str) -> None:
        if topic in self.missing:
            self.missing.discard(topic)
            log.warning("topic %s exists now, %s does not wait any more", topic, self._who)

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


async def query_route(config: ClientConfig, transport: Transport, topic: str) -> Sequence[pb.MessageQueue]:
    """Asks the server for the topic's queues; raises NotFound and so on."""
    request = rpc.QueryRouteRequest(
        topic=convert.resource(topic, config.namespace), endpoints=convert.endpoints(transport.endpoints)
    )
    answer = await transport.unary(lambda link: link.messaging.QueryRoute, request, config.request_timeout)
    check(answer.status)
    return tuple(answer.message_queues)
