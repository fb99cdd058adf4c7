"""The calls for offsets, in both protocols: where queues begin and end, and what groups have committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from popproto.v1 import legacy_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import rights
from popserver.model.errors import BadRequest, OffsetNotFound
from popserver.model.topic import QUEUE_COUNT_MAX, QueueName
from popserver.pulling import offsets
from popserver.pulling.offsets import NamedOffset
from popserver.pulling.rules import NO_OFFSET, QueueProgress
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method

T = TypeVar("T")


class OffsetMethods:
    """One method per RPC."""

    def __init__(self, offsets: offsets.Offsets) -> None:
        self._offsets = offsets
        self.methods: dict[str, AnyMethod] = {
            "UpdateOffset": Method(self.update_offset, rights.consume_message_queue),
            "GetOffset": Method(self.get_offset, rights.consume_message_queue),
            "QueryOffset": Method(self.query_offset, rights.read_message_queue),
        }
        self.legacy: dict[str, AnyMethod] = {
            "FetchOffsets": Method(self.fetch_offsets, rights.consume_queues),
            "CommitOffsets": Method(self.commit_offsets, rights.commit_offsets),
        }

    async def update_offset(self, request: wire.UpdateOffsetRequest, caller: Caller) -> wire.UpdateOffsetResponse:
        """Commit an offset of a client that does not know resets; any count is accepted."""
        offset = NamedOffset(_of_v2(request.message_queue, caller), request.offset)
        (done,) = await self._offsets.commit(caller.resource(request.group), [offset])
        return wire.UpdateOffsetResponse(status=status.of(done.refusal))

    async def get_offset(self, request: wire.GetOffsetRequest, caller: Caller) -> wire.GetOffsetResponse:
        group, queue = caller.resource(request.group), _of_v2(request.message_queue, caller)
        (stored,) = await self._offsets.fetch(group, [queue])
        if stored.offset == NO_OFFSET:
            raise OffsetNotFound(
                f"consumer group '{group}' has committed nothing in queue {queue.number} of topic '{queue.topic}';"
                " begin where the group's consume-from says"
            )
        return wire.GetOffsetResponse(status=status.OK, offset=stored.offset)

    async def query_offset(self, request: wire.QueryOffsetRequest, caller: Caller) -> wire.QueryOffsetResponse:
        """A queue's first offset, its end, or the offset of the first message stored at or after a time."""
        return wire.QueryOffsetResponse(status=status.OK, offset=await self._query(request, caller))

    async def fetch_offsets(
        self, request: legacy_pb2.FetchOffsetsRequest, caller: Caller
    ) -> legacy_pb2.FetchOffsetsResponse:
        queues = [_of_v1(each, caller) for each in _checked(request.queues)]
        found = await self._offsets.fetch(caller.resource(request.group), queues)
        offsets = [_queue_offset(queue, each) for queue, each in zip(request.queues, found, strict=True)]
        return legacy_pb2.FetchOffsetsResponse(status=status.OK, offsets=offsets)

    async def commit_offsets(
        self, request: legacy_pb2.CommitOffsetsRequest, caller: Caller
    ) -> legacy_pb2.CommitOffsetsResponse:
        """Each offset has its own outcome, with the current progress."""
        offsets = [
            NamedOffset(_of_v1(each.queue, caller), each.offset, each.resets) for each in _checked(request.offsets)
        ]
        group = caller.resource(request.group)
        done = await self._offsets.commit(group, offsets, begins=request.begin)
        statuses = [status.of(each.refusal) for each in done]
        results = [
            legacy_pb2.CommitOffsetResult(status=result, stored=_queue_offset(sent.queue, each.stored))
            for result, sent, each in zip(statuses, request.offsets, done, strict=True)
        ]
        return legacy_pb2.CommitOffsetsResponse(status=status.combined(statuses), results=results)

    async def _query(self, request: wire.QueryOffsetRequest, caller: Caller) -> int:
        queue, policy = _of_v2(request.message_queue, caller), request.query_offset_policy
        if policy == pb.BEGINNING:
            return (await self._offsets.ends(queue)).min_offset
        if policy == pb.END:
            return (await self._offsets.ends(queue)).end_offset
        if policy != pb.TIMESTAMP:
            raise BadRequest(f"query_offset_policy {policy} is not known; use BEGINNING (0), END (1) or TIMESTAMP (2)")
        if not request.HasField("timestamp"):
            raise BadRequest("the policy is TIMESTAMP, but the request has no timestamp; send one")
        return await self._offsets.at(queue, convert.time_ms(request.timestamp, "timestamp"))


def _checked(several: Sequence[T]) -> Sequence[T]:
    if not 1 <= len(several) <= QUEUE_COUNT_MAX:
        raise BadRequest(f"the request names {len(several)} queues; allowed: 1 to {QUEUE_COUNT_MAX}")
    return several


def _of_v2(queue: pb.MessageQueue, caller: Caller) -> QueueName:
    return QueueName(caller.resource(queue.topic), queue.id)


def _of_v1(queue: legacy_pb2.QueueName, caller: Caller) -> QueueName:
    return QueueName(caller.resource(queue.topic), queue.queue_id, queue.generation)


def _queue_offset(queue: legacy_pb2.QueueName, stored: QueueProgress) -> legacy_pb2.QueueOffset:
    named = legacy_pb2.QueueName(topic=queue.topic, queue_id=queue.queue_id, generation=stored.generation)
    return legacy_pb2.QueueOffset(queue=named, offset=stored.offset, resets=stored.resets)
