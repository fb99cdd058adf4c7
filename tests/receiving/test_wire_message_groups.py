"""Message groups over gRPC: what push consumers are told, what they get, and receives that are repeated."""

from __future__ import annotations

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.model.names import Resource
from popserver.model.retry import FIFO_INTERVAL_MS
from popserver.model.topic import MessageType, NewTopic
from popserver.transport import convert
from tests.support.builders import a_message
from tests.support.receiving import push
from tests.support.wire_server import GROUP, TOPIC, WireServer

LATE_MS = 500


async def made(wire_server: WireServer, *accepts: MessageType) -> None:
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", TOPIC.name), 2, accepts))


async def sent(wire_server: WireServer, *groups: str) -> list[str]:
    """One message per name, of the message group of that name, in that order."""
    name = Resource("", TOPIC.name)
    batch = [a_message(name, message_type=MessageType.FIFO, message_group=each) for each in groups]
    assert all(not isinstance(each, Exception) for each in await wire_server.broker.send(batch))
    return [each.message_id for each in batch]


async def told(
    wire_server: WireServer,
    stream: object,
    *,
    ours: bool = False,
    client_type: int = pb.PUSH_CONSUMER,
    language: pb.Language.ValueType = pb.JAVA,
) -> pb.Settings:
    """The settings a consumer of the topic is told."""
    sent = pb.Settings(client_type=client_type, user_agent=pb.UA(language=language))  # type: ignore[arg-type]
    sent.subscription.group.CopyFrom(GROUP)
    sent.subscription.subscriptions.add().topic.CopyFrom(TOPIC)
    if ours:
        sent.client_properties["popmq.client"] = "1"
    await stream.write(wire.TelemetryCommand(settings=sent))  # type: ignore[attr-defined]
    answer = await stream.read()  # type: ignore[attr-defined]
    assert answer.status.code == pb.OK
    settings: pb.Settings = answer.settings
    return settings


def ids(messages: list[pb.Message]) -> list[str]:
    return [message.system_properties.message_id for message in messages]


@pytest.mark.row("K5")
async def test_who_was_told_to_work_in_order_gets_a_run_of_a_message_group(wire_server: WireServer) -> None:
    await made(wire_server, MessageType.FIFO)
    first = await sent(wire_server, "g", "g", "g")
    async with wire_server.telemetry("pusher") as stream:
        assert (await told(wire_server, stream)).subscription.fifo
        got = await push(wire_server)
        assert ids(got) == first
        assert {message.system_properties.message_group for message in got} == {"g"}
        assert {message.system_properties.message_type for message in got} == {pb.FIFO}


async def test_who_was_not_gets_one_message_of_a_group_at_a_time(wire_server: WireServer) -> None:
    await made(wire_server, MessageType.NORMAL, MessageType.FIFO)
    first, other, _ = await sent(wire_server, "g", "h", "g")
    async with wire_server.telemetry("pusher") as stream:
        assert not (await told(wire_server, stream)).subscription.fifo
        assert set(ids(await push(wire_server))) == {first, other}
        assert await push(wire_server) == []


@pytest.mark.parametrize("language", [pb.NODE_JS, pb.GOLANG], ids=["node", "go"])
async def test_who_cannot_retry_in_place_is_not_told_to(
    wire_server: WireServer, language: pb.Language.ValueType
) -> None:
    """In order the Node client gives a message up when it fails, and the Go client goes on with the one behind it."""
    await made(wire_server, MessageType.FIFO)
    first, _ = await sent(wire_server, "g", "g")
    async with wire_server.telemetry("pusher") as stream:
        assert not (await told(wire_server, stream, language=language)).subscription.fifo
        assert ids(await push(wire_server)) == [first]


async def test_our_own_client_works_in_order_on_a_topic_of_any_types(wire_server: WireServer) -> None:
    await made(wire_server, MessageType.NORMAL, MessageType.FIFO)
    async with wire_server.telemetry("pusher") as stream:
        assert (await told(wire_server, stream, ours=True)).subscription.fifo


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "official"])
async def test_a_consumer_of_a_missing_topic_is_told_as_of_the_one_that_its_first_use_creates(
    wire_server: WireServer, ours: bool
) -> None:
    """It learns its settings again only minutes later."""
    async with wire_server.telemetry("pusher") as stream:
        assert (await told(wire_server, stream, ours=ours)).subscription.fifo is ours
        assert await push(wire_server) == []
        first = await sent(wire_server, "g", "g", "g", "g", "g")
        assert ids(await push(wire_server)) == (first if ours else first[:1])


@pytest.mark.row("L6")
async def test_who_retries_in_place_is_told_one_interval(wire_server: WireServer) -> None:
    await made(wire_server, MessageType.FIFO)
    async with wire_server.telemetry("pusher") as stream:
        backoff = (await told(wire_server, stream)).backoff_policy
    assert backoff.max_attempts == 17
    assert [convert.duration_ms(each) for each in backoff.customized_backoff.next] == [FIFO_INTERVAL_MS] * 17


