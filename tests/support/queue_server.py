"""The scripted server with queues: it keeps a list per queue and answers pulls and offsets as PopMQ does."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from typing import Any, Self, cast

import grpc

from popclient import MessageQueue
from popproto.v1 import legacy_pb2 as legacy
from popproto.v1 import legacy_pb2_grpc
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from popproto.v2 import service_pb2_grpc
from tests.support.scripted_server import OK, ScriptedServer, status

Queue = tuple[str, int]


class QueueServer(ScriptedServer):
    """`fill` puts messages into a queue; `trim` takes its oldest away. `answers` and `gates` work as ever."""

    def __init__(self, capabilities: str = "admin,batch,legacy") -> None:
        super().__init__(capabilities)
        self.queues: defaultdict[Queue, list[pb.Message]] = defaultdict(list)
        self.oldest: defaultdict[Queue, int] = defaultdict(int)
        self.progress: dict[Queue, int] = {}
        self.resets: defaultdict[Queue, int] = defaultdict(int)
        self.filled = asyncio.Condition()

    async def start(self, port: int = 0) -> Self:
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_MessagingServiceServicer_to_server(self, self._server)
        if "legacy" in self.capabilities:
            legacy_pb2_grpc.add_LegacyServicer_to_server(cast("Any", self), self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return self

    # ---- What a test does ----

    async def fill(self, mq: MessageQueue, bodies: Iterable[str], tag: str = "") -> None:
        for body in bodies:
            offset = len(self.queues[mq])
            system = pb.SystemProperties(
                message_id=f"{mq}-{offset}",
                queue_id=mq.queue_id,
                queue_offset=offset,
                body_encoding=pb.IDENTITY,
                tag=tag or None,
                delivery_attempt=1,
            )
            topic = pb.Resource(name=mq.topic)
            self.queues[mq].append(pb.Message(topic=topic, system_properties=system, body=body.encode()))
        async with self.filled:
            self.filled.notify_all()

    def trim(self, mq: MessageQueue, oldest: int) -> None:
        self.oldest[mq] = oldest

    def reset(self, mq: MessageQueue, offset: int) -> None:
        """As an operator does."""
        self.progress[mq] = offset
        self.resets[mq] += 1

    # ---- Pulling ----

    async def PullMessage(  # noqa: N802
        self, request: rpc.PullMessageRequest, context: Any
    ) -> AsyncIterator[rpc.PullMessageResponse]:
        scripted = await self._answer("PullMessage", request, context)
        for frame in self._pulled(request) if scripted is None else scripted:
            if frame is not None:
                yield frame
                continue
            async with self.filled:  # from Python 3.13 on, a waiter that is cancelled wakes another one
                await self.filled.wait_for(lambda: None not in self._pulled(request))
            for late in self._pulled(request):
                yield late

    async def PullBatch(self, request: legacy.PullBatchRequest, context: Any) -> Any:  # noqa: N802
        scripted = await self._answer("PullBatch", request, context)
        if scripted is not None:
            return scripted
        asked = rpc.PullMessageRequest(
            message_queue=pb.MessageQueue(topic=request.queue.topic, id=request.queue.queue_id),
            offset=request.offset,
            batch_size=request.batch_size,
            filter_expression=request.filter_expression,
        )
        while None in (frames := self._pulled(asked)):
            async with self.filled:
                await self.filled.wait()
        status_, *found, end = [frame for frame in frames if frame is not None]
        return legacy.PullBatchResponse(
            status=status_.status, messages=[each.message for each in found], next_offset=end.next_offset
        )

    def _pulled(self, request: rpc.PullMessageRequest) -> list[rpc.PullMessageResponse | None]:
        """The frames of an answer; None stands for a wait until a queue is filled."""
        queue = (request.message_queue.topic.name, request.message_queue.id)
        log, oldest, offset = self.queues[queue], self.oldest[queue], request.offset
        if not oldest <= offset <= len(log):
            return pull_frames(pb.ILLEGAL_OFFSET, [], oldest if offset < oldest else len(log))
        if offset == len(log):
            return [None]
        window = log[offset : offset + request.batch_size]
        tag = request.filter_expression.expression
        wanted = [message for message in window if tag in ("*", message.system_properties.tag)]
        return pull_frames(pb.OK if wanted else pb.MESSAGE_NOT_FOUND, wanted, offset + len(window))

    # ---- Offsets ----

    async def QueryOffset(self, request: rpc.QueryOffsetRequest, context: Any) -> rpc.QueryOffsetResponse:  # noqa: N802
        queue = (request.message_queue.topic.name, request.message_queue.id)
        at = {pb.BEGINNING: self.oldest[queue], pb.END: len(self.queues[queue]), pb.TIMESTAMP: request.timestamp.nanos}
        return await self._answer(
            "QueryOffset",
            request,
            context,
            lambda: rpc.QueryOffsetResponse(status=OK, offset=at[request.query_offset_policy]),
        )

    async def GetOffset(self, request: rpc.GetOffsetRequest, context: Any) -> rpc.GetOffsetResponse:  # noqa: N802
        offset = self.progress.get((request.message_queue.topic.name, request.message_queue.id))
        answer = (
            rpc.GetOffsetResponse(status=status(pb.OFFSET_NOT_FOUND))
            if offset is None
            else rpc.GetOffsetResponse(status=OK, offset=offset)
        )
        return await self._answer("GetOffset", request, context, lambda: answer)

    async def UpdateOffset(self, request: rpc.UpdateOffsetRequest, context: Any) -> rpc.UpdateOffsetResponse:  # noqa: N802
        def update() -> rpc.UpdateOffsetResponse:
            queue = (request.message_queue.topic.name, request.message_queue.id)
            if request.offset > len(self.queues[queue]):
                return rpc.UpdateOffsetResponse(status=status(pb.ILLEGAL_OFFSET, f"{request.offset} is beyond the end"))
            self.progress[queue] = max(request.offset, self.progress.get(queue, 0))
            return rpc.UpdateOffsetResponse(status=OK)

        return await self._answer("UpdateOffset", request, context, update)

    async def FetchOffsets(self, request: legacy.FetchOffsetsRequest, context: Any) -> Any:  # noqa: N802
        offsets = [
            legacy.QueueOffset(queue=name, offset=self.progress.get(key, -1), resets=self.resets[key])
            for name in request.queues
            for key in [(name.topic.name, name.queue_id)]
        ]
        return await self._answer(
            "FetchOffsets", request, context, lambda: legacy.FetchOffsetsResponse(status=OK, offsets=offsets)
        )

    async def CommitOffsets(self, request: legacy.CommitOffsetsRequest, context: Any) -> Any:  # noqa: N802
        return await self._answer(
            "CommitOffsets",
            request,
            context,
            lambda: legacy.CommitOffsetsResponse(status=OK, results=map(self._commit, request.offsets)),
        )

    def _commit(self, wanted: legacy.QueueOffset) -> legacy.CommitOffsetResult:
        key = (wanted.queue.topic.name, wanted.queue.queue_id)
        told = OK
        if wanted.resets < self.resets[key] or wanted.offset > len(self.queues[key]):
            told = status(pb.ILLEGAL_OFFSET, f"offset {wanted.offset} is refused")
        else:
            self.progress[key] = max(wanted.offset, self.progress.get(key, 0))
        stored = legacy.QueueOffset(queue=wanted.queue, offset=self.progress.get(key, -1), resets=self.resets[key])
        return legacy.CommitOffsetResult(status=told, stored=stored)

    async def ListMembers(self, request: legacy.ListMembersRequest, context: Any) -> Any:  # noqa: N802
        return await self._answer("ListMembers", request, context, lambda: legacy.ListMembersResponse(status=OK))

    async def LockQueues(self, request: legacy.LockQueuesRequest, context: Any) -> Any:  # noqa: N802
        answer = legacy.LockQueuesResponse(status=OK, locked=request.queues)
        answer.lapses_after.FromSeconds(60)
        return await self._answer("LockQueues", request, context, lambda: answer)

    async def UnlockQueues(self, request: legacy.UnlockQueuesRequest, context: Any) -> Any:  # noqa: N802
        return await self._answer("UnlockQueues", request, context, lambda: legacy.UnlockQueuesResponse(status=OK))

    async def SendBack(self, request: legacy.SendBackRequest, context: Any) -> Any:  # noqa: N802
        is_dead = request.delay_level < 0
        return await self._answer(
            "SendBack", request, context, lambda: legacy.SendBackResponse(status=OK, is_dead_letter=is_dead)
        )


def pull_frames(code: int, messages: Iterable[pb.Message], next_offset: int) -> list[rpc.PullMessageResponse | None]:
    """In the order of the protocol."""
    return [
        rpc.PullMessageResponse(status=status(code)),
        *(rpc.PullMessageResponse(message=message) for message in messages),
        rpc.PullMessageResponse(next_offset=next_offset),
    ]
