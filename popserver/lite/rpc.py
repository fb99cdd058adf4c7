"""SyncLiteSubscription, and the calls of operators about lite topics: protobuf in, the room's own types out."""

from __future__ import annotations

from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import rights
from popserver.engine.reader import Reader
from popserver.lite import facts
from popserver.lite.flow import LiteAction, LiteSubscriptions
from popserver.lite.offsets import OffsetOption, OffsetPolicy
from popserver.messages.lite_topics import LiteTopic
from popserver.model.errors import BadRequest, ClientIdRequired
from popserver.model.states import State
from popserver.model.topic import offset_of, queue_of
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method

_ACTIONS = {
    pb.PARTIAL_ADD: LiteAction.PARTIAL_ADD,
    pb.PARTIAL_REMOVE: LiteAction.PARTIAL_REMOVE,
    pb.COMPLETE_ADD: LiteAction.COMPLETE_ADD,
    pb.COMPLETE_REMOVE: LiteAction.COMPLETE_REMOVE,
}
_POLICIES = {
    pb.OffsetOption.LAST: OffsetPolicy.LAST,
    pb.OffsetOption.MIN: OffsetPolicy.MIN,
    pb.OffsetOption.MAX: OffsetPolicy.MAX,
}
_NUMBERED = {"offset": OffsetPolicy.OFFSET, "tail_n": OffsetPolicy.TAIL, "timestamp": OffsetPolicy.TIMESTAMP}


class LiteMethods:
    """The call of lite consumers."""

    def __init__(self, subscriptions: LiteSubscriptions) -> None:
        self._subscriptions = subscriptions
        self.methods: dict[str, AnyMethod] = {
            "SyncLiteSubscription": Method(self.sync_lite_subscription, rights.consume)
        }

    async def sync_lite_subscription(
        self, request: wire.SyncLiteSubscriptionRequest, caller: Caller
    ) -> wire.SyncLiteSubscriptionResponse:
        """Change which lite topics the client gets (protocol 8.4). The request's version is ignored."""
        if not caller.client_id:
            raise ClientIdRequired
        action = _ACTIONS.get(request.action)
        if action is None:
            raise BadRequest(
                f"lite subscription action {request.action} is not known; use {', '.join(LiteAction)} (0 to 3)"
            )
        await self._subscriptions.sync(
            caller.resource(request.group),
            caller.resource(request.topic),
            caller.client_id,
            action,
            request.lite_topic_set,
            _offset(request.offset_option) if request.HasField("offset_option") else None,
        )
        return wire.SyncLiteSubscriptionResponse(status=status.OK)


def _offset(option: pb.OffsetOption) -> OffsetOption | None:
    kind = option.WhichOneof("offset_type")
    if kind is None:
        return None
    if kind == "policy":
        policy = _POLICIES.get(option.policy)
        if policy is None:
            raise BadRequest(f"offset policy {option.policy} is not known; use LAST (0), MIN (1) or MAX (2)")
        return OffsetOption(policy)
    number: int = getattr(option, kind)
    if number < 0:
        raise BadRequest(f"the offset option's {kind} is {number}; give 0 or more")
    return OffsetOption(_NUMBERED[kind], number)


LISTED_MAX = 1_000


class LiteTopicMethods:
    """The calls of operators about lite topics."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.methods: dict[str, AnyMethod] = {
            "ListLiteTopics": Method(self.list_lite_topics, rights.admin),
            "GetLiteTopic": Method(self.get_lite_topic, rights.admin),
        }

    async def list_lite_topics(
        self, request: admin.ListLiteTopicsRequest, caller: Caller
    ) -> admin.ListLiteTopicsResponse:
        name, limit = caller.resource(request.topic), min(request.max or LISTED_MAX, LISTED_MAX)
        topic, found = await self._reader.read(
            lambda conn: facts.list_lite_topics(conn, name, request.prefix, request.after, limit)
        )
        number_of = {each.queue_id: each.number for each in topic.queues}
        listed = [_lite_topic(each, number_of[queue_of(each.first_key)]) for each in found]
        return admin.ListLiteTopicsResponse(status=status.OK, lite_topics=listed)

    async def get_lite_topic(self, request: admin.GetLiteTopicRequest, caller: Caller) -> admin.GetLiteTopicResponse:
        name = caller.resource(request.topic)
        found = await self._reader.read(lambda conn: facts.lite_topic_facts(conn, name, request.lite_topic))
        return admin.GetLiteTopicResponse(
            status=status.OK,
            lite_topic=_lite_topic(found.lite_topic, found.queue_number),
            groups=map(_group, found.groups),
        )


def _lite_topic(found: LiteTopic, queue_number: int) -> admin.LiteTopic:
    return admin.LiteTopic(
        name=found.name,
        queue_id=queue_number,
        first_offset=offset_of(found.first_key),
        created_at=convert.timestamp(found.created_at_ms),
        newest=convert.timestamp(found.newest_ms),
    )


def _group(found: facts.LiteTopicGroup) -> admin.LiteTopicGroup:
    return admin.LiteTopicGroup(
        group=convert.as_resource(found.group.name),
        lite=found.group.lite or "",
        ready=found.counts.states.get(State.READY, 0),
        inflight=found.counts.states.get(State.INFLIGHT, 0),
        waiting_retry=found.counts.states.get(State.WAITING_RETRY, 0),
        client_ids=found.client_ids,
    )
