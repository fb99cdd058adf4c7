"""The scripted server with queues, and with members, locks and hand-backs of groups."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from popclient import MessageQueue
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.support.queue_server import Queue, QueueServer, pull_frames
from tests.support.scripted_server import OK, status

QUEUES = 4


def client_id(context: Any) -> str:
    return dict(context.invocation_metadata())["x-mq-client-id"]


class GroupServer(QueueServer):
    """widths: how many queues a topic has, 4 unless said. notices: are members told of changes? `holders` has who has
    which queue's lock."""

    def __init__(self, capabilities: str = "admin,batch,legacy", *, notices: bool = False) -> None:
        super().__init__(capabilities)
        self.notices = notices
        self.widths: defaultdict[str, int] = defaultdict(lambda: QUEUES)
        self.members: dict[str, pb.Settings] = {}
        self.holders: dict[Queue, str] = {}
        self.sent_back: list[legacy.SendBackRequest] = []
        self.pulls: defaultdict[Queue, list[int]] = defaultdict(list)
        self.extras: list[legacy.PullExtras] = []
        self.answers["QueryRoute"] = self._route
        self._changes = 0
        self._released = 0

    def _route(self, request: rpc.QueryRouteRequest) -> rpc.QueryRouteResponse:
        name = request.topic.name
        width = 0 if self.widths[name] == 0 else (1 if name.startswith("%RETRY%") else self.widths[name])
        if not width:
            return rpc.QueryRouteResponse(status=status(pb.TOPIC_NOT_FOUND))
        broker = pb.Broker(name="broker", id=0, endpoints=request.endpoints)
        return rpc.QueryRouteResponse(
            status=OK,
            message_queues=[
                pb.MessageQueue(topic=request.topic, id=queue, permission=pb.READ_WRITE, broker=broker)
                for queue in range(width)
            ],
        )

    # ---- Members ----

    async def Telemetry(self, requests: Any, context: Any) -> AsyncIterator[rpc.TelemetryCommand]:  # noqa: N802
        who = client_id(context)

        async def noted() -> AsyncIterator[rpc.TelemetryCommand]:
            async for command in requests:
                if command.settings.subscription.subscriptions:
                    self._join(who, command.settings)
                yield command

        try:
            async for command in super().Telemetry(noted(), context):
                yield command
        finally:
            self.leave(who)

    def _join(self, who: str, settings: pb.Settings) -> None:
        known = self.members.get(who)
        self.members[who] = settings
        if known is None or known.subscription != settings.subscription:
            self.tell_members()

    def leave(self, who: str) -> None:
        if self.members.pop(who, None) is not None:
            self.tell_members()

    def tell_members(self) -> None:
        self._changes += 1
        if self.notices:
            self.tell("popmq.members", self._changes)

    def tell(self, name: str, value: int) -> None:
        """A notice to every client."""
        properties = {"popmq.capabilities": self.capabilities, name: str(value)}
        self.say(rpc.TelemetryCommand(status=OK, settings=pb.Settings(client_properties=properties)))

    async def ListMembers(self, request: legacy.ListMembersRequest, context: Any) -> Any:  # noqa: N802
        members = [
            legacy.GroupMember(
                client_id=who,
                model=settings.client_properties["popmq.model"] or "CLUSTERING",
                subscriptions=settings.subscription.subscriptions,
            )
            for who, settings in sorted(self.members.items())
            if settings.subscription.group == request.group
        ]
        return await self._answer(
            "ListMembers", request, context, lambda: legacy.ListMembersResponse(status=OK, members=members)
        )

    # ---- Locks ----

    async def LockQueues(self, request: legacy.LockQueuesRequest, context: Any) -> Any:  # noqa: N802
        who = client_id(context)

        def lock() -> legacy.LockQueuesResponse:
            mine = [
                name for name in request.queues if self.holders.setdefault((name.topic.name, name.queue_id), who) == who
            ]
            return legacy.LockQueuesResponse(status=OK, locked=mine)

        return await self._answer("LockQueues", request, context, lock)

    async def UnlockQueues(self, request: legacy.UnlockQueuesRequest, context: Any) -> Any:  # noqa: N802
        who = client_id(context)
        for name in request.queues:
            if self.holders.get((name.topic.name, name.queue_id)) == who:
                del self.holders[name.topic.name, name.queue_id]
        return await self._answer("UnlockQueues", request, context, lambda: legacy.UnlockQueuesResponse(status=OK))

    # ---- Pulls and hand-backs ----

    async def PullMessage(  # noqa: N802
        self, request: rpc.PullMessageRequest, context: Any
    ) -> AsyncIterator[rpc.PullMessageResponse]:
        mq = (request.message_queue.topic.name, request.message_queue.id)
        packed = dict(context.invocation_metadata()).get("popmq-pull-bin", b"")
        self.extras.append(legacy.PullExtras.FromString(packed))
        self.pulls[mq].append(request.offset)
        scripted = await self._answer("PullMessage", request, context)
        frames = self._pulled(request) if scripted is None else scripted
        held_since = self._released
        while None in frames:
            async with self.filled:
                await self.filled.wait()
            frames = self._pulled(request)
            if None in frames and self._released > held_since:
                frames = pull_frames(pb.MESSAGE_NOT_FOUND, [], request.offset)
        for frame in frames:
            yield frame

    async def SendBack(self, request: legacy.SendBackRequest, context: Any) -> Any:  # noqa: N802
        def take() -> legacy.SendBackResponse:
            self.sent_back.append(request)
            return legacy.SendBackResponse(status=OK, is_dead_letter=request.delay_level < 0)

        return await self._answer("SendBack", request, context, take)

    def pulls_of(self, mq: MessageQueue) -> list[int]:
        """The offsets that were pulled from."""
        return self.pulls[mq]

    async def release(self) -> None:
        """What is held is answered: there is nothing new."""
        self._released += 1
        async with self.filled:
            self.filled.notify_all()
        await asyncio.sleep(0)
