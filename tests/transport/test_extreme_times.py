"""Every time and every duration that a request can carry, at its extremes: an answer in words, never a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor

from popproto.v1 import admin_pb2, bulk_pb2, legacy_pb2, receiving_pb2
from popproto.v2 import admin_pb2 as official_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as v2
from tests.support.wire_server import GROUP, LIMITS, TOPIC, WireServer, a_message, opened, receive_request

MESSAGING, LEGACY = "apache.rocketmq.v2.MessagingService", "popmq.v1.Legacy"
RECEIVING, ADMIN, BULK = "popmq.v1.Receiving", "popmq.v1.Admin", "popmq.v1.Bulk"
OFFICIAL_ADMIN = "apache.rocketmq.v2.Admin"
MODULES: dict[str, Any] = {
    MESSAGING: v2,
    LEGACY: legacy_pb2,
    RECEIVING: receiving_pb2,
    BULK: bulk_pb2,
    ADMIN: admin_pb2,
    OFFICIAL_ADMIN: official_pb2,
}
TIMES = {"google.protobuf.Timestamp", "google.protobuf.Duration"}
LONG_MAX, LONG_MIN, INT_MAX, INT_MIN = 2**63 - 1, -(2**63), 2**31 - 1, -(2**31)
EXTREMES = [
    (LONG_MAX, INT_MAX),
    (LONG_MIN, INT_MIN),
    (LONG_MAX // 1_000, 999_999_999),
    (LONG_MIN // 1_000, 0),
    (253_402_300_800, 0),
    (-62_135_596_801, 0),
    (0, INT_MIN),
]
QUEUE = pb.MessageQueue(topic=TOPIC)
MESSAGE = a_message("m")
SETTINGS = pb.Settings(
    client_type=pb.SIMPLE_CONSUMER,
    subscription=pb.Subscription(
        group=GROUP, subscriptions=[pb.SubscriptionEntry(topic=TOPIC, expression=pb.FilterExpression(expression="*"))]
    ),
)
SELECTED = admin_pb2.DeadLetterSelection(group=GROUP)
# Of each RPC that carries a time: a request that is right but for the time that is put into it.
RIGHT: dict[str, Any] = {
    "SendMessage": v2.SendMessageRequest(messages=[MESSAGE]),
    "ReceiveMessage": receive_request(),
    "PullMessage": v2.PullMessageRequest(group=GROUP, message_queue=QUEUE, batch_size=1),
    "QueryOffset": v2.QueryOffsetRequest(message_queue=QUEUE, query_offset_policy=pb.TIMESTAMP),
    "ChangeInvisibleDuration": v2.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle="h"),
    "Telemetry": v2.TelemetryCommand(settings=SETTINGS),
    "PullBatch": legacy_pb2.PullBatchRequest(group=GROUP, queue=legacy_pb2.QueueName(topic=TOPIC), batch_size=1),
    "ReceiveBatch": receive_request(),
    "ReceiveBulk": bulk_pb2.ReceiveBulkRequest(group=GROUP, topic=TOPIC, attempt_id="a", max_messages=1),
    "RenewAttempt": bulk_pb2.RenewAttemptRequest(group=GROUP, topic=TOPIC, attempt_id="a"),
    "CreateTopic": admin_pb2.CreateTopicRequest(topic=pb.Resource(name="new"), accept_message_types=[pb.LITE]),
    "UpdateTopic": admin_pb2.UpdateTopicRequest(topic=TOPIC),
    "CreateGroup": admin_pb2.CreateGroupRequest(group=pb.Resource(name="new")),
    "UpdateGroup": admin_pb2.UpdateGroupRequest(group=GROUP),
    "FindMessages": admin_pb2.FindMessagesRequest(topic=TOPIC),
    "GetChart": admin_pb2.GetChartRequest(topic=TOPIC),
    "TryFilter": admin_pb2.TryFilterRequest(topic=TOPIC, expression="a > 3"),
    "ListScheduled": admin_pb2.ListScheduledRequest(topic=TOPIC),
    "ListDeadLetters": admin_pb2.ListDeadLettersRequest(selection=SELECTED),
    "PurgeDeadLetters": admin_pb2.PurgeDeadLettersRequest(selection=SELECTED),
    "PlanRedrive": admin_pb2.PlanRedriveRequest(selection=SELECTED, reason="mended"),
    "ResetOffsets": admin_pb2.ResetOffsetsRequest(group=GROUP, topic=TOPIC),
    "ResetGroupOffset": official_pb2.ResetGroupOffsetRequest(group=GROUP, topic=TOPIC),
    "QueryMessage": official_pb2.ListMessageRequest(topic=TOPIC, message_key="k"),
    "ImportMessages": admin_pb2.ImportMessagesRequest(
        group=GROUP, topic=TOPIC, messages=[admin_pb2.ImportedMessage(message=MESSAGE, death=admin_pb2.Death())]
    ),
    "ReportMirror": admin_pb2.ReportMirrorRequest(
        mirror=admin_pb2.Mirror(
            mirror_id="m", source="a", target="b", topic=TOPIC, owner="o", host="h", state="RUNNING"
        )
    ),
    "AdminSendMessage": official_pb2.AdminSendMessageRequest(topic=TOPIC, body=b"m"),
}


def times_in(message: Descriptor, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a request carries times, as names of fields."""
    for field in message.fields:
        if field.message_type is None or field.name in path:
            continue
        if field.message_type.full_name in TIMES:
            yield (*path, field.name)
        elif not field.message_type.GetOptions().map_entry:
            yield from times_in(field.message_type, (*path, field.name))


