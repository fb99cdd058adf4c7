"""apache.rocketmq.v2.Admin about lite topics: their messages, what waits in them, and who subscribes to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from popproto.v2 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.admin_pb2_grpc import AdminStub
from popserver.engine.clock import ManualClock
from popserver.model.group import LiteModel, NewGroup
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from tests.support.sessions import client
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, advance, opened, receive_request


@pytest.fixture(params=["sqlite", "postgres"])
async def wire_server(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[WireServer]:
    """Lite topic `a` has five messages, one each second, `b` has one; client `one` subscribes to `a`, `two` to both."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with opened(tmp_path, clock=clock, postgres_url=url, administered=True) as wire_server:
        await wire_server.broker.catalog.create_topic(NewTopic(Resource("", TOPIC.name), 2, (MessageType.LITE,)))
        await sync(wire_server, "one", "a")
        await sync(wire_server, "two", "a", "b")
        for number in range(5):
            await wire_server.send(a_message(f"a{number}", lite_topic="a"))
            await advance(wire_server, 1_000)
        await wire_server.send(a_message("b0", lite_topic="b"))
        yield wire_server


async def sync(wire_server: WireServer, client_id: str, *names: str) -> None:
    request = wire.SyncLiteSubscriptionRequest(topic=TOPIC, group=GROUP, lite_topic_set=names)
    answer = await wire_server.call("SyncLiteSubscription", request, client_id=client_id)
    assert answer.status.code == pb.OK, answer


def ask(wire_server: WireServer, method: str, **fields: Any) -> Awaitable[Any]:
    name = "ListMessage" if method == "QueryMessage" else method
    request = getattr(admin, f"{name}Request")(**fields)
    answer: Awaitable[Any] = getattr(AdminStub(wire_server.channel), method)(request)
    return answer


def found(answer: Any) -> list[str]:
    assert answer.status.code == pb.OK, answer.status
    return [each.system_properties.message_id for each in answer.messages]


