"""The calls of popmq.v1.Admin for groups' progress."""

from __future__ import annotations

from collections.abc import Iterable

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights
from popserver.model.errors import BadRequest
from popserver.model.names import Resource
from popserver.model.topic import QueueName
from popserver.progress.flow import GroupProgress
from popserver.progress.lag import QueueLag
from popserver.progress.rules import Edge, MovedOffset, Since, Target
from popserver.pulling.offsets import NamedOffset
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method

_EDGES = {pb.BEGINNING: Edge.BEGINNING, pb.END: Edge.END}


class ProgressMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, progress: GroupProgress) -> None:
        self._progress = progress
        self.methods: dict[str, AnyMethod] = {
            "ListLag": Method(self.list_lag, rights.admin),
            "ResetOffsets": Method(self.reset_offsets, rights.admin),
            "SkipMessage": Method(self.skip_message, rights.admin),
            "PauseGroup": Method(self.pause_group, rights.admin),
            "ResumeGroup": Method(self.resume_group, rights.admin),
            "CloneOffsets": Method(self.clone_offsets, rights.admin),
            "ImportOffsets": Method(self.import_offsets, rights.admin),
        }

    async def list_lag(self, request: wire.ListLagRequest, caller: Caller) -> wire.ListLagResponse:
        found, count = await self._progress.lag(caller.resource(request.group), _topic(request, caller))
        said = f"the first {len(found)} of {count} queues; name a topic" if len(found) < count else "OK"
        return wire.ListLagResponse(status=pb.Status(code=pb.OK, message=said), queues=map(_lag, found))

    async def reset_offsets(self, request: wire.ResetOffsetsRequest, caller: Caller) -> wire.ResetOffsetsResponse:
        moved = await self._progress.reset(
            caller.resource(request.group),
            caller.resource(request.topic),
            request.queue_id if request.HasField("queue_id") else None,
            _target(request),
            dry_run=request.dry_run,
            force=request.force,
        )
        return wire.ResetOffsetsResponse(status=status.OK, moved=_moved(moved))

    async def skip_message(self, request: wire.SkipMessageRequest, caller: Caller) -> wire.SkipMessageResponse:
        skipped = await self._progress.skip(
            caller.resource(request.group), _topic(request, caller), request.message_id, force=request.force
        )
        return wire.SkipMessageResponse(
            status=status.OK,
            from_state=skipped.state,
            client_id=skipped.client_id,
            held_until=convert.timestamp(skipped.held_until_ms),
        )

    async def pause_group(self, request: wire.PauseGroupRequest, caller: Caller) -> wire.PauseGroupResponse:
        await self._progress.pause(
            caller.resource(request.group), _topic(request, caller), _message_group(request), paused_by=caller.user
        )
        return wire.PauseGroupResponse(status=status.OK)

    async def resume_group(self, request: wire.ResumeGroupRequest, caller: Caller) -> wire.ResumeGroupResponse:
        await self._progress.resume(caller.resource(request.group), _topic(request, caller), _message_group(request))
        return wire.ResumeGroupResponse(status=status.OK)

    async def clone_offsets(self, request: wire.CloneOffsetsRequest, caller: Caller) -> wire.CloneOffsetsResponse:
        source = caller.resource(request.source)
        moved = await self._progress.clone(source, caller.resource(request.group), _topic(request, caller))
        return wire.CloneOffsetsResponse(status=status.OK, moved=_moved(moved))

    async def import_offsets(self, request: wire.ImportOffsetsRequest, caller: Caller) -> wire.ImportOffsetsResponse:
        offsets = [
            NamedOffset(QueueName(caller.resource(each.topic), each.queue_id), each.to_offset)
            for each in request.offsets
        ]
        moved = await self._progress.import_offsets(caller.resource(request.group), offsets)
        return wire.ImportOffsetsResponse(status=status.OK, moved=_moved(moved))


def _topic(
    request: wire.ListLagRequest
    | wire.SkipMessageRequest
    | wire.CloneOffsetsRequest
    | wire.PauseGroupRequest
    | wire.ResumeGroupRequest,
    caller: Caller,
) -> Resource | None:
    return caller.resource(request.topic) if request.HasField("topic") else None


def _message_group(request: wire.PauseGroupRequest | wire.ResumeGroupRequest) -> str | None:
    return request.message_group if request.HasField("message_group") else None


def _target(request: wire.ResetOffsetsRequest) -> Target:
    kind = request.WhichOneof("to")
    if kind == "timestamp":
        return Since(convert.time_ms(request.timestamp, "timestamp"))
    if kind == "offset":
        if not request.HasField("queue_id"):
            raise BadRequest(f"offset {request.offset} belongs to one queue; name the queue as well")
        return request.offset
    if kind is None:
        raise BadRequest("the request has no target; give a policy, a timestamp or an offset")
    if request.policy not in _EDGES:
        raise BadRequest(f"policy {request.policy} is not allowed; use BEGINNING (0) or END (1), or give a timestamp")
    return _EDGES[request.policy]


def _lag(found: QueueLag) -> wire.QueueLag:
    return wire.QueueLag(
        topic=convert.as_resource(found.topic),
        queue_id=found.number,
        min_offset=found.min_offset,
        max_offset=found.end_offset,
        offset=found.offset,
        ready=found.ready,
        inflight=found.inflight,
        waiting_retry=found.waiting_retry,
        client_id=found.client_id,
        oldest_ready=convert.timestamp(found.oldest_ready_ms),
    )


def _moved(several: Iterable[MovedOffset]) -> Iterable[wire.MovedOffset]:
    return (
        wire.MovedOffset(
            topic=convert.as_resource(each.topic),
            queue_id=each.number,
            from_offset=each.from_offset,
            to_offset=each.to_offset,
        )
        for each in several
    )