def methods() -> Iterator[tuple[str, Any]]:
    for service, module in MODULES.items():
        for method in module.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods:
            yield service, method


PLACES = [(service, method, path) for service, method in methods() for path in times_in(method.input_type)]


def put(request: Any, path: tuple[str, ...], seconds: int, nanos: int) -> None:
    for name in path[:-1]:
        child = getattr(request, name)
        request = (child[0] if child else child.add()) if hasattr(child, "add") else child
    field = getattr(request, path[-1])
    field = field.add() if hasattr(field, "add") else field
    field.seconds, field.nanos = seconds, nanos


async def status_of(wire_server: WireServer, service: str, method: Any, request: Any) -> pb.Status:
    if service == MESSAGING:
        return (await wire_server.statuses(method.name, request))[0]
    read = getattr(MODULES[service], method.output_type.name).FromString
    shape: Any = wire_server.channel.unary_stream if method.server_streaming else wire_server.channel.unary_unary
    coders = {"request_serializer": lambda it: it.SerializeToString(), "response_deserializer": read}
    call = shape(f"/{service}/{method.name}", **coders)(request, metadata=(("x-mq-client-id", "c"),))
    status: pb.Status = (await (call.read() if method.server_streaming else call)).status
    return status


def test_every_request_with_a_time_is_tried() -> None:
    assert {method.name for _, method, path in PLACES if is_asked(method, path)} == set(RIGHT)


def is_asked(method: Any, path: tuple[str, ...]) -> bool:
    """Whether the field is a client's to fill in that request."""
    return method.name != "Telemetry" or path[0] == "settings"


async def test_extremes_are_answered_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with opened(tmp_path, administered=True, limits=LIMITS._replace(poll_ms_max=1)) as wire_server:
        await wire_server.send(a_message("first"))
        for service, method, path in PLACES:
            if not is_asked(method, path):
                continue
            for seconds, nanos in EXTREMES:
                request = type(RIGHT[method.name])()
                request.CopyFrom(RIGHT[method.name])
                put(request, path, seconds, nanos)
                status = await status_of(wire_server, service, method, request)
                where = (method.name, path, seconds, nanos, status)
                assert status.code != pb.INTERNAL_SERVER_ERROR, where
                assert status.message, where
    assert "call failed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("QueryOffset", ("timestamp",)),
        ("FindMessages", ("since",)),
        ("ListScheduled", ("after_due_at",)),
        ("ListDeadLetters", ("selection", "dead_from")),
        ("PurgeDeadLetters", ("selection", "dead_until")),
        ("PlanRedrive", ("selection", "dead_from")),
        ("ResetOffsets", ("timestamp",)),
    ],
)
async def test_a_time_beyond_all_years_is_named(tmp_path: Path, method: str, path: tuple[str, ...]) -> None:
    service, described = next((service, each) for service, each in methods() if each.name == method)
    async with opened(tmp_path, administered=True) as wire_server:
        await wire_server.send(a_message("first"))
        before = await wire_server.digest()
        for seconds in (LONG_MAX, LONG_MIN, 253_402_300_800, -62_135_596_801):
            request = type(RIGHT[method])()
            request.CopyFrom(RIGHT[method])
            put(request, path, seconds, 0)
            status = await status_of(wire_server, service, described, request)
            assert status.code == pb.BAD_REQUEST
            assert status.message == (
                f"{path[-1]} is {seconds} s and 0 ns after 1970; give a time in the years 1 to 9999"
            )
        assert await wire_server.digest() == before
