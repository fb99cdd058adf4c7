"""Delayed messages and their recall, over gRPC."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.engine.clock import ManualClock
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from popserver.transport import convert
from tests.support.wire_server import TOPIC, WireServer, a_message, opened

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
DELAY_MAX = 40 * DAY


@pytest.fixture
async def wire_server(tmp_path: Path, clock: ManualClock) -> AsyncIterator[WireServer]:
    async with opened(tmp_path, clock=clock) as opened_server:
        yield opened_server


def delayed(wire_server: WireServer, message_id: str = "m1", *, after_ms: int = MINUTE, **more: Any) -> pb.Message:
    message = a_message(message_id, **more)
    convert.set_ms(message.system_properties.delivery_timestamp, wire_server.broker.engine.clock.now_ms() + after_ms)
    return message


async def recall(wire_server: WireServer, handle: str, topic: pb.Resource = TOPIC) -> wire.RecallMessageResponse:
    answer: wire.RecallMessageResponse = await wire_server.call(
        "RecallMessage", wire.RecallMessageRequest(topic=topic, recall_handle=handle)
    )
    return answer


async def pass_(wire_server: WireServer, clock: ManualClock, by_ms: int) -> None:
    await clock.advance(by_ms, wire_server.broker.settle)


async def test_it_comes_to_the_millisecond(wire_server: WireServer, clock: ManualClock) -> None:
    (entry,) = (await wire_server.send(delayed(wire_server, after_ms=1_234, tag="A", keys=["k"]))).entries
    assert (entry.status.code, entry.message_id, entry.offset) == (pb.OK, "m1", 0)
    due_ms = clock.now_ms() + 1_234
    await pass_(wire_server, clock, 1_233)
    assert await wire_server.receive() == []
    await pass_(wire_server, clock, 1)
    (message,) = await wire_server.receive()
    system = message.system_properties
    assert (system.message_id, system.message_type, system.tag) == ("m1", pb.DELAY, "A")
    assert convert.duration_ms(system.delivery_timestamp) == due_ms
    assert convert.duration_ms(system.store_timestamp) == due_ms
    assert convert.duration_ms(system.born_timestamp) == due_ms - 1_234


@pytest.mark.row("A10")
async def test_a_waiting_poll_ends_when_it_is_due(wire_server: WireServer, clock: ManualClock) -> None:
    await wire_server.receive()
    poll = asyncio.create_task(wire_server.receive(poll_ms=60_000))
    await wire_server.send(delayed(wire_server, after_ms=5_000))
    await pass_(wire_server, clock, 4_999)
    assert not poll.done()
    await pass_(wire_server, clock, 1)
    (message,) = await poll
    assert message.system_properties.message_id == "m1"


@pytest.mark.user("U16")
async def test_a_delay_longer_than_any_hold_is_delivered_once(wire_server: WireServer, clock: ManualClock) -> None:
    await wire_server.send(delayed(wire_server, after_ms=20 * 60 * MINUTE))
    for _ in range(20):
        await pass_(wire_server, clock, 60 * MINUTE - 1)
        assert await wire_server.receive(invisible_ms=10_000) == []
    await pass_(wire_server, clock, 20)
    (message,) = await wire_server.receive(invisible_ms=10_000)
    assert message.system_properties.delivery_attempt == 1


@pytest.mark.parametrize("after_ms", [0, -1, -10 * DAY])
async def test_past_or_now_is_at_once(wire_server: WireServer, after_ms: int) -> None:
    (entry,) = (await wire_server.send(delayed(wire_server, after_ms=after_ms))).entries
    (message,) = await wire_server.receive()
    assert message.system_properties.message_type == pb.DELAY
    status = (await recall(wire_server, entry.recall_handle)).status
    assert (status.code, "only a message that is not due yet" in status.message) == (pb.PRECONDITION_FAILED, True)


@pytest.mark.user("U26")
async def test_forty_days_ahead_and_no_more(wire_server: WireServer) -> None:
    assert (await wire_server.send(delayed(wire_server, after_ms=DELAY_MAX))).status.code == pb.OK
    before = await wire_server.digest()
    status = (await wire_server.send(delayed(wire_server, "m2", after_ms=DELAY_MAX + 1))).status
    assert status.code == pb.ILLEGAL_DELIVERY_TIME
    for word in ("in 40 days 1 ms", "allowed: 40 days;", "--max-delay"):
        assert word in status.message
    assert await wire_server.digest() == before


async def test_each_message_has_its_own_outcome(wire_server: WireServer, clock: ManualClock) -> None:
    answer = await wire_server.send(
        delayed(wire_server, "late"),
        a_message("now"),
        delayed(wire_server, "never", after_ms=DELAY_MAX + 1),
        a_message("too"),
    )
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [pb.OK, pb.OK, pb.ILLEGAL_DELIVERY_TIME, pb.OK]
    assert [bool(entry.recall_handle) for entry in answer.entries] == [True, False, False, False]
    assert {each.system_properties.message_id for each in await wire_server.receive(invisible_ms=10 * MINUTE)} == {
        "now",
        "too",
    }
    await pass_(wire_server, clock, MINUTE)
    assert [each.system_properties.message_id for each in await wire_server.receive()] == ["late"]


async def test_a_repeated_send_is_stored_once(wire_server: WireServer, clock: ManualClock) -> None:
    late = delayed(wire_server)
    first = await wire_server.send(late)
    assert await wire_server.send(late) == first
    await pass_(wire_server, clock, MINUTE)
    first.entries[0].queue_id = 0  # it is in a queue now
    assert await wire_server.send(late) == first
    assert len(await wire_server.receive()) == 1


@pytest.mark.parametrize(
    "more", [{"message_group": "g"}, {"priority": 1}, {"message_type": pb.TRANSACTION}, {"lite_topic": "l"}], ids=str
)
async def test_a_time_excludes_what_else_makes_a_type(wire_server: WireServer, more: dict[str, Any]) -> None:
    before = await wire_server.digest()
    status = (await wire_server.send(delayed(wire_server, **more))).status
    assert status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "delivery_timestamp and" in status.message
    assert await wire_server.digest() == before


async def test_a_topic_that_takes_no_delayed_messages(wire_server: WireServer) -> None:
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", "plain"), 1, (MessageType.NORMAL,)))
    before = await wire_server.digest()
    status = (await wire_server.send(delayed(wire_server, topic=pb.Resource(name="plain")))).status
    assert status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "takes NORMAL messages, not DELAY ones" in status.message
    remedy = "; send to a topic that does, or change this one: popmq topic update plain --type NORMAL --type DELAY"
    assert status.message.endswith(remedy)
    assert await wire_server.digest() == before
    await wire_server.broker.catalog.update_topic(
        Resource("", "plain"), accepts=(MessageType.NORMAL, MessageType.DELAY)
    )
    assert (await wire_server.send(delayed(wire_server, topic=pb.Resource(name="plain")))).status.code == pb.OK


@pytest.mark.user("U26")
async def test_recall(wire_server: WireServer, clock: ManualClock) -> None:
    (entry,) = (await wire_server.send(delayed(wire_server))).entries
    words = base64.urlsafe_b64decode(entry.recall_handle).decode().split(" ")
    assert words == ["v1", "flights", "popmq", str(clock.now_ms() + MINUTE), "m1"]
    answer = await recall(wire_server, entry.recall_handle)
    assert (answer.status.code, answer.message_id) == (pb.OK, "m1")
    await pass_(wire_server, clock, MINUTE)
    assert await wire_server.receive() == []
    status = (await recall(wire_server, entry.recall_handle)).status
    assert (status.code, "recalled already" in status.message) == (pb.MESSAGE_NOT_FOUND, True)


def handle(*words: object) -> str:
    return base64.urlsafe_b64encode(" ".join(map(str, words)).encode()).decode()


BAD_HANDLES = [
    ("", pb.BAD_REQUEST, "malformed"),
    ("%%%", pb.BAD_REQUEST, "malformed"),
    ("ü", pb.BAD_REQUEST, "malformed"),
    ("A" * 3_000, pb.BAD_REQUEST, "3000 characters"),
    (base64.urlsafe_b64encode(b"\xff\xfe").decode(), pb.BAD_REQUEST, "malformed"),
    (handle("v1", "flights", "popmq", 1), pb.BAD_REQUEST, "malformed"),
    (handle("v2", "flights", "popmq", 1, "m"), pb.BAD_REQUEST, "'v2' instead of v1"),
    (handle("v1", "flights", "popmq", "soon", "m"), pb.BAD_REQUEST, "'soon' is not a delivery time"),
    (handle("v1", "flights", "popmq", "9" * 30, "m"), pb.BAD_REQUEST, "not a delivery time"),
    (handle("v1", "other", "popmq", 1, "m"), pb.BAD_REQUEST, "'other', not of 'flights'"),
    (handle("v1", "flights", "popmq", 1, "unknown"), pb.MESSAGE_NOT_FOUND, "'unknown'"),
    (handle("v1", "flights", "popmq", 1, "late"), pb.MESSAGE_NOT_FOUND, " ago: it was recalled already, or never sent"),
    (handle("v1", "flights", "popmq", 1, "plain"), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "not a delayed message"),
    (handle("v1", "flights", "popmq", 1, "half"), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "not a delayed message"),
    (handle("v1", "flights", "popmq", 1, "x" * 9_000), pb.BAD_REQUEST, "malformed"),
]


@pytest.mark.parametrize(("given", "code", "words"), BAD_HANDLES, ids=lambda value: str(value)[:20])
async def test_a_bad_recall_changes_nothing(
    wire_server: WireServer, given: str, code: pb.Code.ValueType, words: str
) -> None:
    await wire_server.send(
        delayed(wire_server, "late"), a_message("plain"), a_message("half", message_type=pb.TRANSACTION)
    )
    before = await wire_server.digest()
    answer = await recall(wire_server, given)
    assert (pb.Code.Name(answer.status.code), answer.status.code) == (pb.Code.Name(code), code)
    assert words in answer.status.message
    assert answer.message_id == ""
    assert await wire_server.digest() == before


async def test_a_recall_in_a_topic_that_is_not_there(wire_server: WireServer) -> None:
    before = await wire_server.digest()
    status = (await recall(wire_server, handle("v1", "nowhere", "b", 1, "m"), pb.Resource(name="nowhere"))).status
    assert status.code == pb.TOPIC_NOT_FOUND
    assert await wire_server.digest() == before


async def test_a_duration_counts_by_the_clock_of_the_server(wire_server: WireServer, clock: ManualClock) -> None:
    """The sender's own time of delivery, which is beside it for other servers, may be wrong by years."""
    message = delayed(wire_server, after_ms=400 * DAY)
    message.system_properties.delay.FromMilliseconds(1_234)
    (entry,) = (await wire_server.send(message)).entries
    due_ms = clock.now_ms() + 1_234
    assert (entry.status.code, entry.HasField("queue_id")) == (pb.OK, False)
    assert convert.duration_ms(entry.delivery_timestamp) == due_ms
    await pass_(wire_server, clock, 1_233)
    assert await wire_server.receive() == []
    await pass_(wire_server, clock, 1)
    (received,) = await wire_server.receive()
    assert convert.duration_ms(received.system_properties.delivery_timestamp) == due_ms


@pytest.mark.parametrize("seconds", [-1, 0])
async def test_a_duration_that_is_over_is_delivered_at_once(wire_server: WireServer, seconds: int) -> None:
    message = delayed(wire_server, after_ms=DAY)
    message.system_properties.delay.seconds = seconds
    (entry,) = (await wire_server.send(message)).entries
    assert (entry.status.code, entry.HasField("queue_id")) == (pb.OK, True)
    assert len(await wire_server.receive()) == 1


async def test_a_duration_has_the_limit_of_a_time(wire_server: WireServer) -> None:
    message = delayed(wire_server)
    message.system_properties.delay.seconds = (DELAY_MAX + DAY) // 1_000
    (entry,) = (await wire_server.send(message)).entries
    assert (entry.status.code, "41 days" in entry.status.message) == (pb.ILLEGAL_DELIVERY_TIME, True)