async def test_the_messages_of_a_lite_topic_page_by_page(wire_server: WireServer, clock: ManualClock) -> None:
    every = await ask(wire_server, "QueryMessage", topic=TOPIC, lite_topic="a")
    assert found(every) == ["a0", "a1", "a2", "a3", "a4"]
    assert {each.system_properties.lite_topic for each in every.messages} == {"a"}
    first = await ask(wire_server, "QueryMessage", topic=TOPIC, lite_topic="a", page_size=2)
    second = await ask(wire_server, "QueryMessage", topic=TOPIC, lite_topic="a", page_size=2, scroll_id=first.scroll_id)
    third = await ask(wire_server, "QueryMessage", topic=TOPIC, lite_topic="a", page_size=2, page_num=3)
    assert [found(first), found(second), found(third)] == [["a0", "a1"], ["a2", "a3"], ["a4"]]
    assert not third.scroll_id
    begin_ms = clock.now_ms() - 2_000
    late = await ask(
        wire_server, "QueryMessage", topic=TOPIC, lite_topic="a", begin_timestamp={"seconds": begin_ms // 1_000}
    )
    assert found(late) == ["a3", "a4"]
    assert found(await ask(wire_server, "QueryMessage", topic=TOPIC, lite_topic="none")) == []
    both = [
        found(await ask(wire_server, "QueryMessage", topic=TOPIC, lite_topic="a", queue_id=each)) for each in (0, 1)
    ]
    assert sorted(map(len, both)) == [0, 5]


async def test_what_cannot_be_searched(wire_server: WireServer) -> None:
    refused = await ask(wire_server, "QueryMessage", topic=TOPIC, lite_topic="no/name")
    assert refused.status.code == pb.ILLEGAL_LITE_TOPIC
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", "plain"), 1))
    refused = await ask(wire_server, "QueryMessage", topic=pb.Resource(name="plain"), lite_topic="a")
    assert (refused.status.code, "has no lite topics" in refused.status.message) == (pb.BAD_REQUEST, True)


async def test_what_waits_in_a_lite_topic(wire_server: WireServer) -> None:
    frames = await wire_server.frames("ReceiveMessage", receive_request(batch_size=2), client_id="one")
    assert len([each for each in frames if each.HasField("message")]) == 2
    for topics in ([TOPIC], []):
        answer = await ask(wire_server, "DescribeGroupAccumulation", group=GROUP, topics=topics, lite_topic="a")
        assert answer.status.code == pb.OK, answer
        (counted,) = answer.lite_topic_accumulation.values()
        assert (counted.inflight_messages, counted.ready_messages, counted.accumulation) == (2, 3, 5)
        assert counted.deliver_delay_time.seconds == 3
        assert answer.accumulation.accumulation == 6
    assert not (await ask(wire_server, "DescribeGroupAccumulation", group=GROUP)).lite_topic_accumulation
    missing = await ask(wire_server, "DescribeGroupAccumulation", group=GROUP, topics=[TOPIC], lite_topic="none")
    assert (missing.status.code, "no lite topic 'none'" in missing.status.message) == (pb.NOT_FOUND, True)
    await wire_server.broker.catalog.create_group(NewGroup(Resource("", "idle")))
    unread = await ask(wire_server, "DescribeGroupAccumulation", group=pb.Resource(name="idle"), lite_topic="a")
    assert (unread.status.code, "none of its topics has lite topics" in unread.status.message) == (pb.BAD_REQUEST, True)


async def test_the_topic_of_a_lite_topic_is_found_among_many(
    wire_server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popserver.progress.accumulation.TOPICS_MAX", 1)
    mixed, catalog = Resource("", "mixed"), wire_server.broker.catalog
    for name in ("alpha", TOPIC.name):
        await catalog.subscription(mixed, Resource("", name))
    asked: dict[str, Any] = {"group": pb.Resource(name="mixed"), "lite_topic": "a"}
    answer = await ask(wire_server, "DescribeGroupAccumulation", **asked)
    assert (answer.status.code, list(answer.topic_accumulation)) == (pb.OK, ["alpha"])
    assert answer.lite_topic_accumulation["a"].ready_messages == 5
    await catalog.create_topic(NewTopic(Resource("", "zulu"), 1, (MessageType.LITE,)))
    await catalog.subscription(mixed, Resource("", "zulu"))
    for topics in ([], [TOPIC, pb.Resource(name="zulu")]):
        several = (await ask(wire_server, "DescribeGroupAccumulation", **asked, topics=topics)).status
        assert (several.code, "more than one of them, such as 'flights'" in several.message) == (pb.BAD_REQUEST, True)


def settings(kind: pb.ClientType.ValueType) -> wire.TelemetryCommand:
    entry = pb.SubscriptionEntry(topic=TOPIC, expression=pb.FilterExpression(type=pb.TAG, expression="*"))
    subscription = pb.Subscription(group=GROUP, subscriptions=[entry])
    return wire.TelemetryCommand(
        settings=pb.Settings(client_type=kind, subscription=subscription, user_agent=pb.UA(language=pb.JAVA))
    )


async def test_who_subscribes_to_a_lite_topic(wire_server: WireServer) -> None:
    push, simple = settings(pb.LITE_PUSH_CONSUMER), settings(pb.LITE_SIMPLE_CONSUMER)
    async with client(wire_server, "one", lambda _: None, push), client(wire_server, "two", lambda _: None, simple):
        every = await ask(wire_server, "ListConsumerConnection", group=GROUP)
        shown = [(each.client_id, each.message_model) for each in every.client_info]
        assert shown == [("one", admin.LITE_SELECTIVE), ("two", admin.LITE_SELECTIVE)]
        for name, expected in (("a", ["one", "two"]), ("b", ["two"]), ("c", [])):
            some = await ask(wire_server, "ListConsumerConnection", group=GROUP, topic=TOPIC, liteTopic=name)
            assert [each.client_id for each in some.client_info] == expected
        alone = await ask(wire_server, "ListConsumerConnection", group=GROUP, liteTopic="a")
        assert (alone.status.code, "and no topic" in alone.status.message) == (pb.BAD_REQUEST, True)
        for client_id, kind in (("one", "CONSUME_PASSIVELY"), ("two", "CONSUME_POP")):
            info = await ask(wire_server, "GetConsumerRunningInfo", group=GROUP, client_id=client_id)
            assert info.consumer_running_info.properties["PROP_CONSUME_TYPE"] == kind
        listed = await ask(wire_server, "DescribeSubscription", group=GROUP)
        assert {each.subscription_info.message_model for each in listed.client_subscription_info} == {
            admin.LITE_SELECTIVE
        }
    for asked in ({"group": GROUP}, {"topic": TOPIC}):
        stored = await ask(wire_server, "ListSubscription", **asked)
        assert [each.message_model for each in stored.subscription_info] == [admin.LITE_SELECTIVE]


async def test_a_group_whose_clients_get_all(wire_server: WireServer) -> None:
    wildcard = pb.Resource(name="every")
    await wire_server.broker.catalog.create_group(NewGroup(Resource("", "every"), lite=LiteModel.WILDCARD))
    command = settings(pb.LITE_PUSH_CONSUMER)
    command.settings.subscription.group.CopyFrom(wildcard)
    async with client(wire_server, "all", lambda _: None, command):
        some = await ask(wire_server, "ListConsumerConnection", group=wildcard, topic=TOPIC, liteTopic="a")
        assert [each.client_id for each in some.client_info] == ["all"]
