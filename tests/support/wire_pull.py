"""Pulls and offsets over the wire, in few words."""

from __future__ import annotations

from typing import Any, NamedTuple

from popproto.v1 import legacy_pb2
from popproto.v1.legacy_pb2_grpc import LegacyStub
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.model.topic import NewTopic
from popserver.pulling.rpc import EXTRAS_HEADER
from popserver.transport import convert
from tests.support.wire_server import CLIENT, GROUP, TOPIC, WireServer, headers


class Answer(NamedTuple):
    """The frames of a PullMessage; `next_offset` is None where there was none."""

    status: pb.Status
    messages: list[pb.Message]
    next_offset: int | None

    @property
    def code(self) -> int:
        return self.status.code

    @property
    def ids(self) -> list[str]:
        return [each.system_properties.message_id for each in self.messages]


def queue(number: int = 0, topic: pb.Resource = TOPIC) -> pb.MessageQueue:
    return pb.MessageQueue(topic=topic, id=number)


def queue_name(number: int = 0, topic: pb.Resource = TOPIC) -> legacy_pb2.QueueName:
    return legacy_pb2.QueueName(topic=topic, queue_id=number)


async def make_topic(wire_server: WireServer, queues: int = 1) -> None:
    await wire_server.broker.catalog.create_topic(NewTopic(convert.resource(TOPIC, ""), queues))


async def pull(
    wire_server: WireServer,
    offset: int = 0,
    *,
    poll_ms: int | None = None,
    extras: dict[str, int] | None = None,
    **more: Any,
) -> Answer:
    """One pull by PullMessage; `extras` are the fields of its PullExtras."""
    options, fields = _options_and_fields(more)
    request = wire.PullMessageRequest(offset=offset, **fields)
    if poll_ms is not None:
        convert.set_ms(request.long_polling_timeout, poll_ms)
    if extras is not None:
        options["headers"][EXTRAS_HEADER] = legacy_pb2.PullExtras(**extras).SerializeToString()
    frames = await wire_server.frames("PullMessage", request, **options)
    kinds = [frame.WhichOneof("content") for frame in frames]
    refused = kinds == ["status"]
    assert refused or kinds == ["status", *["message"] * (len(frames) - 2), "next_offset"], kinds
    return Answer(
        frames[0].status, [each.message for each in frames[1:-1]], None if refused else frames[-1].next_offset
    )


async def pull_batch(
    wire_server: WireServer,
    offset: int = 0,
    *,
    poll_ms: int | None = None,
    extras: dict[str, int] | None = None,
    **more: Any,
) -> Answer:
    """The same by PullBatch."""
    options, fields = _options_and_fields(more)
    asked = fields.pop("message_queue")
    request = legacy_pb2.PullBatchRequest(offset=offset, queue=queue_name(asked.id, asked.topic), **fields)
    if poll_ms is not None:
        convert.set_ms(request.long_polling_timeout, poll_ms)
    if extras is not None:
        request.extras.MergeFrom(legacy_pb2.PullExtras(**extras))
    answer = await legacy(wire_server, "PullBatch", request, **options)
    refused = answer.status.code not in (pb.OK, pb.MESSAGE_NOT_FOUND, pb.ILLEGAL_OFFSET)
    assert not refused or answer == legacy_pb2.PullBatchResponse(status=answer.status)
    return Answer(answer.status, list(answer.messages), None if refused else answer.next_offset)


def _options_and_fields(more: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    options: dict[str, Any] = {name: more.pop(name) for name in ("client_id", "timeout") if name in more}
    options["headers"] = dict(more.pop("headers", {}))
    return options, {"group": GROUP, "message_queue": queue(), "batch_size": 32} | more


async def update_offset(wire_server: WireServer, offset: int, number: int = 0, group: pb.Resource = GROUP) -> pb.Status:
    request = wire.UpdateOffsetRequest(group=group, message_queue=queue(number), offset=offset)
    status: pb.Status = (await wire_server.call("UpdateOffset", request)).status
    return status


async def get_offset(wire_server: WireServer, number: int = 0, group: pb.Resource = GROUP) -> tuple[int, int]:
    """Code and offset."""
    answer = await wire_server.call("GetOffset", wire.GetOffsetRequest(group=group, message_queue=queue(number)))
    return answer.status.code, answer.offset


async def query_offset(
    wire_server: WireServer, policy: Any, at_ms: int | None = None, number: int = 0
) -> wire.QueryOffsetResponse:
    request = wire.QueryOffsetRequest(message_queue=queue(number), query_offset_policy=policy)
    if at_ms is not None:
        convert.set_ms(request.timestamp, at_ms)
    answer: wire.QueryOffsetResponse = await wire_server.call("QueryOffset", request)
    return answer


async def legacy(
    wire_server: WireServer, method: str, request: Any, *, client_id: str | None = CLIENT, **options: Any
) -> Any:
    metadata = headers(client_id, options.pop("headers", {}))
    return await getattr(LegacyStub(wire_server.channel), method)(request, metadata=metadata, **options)


async def settle(stream: Any, properties: dict[str, str] | None = None, **filters: pb.FilterExpression) -> Any:
    """Say over a telemetry stream what is wanted of each topic; the answer."""
    entries = [pb.SubscriptionEntry(topic=pb.Resource(name=name), expression=each) for name, each in filters.items()]
    settings = pb.Settings(
        client_type=pb.PULL_CONSUMER,
        subscription=pb.Subscription(group=GROUP, subscriptions=entries),
        client_properties=properties or {},
    )
    await stream.write(wire.TelemetryCommand(settings=settings))
    return await stream.read()