@pytest.mark.row("K9")
async def test_a_repeated_receive_gets_what_it_holds(wire_server: WireServer) -> None:
    await made(wire_server, MessageType.FIFO)
    await sent(wire_server, "g", "h")
    lost = await push(wire_server, attempt_id="a-1")
    again = await push(wire_server, attempt_id="a-1")
    assert [(each.system_properties.receipt_handle, each.system_properties.delivery_attempt) for each in again] == [
        (each.system_properties.receipt_handle, 1)
        for each in sorted(lost, key=lambda each: each.system_properties.queue_id)
    ]
    assert await push(wire_server, attempt_id="a-2") == []


@pytest.mark.row("K9")
async def test_what_was_acked_since_is_not_repeated(wire_server: WireServer) -> None:
    await made(wire_server, MessageType.NORMAL, MessageType.FIFO)
    await wire_server.broker.send([a_message(Resource("", TOPIC.name)) for _ in range(3)])
    lost = await push(wire_server, attempt_id="a-1")
    handle = lost[0].system_properties.receipt_handle
    assert await wire_server.broker.ack(Resource("", GROUP.name), Resource("", TOPIC.name), [handle]) == [None]
    assert ids(await push(wire_server, attempt_id="a-1")) == ids(lost[1:])


@pytest.mark.row("K9")
async def test_an_attempt_id_counts_in_its_own_group_and_topic_alone(wire_server: WireServer) -> None:
    """Clients number their receives as they like: another group's or topic's equal number is another receive."""
    elsewhere, others = pb.Resource(name="trains"), pb.Resource(name="auditors")
    for topic in (TOPIC, elsewhere):
        await wire_server.broker.catalog.create_topic(NewTopic(Resource("", topic.name), 1, (MessageType.NORMAL,)))
        await wire_server.broker.send([a_message(Resource("", topic.name)) for _ in range(2)])
    [first] = await push(wire_server, attempt_id="1", batch_size=1)
    in_topic = await push(wire_server, attempt_id="1", topic=elsewhere)
    in_group = await push(wire_server, attempt_id="1", group=others)
    assert [len(in_topic), len(in_group)] == [2, 2]
    assert {message.topic.name for message in in_topic} == {"trains"}
    for group, topic, messages in [
        (GROUP, TOPIC, [first]),
        (GROUP, elsewhere, in_topic),
        (others, TOPIC, in_group),
    ]:
        again = await push(wire_server, attempt_id="1", group=group, topic=topic)
        assert sorted(ids(again)) == sorted(ids(messages)), (group.name, topic.name)
        handles = [message.system_properties.receipt_handle for message in messages]
        names = Resource("", group.name), Resource("", topic.name)
        assert await wire_server.broker.ack(*names, handles) == [None] * len(handles)


@pytest.mark.parametrize("attempt_id", ["x" * 256, "a\x00b"])
async def test_an_attempt_id_that_cannot_be_kept_is_refused(wire_server: WireServer, attempt_id: str) -> None:
    request = wire.ReceiveMessageRequest(
        group=GROUP, message_queue=pb.MessageQueue(topic=TOPIC), batch_size=1, auto_renew=True, attempt_id=attempt_id
    )
    (refused,) = await wire_server.statuses("ReceiveMessage", request)
    assert refused.code == pb.BAD_REQUEST
    assert "attempt id" in refused.message


async def test_the_highest_priority_comes_first_among_what_is_ready(wire_server: WireServer) -> None:
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", TOPIC.name), 4, (MessageType.PRIORITY,)))
    name = Resource("", TOPIC.name)
    for priority in (0, 2, 1, 9, 3):
        await wire_server.broker.send([a_message(name, message_type=MessageType.PRIORITY, priority=priority)])
    got = [message.system_properties.priority for _ in range(5) for message in await push(wire_server, batch_size=1)]
    assert got == [9, 3, 2, 1, 0], "those of four and more share the last of the four queues"


async def test_the_first_receive_of_a_group_has_the_highest_priority_first(wire_server: WireServer) -> None:
    """A client may ask for all that there is at once."""
    name = Resource("", TOPIC.name)
    await wire_server.broker.catalog.create_topic(NewTopic(name, 4, (MessageType.PRIORITY,)))
    for priority in (0, 2, 1, 3):
        await wire_server.broker.send([a_message(name, message_type=MessageType.PRIORITY, priority=priority)])
    assert [message.system_properties.priority for message in await push(wire_server, batch_size=32)] == [3, 2, 1, 0]


async def test_what_is_urgent_does_not_starve_the_rest(wire_server: WireServer) -> None:
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", TOPIC.name), 4, (MessageType.PRIORITY,)))
    name = Resource("", TOPIC.name)
    for priority in (0, 9):
        batch = [a_message(name, message_type=MessageType.PRIORITY, priority=priority) for _ in range(20)]
        await wire_server.broker.send(batch)
    got = [message.system_properties.priority for _ in range(16) for message in await push(wire_server, batch_size=1)]
    assert len(got) == 16
    assert 1 <= got.count(0) <= 4, "most of them are urgent, not all"
