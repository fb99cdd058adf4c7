"""The settings handshake for every kind of client, heartbeat, goodbye, and streams that come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.clients.telemetry_writer import TelemetryWriter
from popserver.engine.clock import ManualClock
from popserver.model.errors import StoreUnavailable
from popserver.model.group import NewGroup
from popserver.model.names import Resource
from popserver.model.retry import Exponential, RetryPolicy
from popserver.model.topic import MessageType, NewTopic
from popserver.transport.call import Encodable
from tests.support.wire_server import GROUP, LIMITS, TOPIC, VERSION, WireServer, a_message, opened

LADDER_S = [10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200]
CONSUMERS = [pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER, pb.PULL_CONSUMER]
ENDPOINTS = pb.Endpoints(scheme=pb.DOMAIN_NAME, addresses=[pb.Address(host="mq.example", port=8081)])


def producer(**parts: Any) -> pb.Settings:
    topics = parts.pop("topics", [TOPIC])
    return described(pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=topics), **parts))


def consumer(kind: pb.ClientType.ValueType = pb.PUSH_CONSUMER, **parts: Any) -> pb.Settings:
    group, topic = parts.pop("group", GROUP), parts.pop("topic", TOPIC)
    entry = pb.SubscriptionEntry(topic=topic, expression=parts.pop("expression", pb.FilterExpression(expression="A")))
    subscription = pb.Subscription(group=group, subscriptions=[entry])
    return described(pb.Settings(client_type=kind, subscription=subscription, **parts))


def described(settings: pb.Settings) -> pb.Settings:
    """With everything else that a client says of itself."""
    settings.access_point.CopyFrom(ENDPOINTS)
    settings.user_agent.CopyFrom(pb.UA(language=pb.PYTHON, version="5.1.2", platform="linux", hostname="host-1"))
    settings.request_timeout.seconds = 3
    return settings


def consumer_in(language: pb.Language.ValueType) -> pb.Settings:
    settings = consumer()
    settings.user_agent.language = language
    return settings


async def answer_to(wire_server: WireServer, settings: pb.Settings, **options: Any) -> wire.TelemetryCommand:
    async with wire_server.telemetry(**options) as stream:
        await stream.write(wire.TelemetryCommand(settings=settings))
        answer: wire.TelemetryCommand = await stream.read()
        return answer


async def test_a_producer_learns_how_to_send(wire_server: WireServer) -> None:
    answer = await answer_to(wire_server, producer())
    assert (answer.status.code, answer.WhichOneof("command")) == (pb.OK, "settings")
    settings = answer.settings
    assert settings.publishing.max_body_size == 4_194_304
    assert settings.publishing.validate_message_type
    assert settings.backoff_policy.max_attempts == 3
    backoff = settings.backoff_policy.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds(), backoff.multiplier) == (10, 1_000, 2.0)


async def test_a_producer_may_start_without_topics(wire_server: WireServer) -> None:
    settings = described(pb.Settings(client_type=pb.PRODUCER))
    answer = await answer_to(wire_server, settings)
    assert answer.status.code == pb.OK
    assert answer.settings.publishing.max_body_size == 4_194_304


@pytest.mark.row("L7")
@pytest.mark.parametrize("kind", CONSUMERS, ids=pb.ClientType.Name)
async def test_a_consumer_learns_how_to_receive(wire_server: WireServer, kind: pb.ClientType.ValueType) -> None:
    answer = await answer_to(wire_server, consumer(kind))
    assert (answer.status.code, answer.WhichOneof("command")) == (pb.OK, "settings")
    subscription, backoff = answer.settings.subscription, answer.settings.backoff_policy
    assert subscription.HasField("fifo")
    assert not subscription.fifo
    assert subscription.receive_batch_size == 32
    assert subscription.long_polling_timeout.seconds == 20
    assert backoff.max_attempts == 17
    assert [each.seconds for each in backoff.customized_backoff.next] == LADDER_S


@pytest.mark.row("L7")
async def test_the_ladder_is_the_groups(wire_server: WireServer) -> None:
    new = NewGroup(Resource("", GROUP.name), RetryPolicy(4, (1_500, 2_000)))
    await wire_server.broker.catalog.create_group(new)
    backoff = (await answer_to(wire_server, consumer())).settings.backoff_policy
    assert backoff.max_attempts == 4
    assert [each.ToMilliseconds() for each in backoff.customized_backoff.next] == [1_500, 2_000]


@pytest.mark.row("L7")
async def test_exponential_intervals_are_told_as_such(wire_server: WireServer) -> None:
    new = NewGroup(Resource("", GROUP.name), RetryPolicy(6, Exponential(1_500, 10_000, 1.5)))
    await wire_server.broker.catalog.create_group(new)
    told = (await answer_to(wire_server, consumer_in(pb.JAVA))).settings.backoff_policy
    assert told.max_attempts == 6
    assert told.WhichOneof("strategy") == "exponential_backoff"
    backoff = told.exponential_backoff
    assert (backoff.initial.ToMilliseconds(), backoff.max.ToMilliseconds(), backoff.multiplier) == (1_500, 10_000, 1.5)


@pytest.mark.row("L7")
@pytest.mark.parametrize("language", [pb.PYTHON, pb.NODE_JS], ids=["python", "node"])
async def test_some_official_clients_are_told_each_exponential_interval(
    wire_server: WireServer, language: pb.Language.ValueType
) -> None:
    """Python overlooks exponential ones, and of a list it reads whole seconds; Node takes their seconds for ms."""
    new = NewGroup(Resource("", GROUP.name), RetryPolicy(6, Exponential(1_500, 10_000, 2)))
    await wire_server.broker.catalog.create_group(new)
    told = (await answer_to(wire_server, consumer_in(language))).settings.backoff_policy
    assert [each.ToMilliseconds() for each in told.customized_backoff.next] == [2_000, 3_000, 6_000, *[10_000] * 3]


@pytest.mark.row("L7")
async def test_nodes_lite_consumer_is_told_an_interval_that_it_reads(wire_server: WireServer) -> None:
    """It retries by itself, takes seconds for ms, and forwards the first failure to the dead letters with a list."""
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", "sessions"), 1, (MessageType.LITE,)))
    await wire_server.broker.catalog.create_group(
        NewGroup(Resource("", GROUP.name), RetryPolicy(4, fifo_interval_ms=1_500))
    )
    entry = pb.FilterExpression(type=pb.TAG, expression="*")
    settings = consumer(pb.LITE_PUSH_CONSUMER, topic=pb.Resource(name="sessions"), expression=entry)
    settings.user_agent.language = pb.NODE_JS
    told = (await answer_to(wire_server, settings)).settings.backoff_policy
    assert told.max_attempts == 4
    assert told.WhichOneof("strategy") == "exponential_backoff"
    backoff = told.exponential_backoff
    assert (backoff.initial.seconds, backoff.max.seconds, backoff.multiplier) == (1_500, 1_500, 1)


@pytest.mark.parametrize("settings", [producer(), *map(consumer, CONSUMERS)], ids=lambda each: str(each.client_type))
async def test_everything_a_client_said_comes_back(wire_server: WireServer, settings: pb.Settings) -> None:
    settings.client_properties["team"] = "blue"
    answer = (await answer_to(wire_server, settings)).settings
    for field in ("client_type", "access_point", "request_timeout", "user_agent"):
        assert getattr(answer, field) == getattr(settings, field)
    assert answer.publishing.topics == settings.publishing.topics
    assert answer.subscription.group == settings.subscription.group
    assert answer.subscription.subscriptions == settings.subscription.subscriptions
    assert dict(answer.client_properties) == {"team": "blue"}
    assert answer.HasField("metric")
    assert not answer.metric.on


async def test_a_library_is_remembered_in_a_few_words(wire_server: WireServer) -> None:
    """A language of later, and a version that is no version."""
    settings = consumer()
    settings.user_agent.CopyFrom(pb.UA(language=99, version="5" * 1_000_000))  # type: ignore[arg-type]
    async with wire_server.telemetry(headers={"x-mq-client-id": "long"}) as stream:
        await stream.write(wire.TelemetryCommand(settings=settings))
        assert (await stream.read()).status.code == pb.OK
        (client,) = (each for each in wire_server.broker.sessions.clients.here() if each.client_id == "long")
        assert (client.language, client.version) == ("OTHER", "5" * 64)


async def test_the_namespace_comes_back_as_it_was_written(wire_server: WireServer) -> None:
    inside = pb.Resource(resource_namespace="north", name="t")
    settings = (await answer_to(wire_server, consumer(topic=inside), headers={"x-mq-namespace": "south"})).settings
    assert settings.subscription.subscriptions[0].topic == inside
    assert settings.subscription.group == GROUP


async def test_every_repetition_is_answered(wire_server: WireServer) -> None:
    async with wire_server.telemetry() as stream:
        for _ in range(3):
            await stream.write(wire.TelemetryCommand(settings=consumer()))
            assert (await stream.read()).status.code == pb.OK


async def test_our_own_client_learns_what_the_server_offers(wire_server: WireServer) -> None:
    settings = producer()
    settings.client_properties["popmq.client"] = "0.1.0"
    answer = (await answer_to(wire_server, settings)).settings
    assert dict(answer.client_properties) == {
        "popmq.client": "0.1.0",
        "popmq.server": VERSION,
        "popmq.capabilities": "admin,batch,legacy,lite,pull-batch,receive-batch,bulk,idempotency",
    }


def sql(expression: str) -> pb.FilterExpression:
    return pb.FilterExpression(type=pb.SQL, expression=expression)


FOREIGN_TYPE = pb.FilterExpression(expression="*")
FOREIGN_TYPE.type = 7  # type: ignore[assignment]


def with_properties(properties: dict[str, str]) -> pb.Settings:
    return producer(client_properties=properties)


BAD_SETTINGS = [
    ("no type", pb.Settings(), pb.UNRECOGNIZED_CLIENT_TYPE, "CLIENT_TYPE_UNSPECIFIED"),
    ("lite push", consumer(pb.LITE_PUSH_CONSUMER), pb.TOPIC_NOT_FOUND, "--type LITE"),
    ("lite simple", consumer(pb.LITE_SIMPLE_CONSUMER), pb.TOPIC_NOT_FOUND, "--type LITE"),
    ("consumer publishing", pb.Settings(client_type=pb.PUSH_CONSUMER), pb.BAD_REQUEST, "no subscription"),
    (
        "producer subscribing",
        pb.Settings(client_type=pb.PRODUCER, subscription=pb.Subscription()),
        pb.BAD_REQUEST,
        "publishing",
    ),
    ("publishing topic", producer(topics=[pb.Resource(name="a b")]), pb.ILLEGAL_TOPIC, "'a b'"),
    ("topic", consumer(topic=pb.Resource(name="a b")), pb.ILLEGAL_TOPIC, "'a b'"),
    ("group", consumer(group=pb.Resource(name="a b")), pb.ILLEGAL_CONSUMER_GROUP, "'a b'"),
    ("no group", consumer(group=pb.Resource()), pb.ILLEGAL_CONSUMER_GROUP, "blank"),
    ("33 properties", with_properties({f"k{n}": "" for n in range(33)}), pb.INVALID_CLIENT_PROPERTIES, "33 client"),
    ("property name", with_properties({"1k": ""}), pb.INVALID_CLIENT_PROPERTIES, "'1k'"),
    ("long name", with_properties({"k" * 65: ""}), pb.INVALID_CLIENT_PROPERTIES, "'kkk"),
    ("reserved name", with_properties({"rocketmq.x": ""}), pb.INVALID_CLIENT_PROPERTIES, "'rocketmq.x' is reserved"),
    ("long value", with_properties({"k": "v" * 257}), pb.INVALID_CLIENT_PROPERTIES, "257 characters, at most 256"),
    (
        "size",
        with_properties({f"k{n:02}": "v" * 200 for n in range(21)}),
        pb.INVALID_CLIENT_PROPERTIES,
        "4263 bytes together, at most 4096",
    ),
]


@pytest.mark.row("M17")
@pytest.mark.parametrize(("settings", "code", "words"), [pytest.param(*rest, id=name) for name, *rest in BAD_SETTINGS])
async def test_bad_settings_are_refused_and_end_the_stream(
    wire_server: WireServer, settings: pb.Settings, code: pb.Code.ValueType, words: str
) -> None:
    before = await wire_server.digest()
    refused = await refusal_of(wire_server, settings)
    assert pb.Code.Name(refused.code) == pb.Code.Name(code)
    assert words in refused.message
    assert await wire_server.digest() == before


async def refusal_of(
    wire_server: WireServer, settings: pb.Settings, ends: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT
) -> pb.Status:
    """The status that a command with nothing else carries; then the stream ends with `ends` and the same sentence."""
    async with wire_server.telemetry() as stream:
        await stream.write(wire.TelemetryCommand(settings=settings))
        answer = await asyncio.wait_for(stream.read(), 10)
        assert answer.WhichOneof("command") is None
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await asyncio.wait_for(stream.read(), 10)
        assert (ended.value.code(), ended.value.details()) == (ends, answer.status.message[:512])
        status: pb.Status = answer.status
        return status


async def test_settings_refused_later_end_the_stream_too(wire_server: WireServer) -> None:
    async with wire_server.telemetry() as stream:
        await shake_hands(stream)
        await stream.write(wire.TelemetryCommand(settings=consumer(group=pb.Resource(name="a b"))))
        assert (await stream.read()).status.code == pb.ILLEGAL_CONSUMER_GROUP
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await answer_to(wire_server, consumer())).status.code == pb.OK


async def test_a_long_sentence_is_cut_at_the_end_of_the_stream(wire_server: WireServer) -> None:
    """It travels in a header there; the command has all of it."""
    refused = await refusal_of(wire_server, producer(topics=[pb.Resource(name="é" * 100_000)]))
    assert refused.code == pb.ILLEGAL_TOPIC


async def test_a_refused_client_is_held_back(tmp_path: Path) -> None:
    """Some come back at once, for ever: the command tells them at once, the stream ends later."""
    async with (
        opened(tmp_path, limits=LIMITS._replace(stream_refusal_pause_ms=60_000)) as wire_server,
        wire_server.telemetry() as stream,
    ):
        await stream.write(wire.TelemetryCommand(settings=pb.Settings()))
        assert (await asyncio.wait_for(stream.read(), 10)).status.code == pb.UNRECOGNIZED_CLIENT_TYPE
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.read(), 0.1)


@pytest.mark.parametrize("agreed", [False, True], ids=["before", "after"])
async def test_a_failing_server_ends_no_agreed_stream(
    wire_server: WireServer, monkeypatch: pytest.MonkeyPatch, agreed: bool
) -> None:
    """Some clients never open another one, and what was agreed still holds. Before that, some wait for ever."""

    async def fail(*_: Any) -> Any:
        raise StoreUnavailable

    async with wire_server.telemetry() as stream:
        if agreed:
            await shake_hands(stream)
        with monkeypatch.context() as patch:
            patch.setattr(wire_server.broker.catalog, "group", fail)
            await stream.write(wire.TelemetryCommand(settings=consumer()))
            assert (await stream.read()).status.code == pb.INTERNAL_SERVER_ERROR
        if agreed:
            await shake_hands(stream)
        else:
            assert await stream.code() is grpc.StatusCode.INTERNAL


BAD_FILTERS = [
    ("||", pb.FilterExpression(expression="||"), pb.ILLEGAL_FILTER_EXPRESSION, "'||'"),
    ("SQL", sql("a >\n'x'"), pb.ILLEGAL_FILTER_EXPRESSION, "line 2, column 1"),
    ("no SQL", sql(""), pb.ILLEGAL_FILTER_EXPRESSION, "no condition"),
    ("type 7", FOREIGN_TYPE, pb.UNSUPPORTED, "filter type 7"),
]
bad_filters = pytest.mark.parametrize(
    ("expression", "code", "words"), [pytest.param(*rest, id=name) for name, *rest in BAD_FILTERS]
)


@bad_filters
async def test_a_bad_filter_is_refused_at_the_first_receive(
    wire_server: WireServer, expression: pb.FilterExpression, code: pb.Code.ValueType, words: str
) -> None:
    """As RocketMQ does, whose clients start with it."""
    async with wire_server.telemetry() as stream:
        await stream.write(wire.TelemetryCommand(settings=consumer(expression=expression)))
        assert (await stream.read()).status.code == pb.OK
        request = wire.ReceiveMessageRequest(
            group=GROUP, message_queue=pb.MessageQueue(topic=TOPIC), filter_expression=expression, batch_size=1
        )
        request.invisible_duration.seconds = 30
        (refused,) = await wire_server.statuses("ReceiveMessage", request)
        assert pb.Code.Name(refused.code) == pb.Code.Name(code)
        assert words in refused.message
        # The stream has not suffered.
        await shake_hands(stream)


@bad_filters
async def test_our_own_client_does_not_start_with_a_bad_filter(
    wire_server: WireServer, expression: pb.FilterExpression, code: pb.Code.ValueType, words: str
) -> None:
    settings = consumer(expression=expression, client_properties={"popmq.client": "0.1.0"})
    ends = grpc.StatusCode.UNIMPLEMENTED if code == pb.UNSUPPORTED else grpc.StatusCode.INVALID_ARGUMENT
    refused = await refusal_of(wire_server, settings, ends)
    assert pb.Code.Name(refused.code) == pb.Code.Name(code)
    assert words in refused.message


async def test_a_sql_filter_is_taken_as_it_was_sent(wire_server: WireServer) -> None:
    settings = (await answer_to(wire_server, consumer(expression=sql("a > 3 -- large ones")))).settings
    (entry,) = settings.subscription.subscriptions
    assert (entry.expression.type, entry.expression.expression) == (pb.SQL, "a > 3 -- large ones")


async def test_an_unknown_type_by_number(wire_server: WireServer) -> None:
    settings = consumer()
    settings.client_type = 99  # type: ignore[assignment]
    answer = await answer_to(wire_server, settings)
    assert answer.status.code == pb.UNRECOGNIZED_CLIENT_TYPE
    assert "client type 99" in answer.status.message


async def test_an_unknown_group_is_refused_in_the_stream(strict_wire_server: WireServer) -> None:
    refused = await refusal_of(strict_wire_server, consumer())
    assert refused.code == pb.CONSUMER_GROUP_NOT_FOUND
    assert "popmq group create counters" in refused.message


async def test_headers_come_before_the_first_frame(wire_server: WireServer) -> None:
    """One client waits for them before it says anything (protocol 3.1)."""
    async with wire_server.telemetry() as stream:
        await asyncio.wait_for(stream.initial_metadata(), 60)


async def test_results_of_commands_need_no_answer(wire_server: WireServer) -> None:
    async with wire_server.telemetry() as stream:
        await stream.write(wire.TelemetryCommand(thread_stack_trace=wire.ThreadStackTrace(nonce="n")))
        await stream.write(wire.TelemetryCommand(settings=producer()))
        assert (await stream.read()).HasField("settings")


async def test_half_close_is_answered_by_the_end(wire_server: WireServer) -> None:
    async with wire_server.telemetry() as stream:
        await stream.write(wire.TelemetryCommand(settings=producer()))
        await stream.done_writing()
        assert len([command async for command in stream]) == 1


@pytest.mark.parametrize("kind", [pb.PRODUCER, *CONSUMERS, pb.CLIENT_TYPE_UNSPECIFIED])
async def test_a_heartbeat_needs_no_settings(wire_server: WireServer, kind: pb.ClientType.ValueType) -> None:
    request = wire.HeartbeatRequest(client_type=kind, group=None if kind == pb.PRODUCER else GROUP)
    (status,) = await wire_server.statuses("Heartbeat", request)
    assert status.code == pb.OK


async def test_a_heartbeat_of_an_illegal_group(wire_server: WireServer) -> None:
    (status,) = await wire_server.statuses("Heartbeat", wire.HeartbeatRequest(group=pb.Resource(name="a b")))
    assert status.code == pb.ILLEGAL_CONSUMER_GROUP


@pytest.mark.parametrize("group", [None, pb.Resource(), GROUP])
async def test_goodbye_from_anybody_is_fine(wire_server: WireServer, group: pb.Resource | None) -> None:
    (status,) = await wire_server.statuses("NotifyClientTermination", wire.NotifyClientTerminationRequest(group=group))
    assert status.code == pb.OK


async def push_held(wire_server: WireServer) -> None:
    await wire_server.send(a_message())
    (message,) = await wire_server.receive(push=True)
    assert message.system_properties.delivery_attempt == 1


@pytest.mark.row("L11")
async def test_after_goodbye_its_messages_come_to_others_soon(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as wire_server:
        await push_held(wire_server)
        await wire_server.call("NotifyClientTermination", wire.NotifyClientTerminationRequest(group=GROUP))
        await clock.advance(1_001, wire_server.broker.settle)
        (again,) = await wire_server.receive(push=True)
        assert again.system_properties.delivery_attempt == 2


@pytest.mark.row("L15")
async def test_a_push_hold_lives_while_its_client_polls(tmp_path: Path) -> None:
    """No heartbeat, no renewal: an open poll is a sign of life."""
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as wire_server:
        await push_held(wire_server)
        for _ in range(10):
            poll = asyncio.create_task(wire_server.receive(push=True, poll_ms=20_000))
            while not wire_server.broker.engine.wakeups.parked:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            await clock.advance(20_000, wire_server.broker.settle)
            assert await poll == []


@pytest.mark.row("L15")
async def test_a_push_hold_ends_with_its_silent_client(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as wire_server:
        await push_held(wire_server)
        await clock.advance(30_000, wire_server.broker.settle)
        assert await wire_server.broker.engine.reader.read(lambda conn: conn.exec_driver_sql(HELD).scalar()) == 1
        await clock.advance(6_500, wire_server.broker.settle)
        assert await wire_server.broker.engine.reader.read(lambda conn: conn.exec_driver_sql(HELD).scalar()) == 0


@pytest.mark.row("L11")
async def test_what_is_granted_to_a_poll_after_its_clients_goodbye_comes_to_others(tmp_path: Path) -> None:
    """Nobody looks after a hold of a client that has left: it would last for the cap of 3 h."""
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as wire_server:
        poll = asyncio.create_task(wire_server.receive(push=True, poll_ms=20_000))
        while not wire_server.broker.engine.wakeups.parked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await wire_server.call("NotifyClientTermination", wire.NotifyClientTerminationRequest(group=GROUP))
        await wire_server.send(a_message())
        assert await poll == []
        await wire_server.broker.settle()
        (message,) = await wire_server.receive()
        assert message.system_properties.delivery_attempt == 1, "nobody ever got it"


HELD = "SELECT count(*) FROM delivery WHERE state = 'INFLIGHT'"


@pytest.mark.row("L11")
@pytest.mark.parametrize(("ends", "held"), [("older", 1), ("newest", 0)])
async def test_only_the_newest_stream_counts(tmp_path: Path, ends: str, held: int) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as wire_server, wire_server.telemetry() as older:
        await shake_hands(older)
        async with wire_server.telemetry() as newest:
            await shake_hands(newest)
            await push_held(wire_server)
            ending = {"older": older, "newest": newest}[ends]
            await ending.done_writing()
            assert await ending.read() is grpc.aio.EOF
            await clock.advance(5_000, wire_server.broker.settle)
            assert await wire_server.broker.engine.reader.read(lambda conn: conn.exec_driver_sql(HELD).scalar()) == held


async def shake_hands(stream: Any) -> None:
    await stream.write(wire.TelemetryCommand(settings=consumer()))
    assert (await stream.read()).status.code == pb.OK


async def test_an_idle_stream_gets_its_settings_again(tmp_path: Path) -> None:
    """A proxy ends a stream on which nothing goes, and the client would notice late."""
    async with (
        opened(tmp_path, limits=LIMITS._replace(stream_idle_ms=30)) as wire_server,
        wire_server.telemetry() as first,
        wire_server.telemetry("other") as never_agreed,
    ):
        await first.write(wire.TelemetryCommand(settings=consumer()))
        answer = await first.read()
        for _ in range(3):
            assert await first.read() == answer
        await never_agreed.write(wire.TelemetryCommand(settings=producer()))
        assert (await never_agreed.read()).settings.HasField("publishing")


async def test_a_stream_that_has_ended_gets_nothing_more() -> None:
    frames: asyncio.Queue[Encodable] = asyncio.Queue()
    writer = TelemetryWriter(frames.put, ConnectionError, idle_ms=20)
    await writer.write(wire.TelemetryCommand(settings=consumer()))
    assert await frames.get() == await frames.get()
    writer.close()
    await asyncio.sleep(0.1)
    assert frames.empty()
