"""Lite topics over gRPC: what is told, sent and received."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.model.group import LiteModel, NewGroup
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, handle_of, receive_request

RECEIVES = [
    ("ReceiveMessage", receive_request()),
    ("QueryAssignment", wire.QueryAssignmentRequest(topic=TOPIC, group=GROUP)),
]


async def made(wire_server: WireServer) -> None:
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", TOPIC.name), 1, (MessageType.LITE,)))


async def sync(wire_server: WireServer, *names: str, client_id: str = "one", **more: Any) -> pb.Status:
    request = wire.SyncLiteSubscriptionRequest(topic=TOPIC, group=GROUP, lite_topic_set=names, **more)
    status: pb.Status = (await wire_server.call("SyncLiteSubscription", request, client_id=client_id)).status
    return status


async def told(stream: Any, client_type: pb.ClientType.ValueType, topic: pb.Resource = TOPIC) -> wire.TelemetryCommand:
    settings = pb.Settings(client_type=client_type, user_agent=pb.UA(language=pb.JAVA))
    settings.subscription.group.CopyFrom(GROUP)
    settings.subscription.subscriptions.add(expression=pb.FilterExpression(expression="*")).topic.CopyFrom(topic)
    await stream.write(wire.TelemetryCommand(settings=settings))
    answer: wire.TelemetryCommand = await stream.read()
    return answer


@pytest.mark.parametrize("client_type", [pb.LITE_PUSH_CONSUMER, pb.LITE_SIMPLE_CONSUMER])
async def test_a_lite_consumer_is_told_its_quotas(
    wire_server: WireServer, client_type: pb.ClientType.ValueType
) -> None:
    await made(wire_server)
    async with wire_server.telemetry("one") as stream:
        answer = await told(stream, client_type)
    assert answer.status.code == pb.OK
    subscription = answer.settings.subscription
    assert (subscription.lite_subscription_quota, subscription.max_lite_topic_size) == (2_000, 64)
    assert not subscription.fifo
    assert (await wire_server.broker.catalog.group(Resource("", GROUP.name))).lite is LiteModel.SHARED


@pytest.mark.parametrize("client_type", [pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER])
async def test_an_ordinary_consumer_of_a_lite_group_is_refused(
    wire_server: WireServer, client_type: pb.ClientType.ValueType
) -> None:
    """It could name no lite topics, so it would wait for ever."""
    await made(wire_server)
    await wire_server.broker.catalog.create_group(NewGroup(Resource("", GROUP.name), lite=LiteModel.SHARED))
    async with wire_server.telemetry("one") as stream:
        answer = await told(stream, client_type)
    assert answer.status.code == pb.BAD_REQUEST
    assert "use a lite consumer (LitePushConsumer, LiteSimpleConsumer), or another group" in answer.status.message


@pytest.mark.parametrize("ordinary", [pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER])
async def test_an_ordinary_consumer_is_refused_from_its_groups_first_lite_consumer_on(
    wire_server: WireServer, ordinary: pb.ClientType.ValueType
) -> None:
    await made(wire_server)
    async with wire_server.telemetry("ordinary") as one, wire_server.telemetry("lite") as other:
        assert (await told(one, ordinary)).status.code == pb.OK
        assert (await told(other, pb.LITE_SIMPLE_CONSUMER)).status.code == pb.OK
        for method, request in RECEIVES:
            (refused, *_) = await wire_server.statuses(method, request, client_id="ordinary")
            assert refused.code == pb.BAD_REQUEST
            assert "this consumer names none; use a lite consumer" in refused.message
        assert await received(wire_server, "lite") == []


async def test_an_ordinary_consumer_is_refused_a_topic_that_it_subscribes_to_later(wire_server: WireServer) -> None:
    """It sends no new settings then."""
    await made(wire_server)
    await wire_server.broker.catalog.create_group(NewGroup(Resource("", GROUP.name), lite=LiteModel.SHARED))
    async with wire_server.telemetry("one") as stream:
        assert (await told(stream, pb.SIMPLE_CONSUMER, topic=pb.Resource(name="later"))).status.code == pb.OK
        (refused, *_) = await wire_server.statuses("ReceiveMessage", receive_request(), client_id="one")
    assert refused.code == pb.BAD_REQUEST
    assert "this consumer names none; use a lite consumer" in refused.message


async def test_an_ordinary_consumer_of_a_lite_group_creates_no_topic(wire_server: WireServer) -> None:
    """The created topic would take no lite messages."""
    await wire_server.broker.catalog.create_group(NewGroup(Resource("", GROUP.name), lite=LiteModel.SHARED))
    async with wire_server.telemetry("one") as stream:
        assert (await told(stream, pb.PUSH_CONSUMER)).status.code == pb.OK
        for method, request in RECEIVES:
            (refused, *_) = await wire_server.statuses(method, request, client_id="one")
            assert refused.code == pb.TOPIC_NOT_FOUND
            assert f"popmq topic create {TOPIC.name} --type LITE" in refused.message
    assert await wire_server.broker.catalog.known_topic(Resource("", TOPIC.name)) is None


async def test_a_lite_consumer_that_ignores_the_refusal_of_its_settings_spoils_nothing(wire_server: WireServer) -> None:
    """The official Python client receives without waiting for the answer to its settings."""
    async with wire_server.telemetry("one") as stream:
        refused = (await told(stream, pb.LITE_SIMPLE_CONSUMER)).status
    assert refused.code == pb.TOPIC_NOT_FOUND
    for method, request in RECEIVES:
        (again, *_) = await wire_server.statuses(method, request, client_id="one")
        assert (again.code, again.message) == (refused.code, refused.message)
    catalog = wire_server.broker.catalog
    assert await catalog.known_topic(Resource("", TOPIC.name)) is None
    assert await catalog.known_group(Resource("", GROUP.name)) is None
    await made(wire_server)
    assert await received(wire_server, "one") == []
    assert (await catalog.group(Resource("", GROUP.name))).lite is LiteModel.SHARED


async def test_an_ordinary_consumer_gets_all_lite_topics_of_other_groups(wire_server: WireServer) -> None:
    await made(wire_server)
    async with wire_server.telemetry("one") as stream:
        assert (await told(stream, pb.SIMPLE_CONSUMER)).status.code == pb.OK
    await wire_server.send(a_message("m1", lite_topic="a"))
    assert len(await received(wire_server, "one")) == 1


async def test_a_message_carries_its_lite_topic(either_wire_server: WireServer) -> None:
    wire_server = either_wire_server
    await made(wire_server)
    assert (await sync(wire_server, "session-1")).code == pb.OK
    answer = await wire_server.send(a_message("m1", lite_topic="session-1"), a_message("m2", lite_topic="session-2"))
    assert answer.status.code == pb.OK
    (got,) = await received(wire_server, "one")
    system = got.system_properties
    assert (system.message_id, system.lite_topic, system.message_type) == ("m1", "session-1", pb.LITE)
    assert not system.HasField("message_group")
    entry = wire.AckMessageEntry(message_id="m1", receipt_handle=handle_of(got), lite_topic="session-1")
    acked = await wire_server.call("AckMessage", wire.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry]))
    assert acked.status.code == pb.OK


async def received(wire_server: WireServer, client_id: str) -> list[pb.Message]:
    frames = await wire_server.frames("ReceiveMessage", receive_request(), client_id=client_id)
    return [frame.message for frame in frames if frame.HasField("message")]


async def test_who_loses_a_lite_topic_is_told(wire_server: WireServer) -> None:
    await made(wire_server)
    await wire_server.broker.catalog.create_group(NewGroup(Resource("", GROUP.name), lite=LiteModel.EXCLUSIVE))
    async with wire_server.telemetry("one") as stream:
        await told(stream, pb.LITE_PUSH_CONSUMER)
        assert (await sync(wire_server, "a", "b")).code == pb.OK
        assert (await sync(wire_server, "a", client_id="two")).code == pb.OK
        notice = await stream.read()
        assert notice.notify_unsubscribe_lite_command.lite_topic == "a"
        assert (await sync(wire_server, "a", "b", action=pb.COMPLETE_ADD)).code == pb.OK
        again = await stream.read()
        assert again.notify_unsubscribe_lite_command.lite_topic == "a"


async def test_refusals_have_their_codes(wire_server: WireServer) -> None:
    await made(wire_server)
    assert (await sync(wire_server, "no/name")).code == pb.ILLEGAL_LITE_TOPIC
    many = [f"t{number}" for number in range(1_000)]
    assert (await sync(wire_server, *many)).code == pb.OK
    assert (await sync(wire_server, *(f"u{number}" for number in range(1_000)))).code == pb.OK
    over = await sync(wire_server, "one-more")
    assert over.code == pb.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    assert "at most 2000 are allowed" in over.message
    assert (await sync(wire_server, "a", action=9)).code == pb.BAD_REQUEST
    sent = await wire_server.send(a_message("m1", lite_topic=" "))
    assert sent.entries[0].status.code == pb.ILLEGAL_LITE_TOPIC
    both = await wire_server.send(a_message("m1", lite_topic="a", message_group="g"))
    assert both.entries[0].status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    plain = pb.Resource(name="plain")
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", "plain"), 1))
    request = wire.SyncLiteSubscriptionRequest(topic=plain, group=GROUP, lite_topic_set=["a"])
    refused = await wire_server.call("SyncLiteSubscription", request)
    assert refused.status.code == pb.BAD_REQUEST
    assert "has no lite topics; create one that does" in refused.status.message


async def test_an_offset_option_moves_the_group(wire_server: WireServer) -> None:
    await made(wire_server)
    await sync(wire_server, "a")
    await wire_server.send(a_message("m1", lite_topic="b"), a_message("m2", lite_topic="b"))
    option = pb.OffsetOption(policy=pb.OffsetOption.MAX)
    assert (await sync(wire_server, "b", offset_option=option)).code == pb.OK
    assert await received(wire_server, "one") == []
    negative = await sync(wire_server, "c", offset_option=pb.OffsetOption(tail_n=-1))
    assert negative.code == pb.BAD_REQUEST
