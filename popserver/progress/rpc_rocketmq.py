"""apache.rocketmq.v2.Admin: the calls about the progress of groups."""

from __future__ import annotations

from popproto.v2 import admin_pb2 as wire
from popserver.access import rights
from popserver.engine.clock import Clock
from popserver.model.errors import BadRequest
from popserver.model.names import topic_key
from popserver.progress.accumulation import Accumulation
from popserver.progress.flow import GroupProgress
from popserver.progress.rules import Since
from popserver.progress.time_span import QUEUES_MAX, QueueTimeSpan
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method

_Counted = wire.DescribeGroupAccumulationResponse.GroupAccumulation


class GroupAdminMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, progress: GroupProgress, clock: Clock) -> None:
        self._progress = progress
        self._clock = clock
        self.methods: dict[str, AnyMethod] = {
            "DeleteSubscription": Method(self.delete_subscription, rights.admin),
            "DescribeGroupAccumulation": Method(self.describe_group_accumulation, rights.admin),
            "ResetGroupOffset": Method(self.reset_group_offset, rights.admin),
            "QueryTimeSpan": Method(self.query_time_span, rights.admin),
        }

    async def delete_subscription(
        self, request: wire.DeleteSubscriptionRequest, caller: Caller
    ) -> wire.DeleteSubscriptionResponse:
        """A group has one subscription to a topic, so a filter in the request is only checked for mistakes."""
        convert.filter_of(request.expression)
        await self._progress.unsubscribe(caller.resource(request.group), caller.resource(request.topic))
        return wire.DeleteSubscriptionResponse(status=status.OK)

    async def describe_group_accumulation(
        self, request: wire.DescribeGroupAccumulationRequest, caller: Caller
    ) -> wire.DescribeGroupAccumulationResponse:
        group, topics = caller.resource(request.group), [caller.resource(each) for each in request.topics]
        found = await self._progress.accumulation(group, topics)
        shown, count = len(found.topics), len(found.topics) + found.left_out
        listed = status.listed(count, shown, f"of {count} topics", "name those that you want")
        answer = wire.DescribeGroupAccumulationResponse(status=listed)
        now_ms = self._clock.now_ms()
        _fill(answer.accumulation, found.total, now_ms)
        for topic, counted in found.topics:
            _fill(answer.topic_accumulation[topic_key(topic, group)], counted, now_ms)
        if request.lite_topic:
            counted = await self._progress.accumulation_of_lite_topic(group, topics, request.lite_topic)
            _fill(answer.lite_topic_accumulation[request.lite_topic], counted, now_ms)
        return answer

    async def reset_group_offset(
        self, request: wire.ResetGroupOffsetRequest, caller: Caller
    ) -> wire.ResetGroupOffsetResponse:
        at_ms = convert.time_ms(request.reset_timestamp, "reset_timestamp")
        if at_ms <= 0:
            # An unset time would deliver all messages again.
            raise BadRequest("the request has no reset_timestamp after 1970; give the time to continue from")
        await self._progress.reset(
            caller.resource(request.group), caller.resource(request.topic), None, Since(at_ms), dry_run=False
        )
        return wire.ResetGroupOffsetResponse(status=status.OK)

    async def query_time_span(self, request: wire.QueryTimeSpanRequest, caller: Caller) -> wire.QueryTimeSpanResponse:
        topics = [caller.resource(each) for each in request.topics]
        found = await self._progress.time_spans(caller.resource(request.group), topics)
        now_ms = self._clock.now_ms()
        return wire.QueryTimeSpanResponse(
            status=status.listed(len(found), QUEUES_MAX, "queues", "name fewer topics"),
            queue_time_span_list=[_span(each, now_ms) for each in found[:QUEUES_MAX]],
        )


def _fill(answer: _Counted, counted: Accumulation, now_ms: int) -> None:
    # A message that waits for its retry was delivered and is not acked.
    answer.inflight_messages = counted.inflight + counted.waiting
    answer.ready_messages = counted.ready
    answer.accumulation = answer.inflight_messages + counted.ready
    if counted.oldest_ready_ms is not None:
        convert.set_ms(answer.deliver_delay_time, max(0, now_ms - counted.oldest_ready_ms))


def _span(found: QueueTimeSpan, now_ms: int) -> wire.QueryTimeSpanResponse.QueueTimeSpan:
    return wire.QueryTimeSpanResponse.QueueTimeSpan(
        message_queue=convert.lone_queue(convert.as_resource(found.topic), found.number),
        min_timestamp=found.oldest_ms or 0,
        max_timestamp=found.newest_ms or 0,
        consume_timestamp=found.passed_ms or 0,
        delay_time_ms=0 if found.next_ms is None else max(0, now_ms - found.next_ms),
    )
