"""apache.rocketmq.v2.Admin about consumers: who subscribes to what, who is connected, what a consumer is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from popproto.v2 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.admin_pb2_grpc import AdminStub
from popserver.engine.clock import ManualClock
from popserver.model.names import Resource
from tests.support.sessions import Answer, client, traces, tried
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, advance, handle_of, opened

OTHER = pb.Resource(name="trains")
SQL = pb.FilterExpression(type=pb.SQL, expression="a > 3")


@pytest.fixture(params=["sqlite", "postgres"])
async def wire_server(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[WireServer]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with opened(tmp_path, clock=clock, postgres_url=url, administered=True) as opened_server:
        yield opened_server


def ask(wire_server: WireServer, method: str, **fields: Any) -> Awaitable[Any]:
    request = getattr(admin, f"{method}Request")(**fields)
    answer: Awaitable[Any] = getattr(AdminStub(wire_server.channel), method)(request)
    return answer


def settings(
    *topics: pb.Resource, expression: pb.FilterExpression | None = None, kind: int = pb.PUSH_CONSUMER, **more: Any
) -> wire.TelemetryCommand:
    entries = [
        pb.SubscriptionEntry(topic=each, expression=expression or pb.FilterExpression(type=pb.TAG, expression="*"))
        for each in topics
    ]
    agent = pb.UA(language=pb.JAVA, version="5.2.0", hostname="app-7")
    subscription = pb.Subscription(group=GROUP, subscriptions=entries)
    return wire.TelemetryCommand(
        settings=pb.Settings(client_type=kind, subscription=subscription, user_agent=agent, **more)  # type: ignore[arg-type]
    )


@asynccontextmanager
async def consumer(
    wire_server: WireServer, client_id: str = "c1", answer: Answer = lambda _: None, told: Any = None
) -> AsyncIterator[list[wire.TelemetryCommand]]:
    async with client(wire_server, client_id, answer, told or settings(TOPIC)) as asked:
        yield asked


async def subscribed(wire_server: WireServer, *topics: pb.Resource, group: pb.Resource = GROUP) -> None:
    for each in topics:
        await wire_server.broker.catalog.subscription(Resource("", group.name), Resource("", each.name))


def shown(answer: Any) -> list[tuple[str, str, str, bool]]:
    assert answer.status.code == pb.OK, answer.status
    return [
        (each.group.name, each.topic.name, each.expression.expression, each.online) for each in answer.subscription_info
    ]


async def test_subscriptions_of_a_group_and_of_a_topic(wire_server: WireServer) -> None:
    await subscribed(wire_server, TOPIC, OTHER)
    await subscribed(wire_server, TOPIC, group=pb.Resource(name="auditors"))
    async with consumer(wire_server):
        of_group = await ask(wire_server, "ListSubscription", group=GROUP)
        assert shown(of_group) == [("counters", "flights", "*", True), ("counters", "trains", "", False)]
        first, second = of_group.subscription_info
        assert (first.message_model, second.message_model) == (admin.CLUSTERING, admin.CLUSTERING)
        assert first.subscription_consistency
        assert first.last_update_timestamp.ToMilliseconds() == wire_server.broker.engine.clock.now_ms()
        assert not second.HasField("last_update_timestamp")
        of_topic = await ask(wire_server, "ListSubscription", topic=TOPIC)
        assert shown(of_topic) == [("auditors", "flights", "", False), ("counters", "flights", "*", True)]
        both = await ask(wire_server, "ListSubscription", topic=OTHER, group=GROUP)
        assert shown(both) == [("counters", "trains", "", False)]
    nothing = await ask(wire_server, "ListSubscription", topic=OTHER, group=pb.Resource(name="auditors"))
    assert shown(nothing) == []


async def test_a_consumer_that_has_received_nothing_yet_is_listed(wire_server: WireServer) -> None:
    await wire_server.send(a_message("m1"))
    async with consumer(wire_server):
        for wish in ({"group": GROUP}, {"topic": TOPIC}, {"group": GROUP, "topic": TOPIC}):
            assert shown(await ask(wire_server, "ListSubscription", **wish)) == [("counters", "flights", "*", True)]


async def test_subscriptions_that_differ_are_told(wire_server: WireServer) -> None:
    async with consumer(wire_server, "c1"), consumer(wire_server, "c2", told=settings(TOPIC, expression=SQL)):
        await wire_server.broker.catalog.topic(Resource("", TOPIC.name))
        (info,) = (await ask(wire_server, "ListSubscription", group=GROUP)).subscription_info
        assert not info.subscription_consistency
        answer = await ask(wire_server, "DescribeSubscription", group=GROUP)
        assert [
            (each.client_info.client_id, each.subscription_info.expression, each.subscription_info.online)
            for each in answer.client_subscription_info
        ] == [("c1", pb.FilterExpression(type=pb.TAG, expression="*"), True), ("c2", SQL, True)]
        assert not answer.client_subscription_info[0].subscription_info.subscription_consistency


async def test_clients_tell_their_library_and_where_they_are(wire_server: WireServer) -> None:
    await subscribed(wire_server, TOPIC, OTHER)
    async with consumer(wire_server, "c1"), consumer(wire_server, "c2", told=settings(TOPIC, OTHER)):
        answer = await ask(wire_server, "ListConsumerConnection", group=GROUP)
        assert answer.client_info[0] == admin.ClientInfo(
            client_id="c1",
            version="5.2.0",
            language="JAVA",
            hostname="app-7",
            egress_ip="127.0.0.1",
            message_model=admin.CLUSTERING,
        )
        of_topic = await ask(wire_server, "ListConsumerConnection", group=GROUP, topic=OTHER)
        assert [each.client_id for each in of_topic.client_info] == ["c2"]
    await advance(wire_server, 2_000)
    assert not (await ask(wire_server, "ListConsumerConnection", group=GROUP)).client_info


async def test_lists_have_a_limit(wire_server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("subscriptions", "consumers"):
        monkeypatch.setattr(f"popserver.rocketmq_admin.{module}.LISTED_MAX", 1)
    await subscribed(wire_server, TOPIC, OTHER)
    async with consumer(wire_server, "c1", told=settings(TOPIC, OTHER)), consumer(wire_server, "c2"):
        for method, entries in (
            ("ListSubscription", "subscription_info"),
            ("DescribeSubscription", "client_subscription_info"),
            ("ListConsumerConnection", "client_info"),
        ):
            answer = await ask(wire_server, method, group=GROUP)
            assert len(getattr(answer, entries)) == 1
            assert answer.status.message.startswith("only the first 1 ")


async def test_what_a_consumer_runs_with(wire_server: WireServer) -> None:
    async with consumer(wire_server, told=settings(TOPIC, OTHER, expression=SQL)):
        answer = await ask(wire_server, "GetConsumerRunningInfo", group=GROUP, client_id="c1")
    info = answer.consumer_running_info
    assert info.properties == {
        "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
        "PROP_CLIENT_VERSION": "5.2.0",
        "PROP_CONSUMEORDERLY": "false",
    }
    assert dict(info.subscriptions) == {"flights": SQL, "trains": SQL}
    assert (len(info.message_queue_table), len(info.consume_status_table)) == (0, 0)


async def test_the_queues_of_a_member(wire_server: WireServer) -> None:
    await wire_server.broker.catalog.topic(Resource("", TOPIC.name))
    pull = settings(TOPIC, kind=pb.PULL_CONSUMER)
    async with consumer(wire_server, "c1", told=pull), consumer(wire_server, "c2", told=pull):
        offset = wire.UpdateOffsetRequest(group=GROUP, message_queue=pb.MessageQueue(topic=TOPIC, id=1), offset=0)
        assert (await wire_server.call("UpdateOffset", offset, client_id="c1")).status.code == pb.OK
        answer = await ask(wire_server, "GetConsumerRunningInfo", group=GROUP, client_id="c1")
    table = answer.consumer_running_info.message_queue_table
    assert [(each.message_queue.topic.name, each.message_queue.id) for each in table] == [
        ("flights", number) for number in range(4)
    ]
    assert {each.process_queue_info.commit_offset for each in table} == {0}
    assert answer.consumer_running_info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"


async def test_a_consumer_is_asked_for_its_threads(wire_server: WireServer) -> None:
    async with consumer(wire_server, answer=traces("at main")):
        for wish in ({}, {"group": GROUP}):
            answer = await ask(wire_server, "PrintThreadStackTrace", client_id="c1", **wish)
            assert (answer.status.code, answer.thread_stack_trace) == (pb.OK, "at main")


@pytest.mark.parametrize(
    ("said", "code", "sentence"),
    [
        (pb.OK, pb.OK, "because"),
        (pb.FAILED_TO_CONSUME_MESSAGE, pb.FAILED_TO_CONSUME_MESSAGE, "because"),
        (pb.NOT_IMPLEMENTED, pb.NOT_IMPLEMENTED, "because"),
        # What could be a refusal of the server is told as what the client says.
        (pb.FORBIDDEN, pb.FAILED_TO_CONSUME_MESSAGE, "the client says FORBIDDEN: because"),
    ],
)
async def test_a_message_is_tried_by_a_consumer(wire_server: WireServer, said: Any, code: int, sentence: str) -> None:
    await wire_server.send(a_message("m1"))
    async with consumer(wire_server, answer=tried(said, "because")):
        wish = {"client_id": "c1", "group": GROUP, "topic": TOPIC, "message_id": "m1"}
        status = (await ask(wire_server, "VerifyMessage", **wish)).status
    assert (status.code, status.message) == (code, sentence)


async def test_a_subscription_in_use_is_not_deleted(wire_server: WireServer) -> None:
    await subscribed(wire_server, TOPIC)
    async with consumer(wire_server):
        before = await wire_server.digest()
        status = (await ask(wire_server, "DeleteSubscription", group=GROUP, topic=TOPIC)).status
        assert status.code == pb.BAD_REQUEST
        assert "such as c1, 1 in all; stop them" in status.message
        assert await wire_server.digest() == before
        assert (
            await ask(wire_server, "DeleteSubscription", group=GROUP, topic=OTHER)
        ).status.code == pb.TOPIC_NOT_FOUND


async def test_every_topic_of_a_long_subscription_counts(wire_server: WireServer) -> None:
    """Only the first 64 topics are kept as text; this topic is the last of 65."""
    last, many = pb.Resource(name="z"), [pb.Resource(name=f"t{number:02}") for number in range(64)]
    await subscribed(wire_server, last)
    async with consumer(wire_server, told=settings(*many, last, expression=SQL)):
        status = (await ask(wire_server, "DeleteSubscription", group=GROUP, topic=last)).status
        assert (status.code, "such as c1, 1 in all" in status.message) == (pb.BAD_REQUEST, True)
        of_both = await ask(wire_server, "ListSubscription", group=GROUP, topic=last)
        assert shown(of_both) == [("counters", "z", "a > 3", True)]
        of_group = await ask(wire_server, "ListSubscription", group=GROUP)
        assert {topic: online for _, topic, _, online in shown(of_group)}["z"]
        clients = await ask(wire_server, "ListConsumerConnection", group=GROUP, topic=last)
        assert [each.client_id for each in clients.client_info] == ["c1"]
        described = await ask(wire_server, "DescribeSubscription", group=GROUP, topic=last)
        assert [each.subscription_info.expression for each in described.client_subscription_info] == [SQL]
        every = await ask(wire_server, "DescribeSubscription", group=GROUP)
        assert len(every.client_subscription_info) == 64


async def test_a_message_that_waits_for_its_retry_is_in_flight(wire_server: WireServer) -> None:
    await wire_server.send(a_message("m1"), a_message("m2"))
    failed, _ = await wire_server.receive(push=True)
    change = wire.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle=handle_of(failed))
    change.invisible_duration.seconds = 10
    assert (await wire_server.call("ChangeInvisibleDuration", change)).status.code == pb.OK
    lag = await wire_server.broker.progress().lag(Resource("", GROUP.name), None)
    assert sum(each.waiting_retry for each in lag[0]) == 1
    answer = await ask(wire_server, "DescribeGroupAccumulation", group=GROUP)
    counted = answer.accumulation
    assert (counted.inflight_messages, counted.ready_messages, counted.accumulation) == (2, 0, 2)
    assert not counted.HasField("deliver_delay_time")


@pytest.mark.parametrize(
    ("method", "fields", "code", "words"),
    [
        ("ListSubscription", {}, pb.BAD_REQUEST, "neither a topic nor a group"),
        ("ListSubscription", {"group": {"name": "nobody"}}, pb.CONSUMER_GROUP_NOT_FOUND, "'nobody'"),
        ("ListSubscription", {"topic": {"name": "nowhere"}}, pb.TOPIC_NOT_FOUND, "'nowhere'"),
        ("ListSubscription", {"topic": {"name": "a b"}}, pb.ILLEGAL_TOPIC, "'a b'"),
        ("DescribeSubscription", {}, pb.BAD_REQUEST, "neither a topic nor a group"),
        ("DescribeSubscription", {"group": {"name": "nobody"}}, pb.CONSUMER_GROUP_NOT_FOUND, "'nobody'"),
        ("ListConsumerConnection", {}, pb.ILLEGAL_CONSUMER_GROUP, "blank"),
        ("ListConsumerConnection", {"group": {"name": "nobody"}}, pb.CONSUMER_GROUP_NOT_FOUND, "'nobody'"),
        ("GetConsumerRunningInfo", {}, pb.BAD_REQUEST, "names no client"),
        ("GetConsumerRunningInfo", {"client_id": "ghost"}, pb.NOT_FOUND, "client 'ghost' is no consumer"),
        ("PrintThreadStackTrace", {}, pb.BAD_REQUEST, "names no client"),
        ("PrintThreadStackTrace", {"client_id": "ghost"}, pb.NOT_FOUND, "client 'ghost' has no session"),
        (
            "PrintThreadStackTrace",
            {"client_id": "c1", "group": {"name": "others"}},
            pb.NOT_FOUND,
            "no consumer of group 'others'",
        ),
        ("VerifyMessage", {"client_id": "c1"}, pb.ILLEGAL_MESSAGE_ID, "blank"),
        ("VerifyMessage", {"client_id": "c1", "message_id": "no such"}, pb.MESSAGE_NOT_FOUND, "no such"),
    ],
)
async def test_bad_input(wire_server: WireServer, method: str, fields: Any, code: int, words: str) -> None:
    async with consumer(wire_server):
        status = (await ask(wire_server, method, **fields)).status
    assert (status.code, words in status.message) == (code, True), status


async def test_two_lists_at_once(wire_server: WireServer) -> None:
    await subscribed(wire_server, TOPIC)
    answers = await asyncio.gather(*(ask(wire_server, "ListSubscription", topic=TOPIC) for _ in range(20)))
    assert {len(each.subscription_info) for each in answers} == {1}
