"""ReceiveMessage: frames, fields, every rule of the request, filters, holds."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any, cast

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.engine.clock import ManualClock
from popserver.services.clients import ClientServices
from popserver.transport import convert
from tests.support.receiving import FOREIGN_TYPE, FakeCaller, receive_batch, sql, tags
from tests.support.wire_server import GROUP, LIMITS, TOPIC, WireServer, a_message, opened, receive_request

GRANTED = "SELECT count(*) FROM delivery"


async def status_of(wire_server: WireServer, request: wire.ReceiveMessageRequest, **options: Any) -> pb.Status:
    (status,) = await wire_server.statuses("ReceiveMessage", request, **options)
    return status


async def test_the_frames_come_in_order(wire_server: WireServer) -> None:
    await wire_server.send(a_message("m1"), a_message("m2"))
    frames = await wire_server.frames("ReceiveMessage", receive_request())
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "message", "message", "delivery_timestamp"]
    assert frames[0].status.code == pb.OK


async def test_nothing_is_message_not_found(wire_server: WireServer) -> None:
    frames = await wire_server.frames("ReceiveMessage", receive_request())
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "delivery_timestamp"]
    assert frames[0].status.code == pb.MESSAGE_NOT_FOUND


async def test_a_refusal_ends_with_the_timestamp_too(wire_server: WireServer) -> None:
    frames = await wire_server.frames("ReceiveMessage", receive_request(batch_size=0))
    assert [frame.WhichOneof("content") for frame in frames] == ["status", "delivery_timestamp"]


async def test_a_message_comes_complete(wire_server: WireServer) -> None:
    body = bytes(range(256))
    sent = a_message(
        "0100112233445566778899AABBCCDDEEFF", body=body, tag="AA", keys=["k1", "k2"], born_host="host-1",
        trace_context="00-trace", user_properties={"origin": "JFK", "größe": "1"}, body_encoding=pb.GZIP,
    )  # fmt: skip
    convert.set_ms(sent.system_properties.born_timestamp, 1_360_281_600_123)
    await wire_server.send(sent)
    (received,) = await wire_server.receive()
    system = received.system_properties
    assert (received.topic, received.body, dict(received.user_properties)) == (TOPIC, body, dict(sent.user_properties))
    assert (system.message_id, system.tag, list(system.keys)) == (sent.system_properties.message_id, "AA", ["k1", "k2"])
    assert (system.born_host, system.trace_context) == ("host-1", "00-trace")
    assert system.born_timestamp.ToMilliseconds() == 1_360_281_600_123
    assert system.body_encoding == pb.GZIP
    assert system.message_type == pb.NORMAL
    assert system.body_digest.type == pb.MD5
    assert system.body_digest.checksum == hashlib.md5(body).hexdigest().upper()
    assert system.delivery_attempt == 1
    assert system.store_timestamp.ToMilliseconds() > 0
    assert system.store_host == f"127.0.0.1:{wire_server.server.port}"
    assert system.HasField("queue_offset")
    assert system.receipt_handle
    assert system.invisible_duration.ToMilliseconds() == 30_000
    assert not system.HasField("message_group")
    assert not system.HasField("dead_letter_queue")


async def test_what_was_not_sent_does_not_come(wire_server: WireServer) -> None:
    await wire_server.send(a_message())
    (received,) = await wire_server.receive()
    system: Any = received.system_properties
    absent = ["tag", "message_group", "delivery_timestamp", "trace_context", "lite_topic", "priority"]
    assert [field for field in absent if system.HasField(field)] == []
    assert system.born_timestamp.seconds > 1_600_000_000


ILLEGAL = [
    ("batch 0", {"batch_size": 0}, pb.BAD_REQUEST, ("batch size is 0", "1 to 32")),
    ("batch -1", {"batch_size": -1}, pb.BAD_REQUEST, ("batch size is -1",)),
    ("9,999 ms", {"invisible_ms": 9_999}, pb.ILLEGAL_INVISIBLE_TIME, ("too small: 9999 ms", "--min-invisible 9999ms")),
    ("0 ms", {"invisible_ms": 0}, pb.ILLEGAL_INVISIBLE_TIME, ("the invisibleTime is too small", "0 ms")),
    ("-1 s", {"invisible_ms": -1_000}, pb.ILLEGAL_INVISIBLE_TIME, ("the invisibleTime is too small", "-1000")),
    ("12 h", {"invisible_ms": 43_200_001}, pb.ILLEGAL_INVISIBLE_TIME, ("the invisibleTime is too large", "43200000")),
    ("eons", {"invisible_ms": 2**61}, pb.ILLEGAL_INVISIBLE_TIME, ("the invisibleTime is too large",)),
    ("SQL", {"expression": sql("a > '1'")}, pb.ILLEGAL_FILTER_EXPRESSION, ("SQL", "line 1, column 5", "^'1'")),
    ("no SQL", {"expression": sql("")}, pb.ILLEGAL_FILTER_EXPRESSION, ("SQL", "no condition")),
    ("endless SQL", {"expression": sql("a" * 16_385)}, pb.ILLEGAL_FILTER_EXPRESSION, ("16385 characters", "16384")),
    ("deep SQL", {"expression": sql("(" * 65)}, pb.ILLEGAL_FILTER_EXPRESSION, ("65 levels", "at most 64")),
    ("||", {"expression": tags("||")}, pb.ILLEGAL_FILTER_EXPRESSION, ("'||'", "names no tag")),
    ("endless", {"expression": tags("a" * 16_385)}, pb.ILLEGAL_FILTER_EXPRESSION, ("16385 characters", "16384")),
    ("no topic", {"topic": pb.Resource()}, pb.ILLEGAL_TOPIC, ("topic", "blank")),
    ("topic", {"topic": pb.Resource(name="a b")}, pb.ILLEGAL_TOPIC, ("'a b'",)),
    ("long topic", {"topic": pb.Resource(name="t" * 128)}, pb.ILLEGAL_TOPIC, ("128 characters",)),
    ("no group", {"group": pb.Resource()}, pb.ILLEGAL_CONSUMER_GROUP, ("group", "blank")),
    ("group", {"group": pb.Resource(name="a:b")}, pb.ILLEGAL_CONSUMER_GROUP, ("'a:b'",)),
    ("long group", {"group": pb.Resource(name="g" * 121)}, pb.ILLEGAL_CONSUMER_GROUP, ("121 characters", "120")),
    ("namespace", {"group": pb.Resource(resource_namespace="\x00", name="g")}, pb.ILLEGAL_CONSUMER_GROUP, ("'g'",)),
    ("system group", {"group": pb.Resource(name="CID_RMQ_SYS_x")}, pb.ILLEGAL_CONSUMER_GROUP, ("reserved",)),
]


@pytest.mark.row("L8")
@pytest.mark.parametrize(("wish", "code", "words"), [pytest.param(*rest, id=name) for name, *rest in ILLEGAL])
async def test_an_illegal_receive_changes_nothing(
    wire_server: WireServer, wish: dict[str, Any], code: pb.Code.ValueType, words: tuple[str, ...]
) -> None:
    await wire_server.send(a_message())
    await wire_server.receive(group=pb.Resource(name="someone"))
    await wire_server.broker.catalog.subscription(convert.resource(GROUP, ""), convert.resource(TOPIC, ""))
    before = await wire_server.digest()
    status = await status_of(wire_server, receive_request(**wish))
    assert (pb.Code.Name(status.code), status.code) == (pb.Code.Name(code), code)
    for word in words:
        assert word in status.message
    in_one_frame = (await receive_batch(wire_server, receive_request(**wish))).status
    assert (in_one_frame.code, in_one_frame.message.replace("1 to 128", "1 to 32")) == (status.code, status.message)
    assert await wire_server.digest() == before


@pytest.mark.row("M19")
async def test_filters_of_any_other_type_are_refused(wire_server: WireServer) -> None:
    await wire_server.send(a_message())
    before = await wire_server.digest()
    status = await status_of(wire_server, receive_request(expression=FOREIGN_TYPE))
    assert status.code == pb.UNSUPPORTED
    assert "filter type 7" in status.message
    assert "use a SQL expression" in status.message
    assert await wire_server.digest() == before


@pytest.mark.row("L8")
@pytest.mark.parametrize("invisible_ms", [10_000, 43_200_000])
async def test_at_the_limit_is_legal(wire_server: WireServer, invisible_ms: int) -> None:
    await wire_server.send(a_message())
    assert len(await wire_server.receive(invisible_ms=invisible_ms)) == 1


@pytest.mark.row("L8")
async def test_the_floor_can_be_lowered_for_development(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=LIMITS._replace(invisible_ms_min=1_000)) as wire_server:
        assert (await status_of(wire_server, receive_request(invisible_ms=1_000))).code == pb.MESSAGE_NOT_FOUND
        assert (await status_of(wire_server, receive_request(invisible_ms=999))).code == pb.ILLEGAL_INVISIBLE_TIME


async def test_a_missing_duration_is_refused_unless_the_server_renews(wire_server: WireServer) -> None:
    request = receive_request(push=True)
    assert (await status_of(wire_server, request)).code == pb.MESSAGE_NOT_FOUND
    request.auto_renew = False
    assert (await status_of(wire_server, request)).code == pb.ILLEGAL_INVISIBLE_TIME


async def test_a_batch_is_cut_to_32(wire_server: WireServer) -> None:
    await wire_server.send(*(a_message(f"m{number}") for number in range(40)))
    assert len(await wire_server.receive(batch_size=1_000)) == 32
    assert len(await wire_server.receive(batch_size=1_000)) == 8


@pytest.mark.parametrize("queue_id", [-1, 0, 3, 7_000])
async def test_any_queue_id_takes_from_all_queues(wire_server: WireServer, queue_id: int) -> None:
    await wire_server.send(*(a_message(f"m{number}") for number in range(16)))
    request = receive_request()
    request.message_queue.id = queue_id
    frames = await wire_server.frames("ReceiveMessage", request)
    assert sum(frame.HasField("message") for frame in frames) == 16


@pytest.mark.row("M2")
@pytest.mark.row("M3")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        pytest.param(tags("*"), ["", "A", "B", "C"], id="star"),
        pytest.param(tags(""), ["", "A", "B", "C"], id="empty"),
        pytest.param(pb.FilterExpression(), ["", "A", "B", "C"], id="missing"),
        pytest.param(tags("A"), ["A"], id="one"),
        pytest.param(tags(" A || C ||"), ["A", "C"], id="two"),
        pytest.param(tags("a"), [], id="other case"),
        pytest.param(tags("A || *"), ["A"], id="star among others"),
    ],
)
async def test_tags_choose(wire_server: WireServer, expression: pb.FilterExpression, expected: list[str]) -> None:
    await wire_server.send(*(a_message(f"m{tag}", tag=tag) for tag in "ABC"), a_message("m"))
    received = await wire_server.receive(expression=expression)
    assert sorted(each.system_properties.tag for each in received) == expected


@pytest.mark.row("M7")
async def test_a_sql_filter_reads_properties_and_the_tag(wire_server: WireServer) -> None:
    await wire_server.send(
        a_message("m1", tag="A", user_properties={"a": "4"}),
        a_message("m2", tag="B", user_properties={"a": "4"}),
        a_message("m3", tag="A", user_properties={"a": "x"}),
        a_message("m4", tag="A"),
    )
    (received,) = await wire_server.receive(expression=sql("a > 3 AND TAGS = 'A'"))
    assert received.system_properties.message_id == "m1"
    assert await wire_server.receive() == [], "what it refused is consumed"


@pytest.mark.row("M5")
async def test_colliding_tags_are_told_apart(wire_server: WireServer) -> None:
    await wire_server.send(a_message("m1", tag="Aa"), a_message("m2", tag="BB"))
    (received,) = await wire_server.receive(expression=tags("Aa"))
    assert received.system_properties.tag == "Aa"


@pytest.mark.row("N3")
async def test_unknown_names_are_made_where_the_server_may(wire_server: WireServer) -> None:
    assert (await status_of(wire_server, receive_request())).code == pb.MESSAGE_NOT_FOUND
    await wire_server.send(a_message())
    assert len(await wire_server.receive()) == 1


@pytest.mark.row("N3")
@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("QueryRoute", wire.QueryRouteRequest(topic=TOPIC)),
        ("SendMessage", wire.SendMessageRequest(messages=[a_message()])),
    ],
    ids=["QueryRoute", "SendMessage"],
)
async def test_an_unknown_topic_is_refused_with_the_command(
    strict_wire_server: WireServer, method: str, request_: Any
) -> None:
    before = await strict_wire_server.digest()
    (status,) = await strict_wire_server.statuses(method, request_)
    assert status.code == pb.TOPIC_NOT_FOUND
    assert "'flights' does not exist" in status.message
    assert "popmq topic create flights" in status.message
    assert await strict_wire_server.digest() == before


@pytest.mark.row("N3")
@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("ReceiveMessage", receive_request()),
        ("QueryAssignment", wire.QueryAssignmentRequest(topic=TOPIC, group=GROUP)),
        ("AckMessage", wire.AckMessageRequest(topic=TOPIC, group=GROUP, entries=[wire.AckMessageEntry()])),
        ("ChangeInvisibleDuration", wire.ChangeInvisibleDurationRequest(topic=TOPIC, group=GROUP)),
        ("ForwardMessageToDeadLetterQueue", wire.ForwardMessageToDeadLetterQueueRequest(topic=TOPIC, group=GROUP)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_unknown_group_is_refused_with_the_command(
    strict_wire_server: WireServer, method: str, request_: Any
) -> None:
    before = await strict_wire_server.digest()
    (status,) = await strict_wire_server.statuses(method, request_)
    assert status.code == pb.CONSUMER_GROUP_NOT_FOUND
    assert "popmq group create counters" in status.message
    assert await strict_wire_server.digest() == before


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("AckMessage", wire.AckMessageRequest(topic=TOPIC, group=GROUP, entries=[wire.AckMessageEntry()])),
        ("ChangeInvisibleDuration", wire.ChangeInvisibleDurationRequest(topic=TOPIC, group=GROUP)),
        ("ForwardMessageToDeadLetterQueue", wire.ForwardMessageToDeadLetterQueueRequest(topic=TOPIC, group=GROUP)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_answer_to_a_delivery_makes_no_group(wire_server: WireServer, method: str, request_: Any) -> None:
    """Not even where the server may: what does not exist holds nothing."""
    before = await wire_server.digest()
    (status,) = await wire_server.statuses(method, request_)
    assert status.code == pb.CONSUMER_GROUP_NOT_FOUND
    assert await wire_server.digest() == before


@pytest.mark.row("G7")
async def test_namespaces_do_not_meet(wire_server: WireServer) -> None:
    """In the resource or in the header: some clients name it only there."""
    inside = pb.Resource(resource_namespace="north", name=TOPIC.name)
    await wire_server.send(a_message("of none"))
    await wire_server.send(a_message("of north", topic=inside))
    frames = await wire_server.frames("ReceiveMessage", receive_request(), headers={"x-mq-namespace": "north"})
    (received,) = [frame.message for frame in frames if frame.HasField("message")]
    assert received.system_properties.message_id == "of north"
    assert received.topic == TOPIC, "the topic comes back as it was named"
    (other,) = await wire_server.receive()
    assert other.system_properties.message_id == "of none"
    group = pb.Resource(resource_namespace="north", name=GROUP.name)
    ack = wire.AckMessageRequest(group=group, topic=inside)
    ack.entries.add(receipt_handle=received.system_properties.receipt_handle)
    assert (await wire_server.call("AckMessage", ack)).status.code == pb.OK


@pytest.mark.row("A1")
async def test_nobody_is_sent_what_he_did_not_ask_for(wire_server: WireServer) -> None:
    for start in range(0, 10_000, 125):
        await wire_server.send(*(a_message(f"m{number}") for number in range(start, start + 125)))
    async with wire_server.telemetry() as stream:
        subscription = pb.Subscription(group=GROUP, subscriptions=[pb.SubscriptionEntry(topic=TOPIC)])
        settings = pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=subscription)
        await stream.write(wire.TelemetryCommand(settings=settings))
        assert (await stream.read()).HasField("settings")
        await wire_server.call("Heartbeat", wire.HeartbeatRequest(group=GROUP, client_type=pb.PUSH_CONSUMER))
        # The stream's next word is the answer to the next settings, and not one message has left the queues.
        await stream.write(wire.TelemetryCommand(settings=settings))
        assert (await stream.read()).HasField("settings")
    assert await wire_server.broker.engine.reader.read(lambda conn: conn.exec_driver_sql(GRANTED).scalar()) == 0
    assert len(await wire_server.receive()) == 32
    assert await wire_server.broker.engine.reader.read(lambda conn: conn.exec_driver_sql(GRANTED).scalar()) == 32


@pytest.mark.user("U11")
async def test_a_batch_that_could_not_be_written_comes_again_soon(tmp_path: Path) -> None:
    """The client goes while its messages are being written: all are Ready after a second, it never looks at a part."""
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as wire_server:
        await wire_server.send(*(a_message(f"m{number}") for number in range(5)))
        written: list[Any] = []

        async def write(frame: Any) -> None:
            if len(written) == 3:
                raise asyncio.CancelledError
            written.append(frame)

        room = ClientServices(wire_server.broker, LIMITS, "", "host", pb.Endpoints()).receives
        with pytest.raises(asyncio.CancelledError):
            await room.receive_message(receive_request(), cast("Any", FakeCaller()), write)
        assert [frame.WhichOneof("content") for frame in written] == ["status", "message", "message"]
        await wire_server.broker.settle()
        assert await wire_server.receive() == []
        await clock.advance(1_000, wire_server.broker.settle)
        again = await wire_server.receive()
        assert {each.system_properties.message_id for each in again} == {f"m{number}" for number in range(5)}
