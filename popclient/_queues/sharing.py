"""This member's share of a topic's queues: the same function over the view that all members have (requirement J3)."""

from __future__ import annotations

from typing import Final

from popclient import _convert as convert
from popclient._queues import calls
from popclient._queues.allocation import AllocateStrategy, allocate
from popclient._queues.calls import GroupMember
from popclient._queues.wire import call, has_legacy, resource_of
from popclient._session import Session
from popclient.errors import PopError
from popclient.message import MessageQueue
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

_SHARES: Final = "CLUSTERING"  # a broadcasting member has every queue, and takes none from the others


class Sharing:
    """One member's view. Its calls raise a PopError where the server does not say."""

    def __init__(self, session: Session, group: str, strategy: AllocateStrategy) -> None:
        self._session = session
        self._group = group
        self._strategy = strategy

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues, in order."""
        route = await self._session.route(topic)
        return sorted(MessageQueue(topic, queue.id) for queue in route if queue.permission in (pb.READ, pb.READ_WRITE))

    async def members(self) -> list[GroupMember] | None:
        """The group's members; None where the server shares out the queues itself."""
        if not await has_legacy(self._session):
            return None
        try:
            return await calls.list_members(self._session, self._group)
        except PopError as refusal:
            await self._session.doubt(refusal)
            raise

    async def share(
        self, topic: str, queues: list[MessageQueue], members: list[GroupMember] | None
    ) -> list[MessageQueue] | None:
        """This member's part of the queues; None while the server does not count this client among the members."""
        if members is None:
            return await self._assigned(topic)
        ids = [each.client_id for each in members if topic in each.topics and each.model == _SHARES]
        if self._own_id not in ids:
            return None
        return allocate(self._strategy, self._group, self._own_id, queues, ids)

    @property
    def _own_id(self) -> str:
        """By which the members know this client: where users sign it is longer than the client's own."""
        return self._session.settings.client_properties.get("popmq.client_id", self._session.client_id)

    async def _assigned(self, topic: str) -> list[MessageQueue]:
        request = rpc.QueryAssignmentRequest(
            topic=resource_of(self._session, topic),
            group=resource_of(self._session, self._group),
            endpoints=convert.endpoints(self._session.transport.endpoints),
        )
        answer = await call(self._session, "QueryAssignment", lambda link: link.messaging.QueryAssignment, request)
        return sorted(MessageQueue(topic, each.message_queue.id) for each in answer.assignments)
