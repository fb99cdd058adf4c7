"""The calls of popmq.v1.Admin about mirrors: protobuf in, the room's own types out."""

from __future__ import annotations

from popproto.v1 import admin_pb2 as wire
from popserver.access import rights
from popserver.mirrors.flow import Mirrors
from popserver.mirrors.rules import UNKNOWN, MirrorFacts, MirrorRow
from popserver.model.errors import BadRequest
from popserver.model.names import Resource
from popserver.model.states import MirrorState
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method


class MirrorMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self.methods: dict[str, AnyMethod] = {
            "ReportMirror": Method(self.report_mirror, rights.admin),
            "ListMirrors": Method(self.list_mirrors, rights.admin),
            "ForgetMirror": Method(self.forget_mirror, rights.admin),
        }

    async def report_mirror(self, request: wire.ReportMirrorRequest, caller: Caller) -> wire.ReportMirrorResponse:
        facts, lease_ms = _facts(request, caller), convert.duration_ms(request.lease)
        stored = await self._mirrors.report(facts, lease_ms, claim=request.claim)
        return wire.ReportMirrorResponse(status=status.OK, mirror=_mirror(stored, self._mirrors.now_ms()))

    async def list_mirrors(self, _request: wire.ListMirrorsRequest, caller: Caller) -> wire.ListMirrorsResponse:
        found = await self._mirrors.all(caller.namespace or None)
        now_ms = self._mirrors.now_ms()
        return wire.ListMirrorsResponse(status=status.OK, mirrors=[_mirror(each, now_ms) for each in found])

    async def forget_mirror(self, request: wire.ForgetMirrorRequest, _caller: Caller) -> wire.ForgetMirrorResponse:
        await self._mirrors.forget(request.mirror_id)
        return wire.ForgetMirrorResponse(status=status.OK)


def _facts(request: wire.ReportMirrorRequest, caller: Caller) -> MirrorFacts:
    of = request.mirror
    topic = caller.resource(of.topic)
    group = caller.resource(of.group) if of.HasField("group") else Resource(topic.namespace, "")
    if group.namespace != topic.namespace:
        raise BadRequest(f"group {group} is not in the namespace of topic {topic}; a mirror has one namespace")
    return MirrorFacts(
        of.mirror_id,
        of.source,
        of.target,
        topic.namespace,
        topic.name,
        group.name,
        of.owner,
        of.host,
        MirrorState.RUNNING if request.claim else convert.choice("state", of.state, MirrorState),
        of.sentence,
        of.position,
        of.handed,
        of.repeated,
        of.dead_letters,
        of.scheduled,
        of.bytes,
        of.lag if of.HasField("lag") else UNKNOWN,
    )


def _mirror(row: MirrorRow, now_ms: int) -> wire.Mirror:
    group = Resource(row.namespace, row.consumer_group)
    return wire.Mirror(
        mirror_id=row.mirror_id,
        source=row.source,
        target=row.target,
        topic=convert.as_resource(Resource(row.namespace, row.topic)),
        group=convert.as_resource(group) if row.consumer_group else None,
        owner=row.owner,
        host=row.host,
        state=row.state,
        sentence=row.sentence,
        position=row.position,
        handed=row.handed,
        repeated=row.repeated,
        dead_letters=row.dead_letters,
        scheduled=row.scheduled,
        bytes=row.bytes,
        lag=None if row.lag == UNKNOWN else row.lag,
        lease_until=convert.timestamp(row.lease_until_ms),
        started_at=convert.timestamp(row.started_at_ms),
        updated_at=convert.timestamp(row.updated_at_ms),
        has_lease=row.has_lease(now_ms),
        report_age=convert.duration(max(0, now_ms - row.updated_at_ms)),
    )
