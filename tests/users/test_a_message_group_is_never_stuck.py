"""U11: the head of a message group in nobody's hands must not stop its group for hours; nor may a lost answer."""

from __future__ import annotations

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
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, opened

SECOND = 1_000


@pytest.fixture(params=["sqlite", "postgres"])
async def wire_server(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[WireServer]:
    """With three messages of one group."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with opened(tmp_path, clock=clock, postgres_url=url) as opened_server:
        new = NewTopic(Resource("", TOPIC.name), 2, (MessageType.FIFO,))
        await opened_server.broker.catalog.create_topic(new)
        await send(opened_server, "m1", "m2", "m3")
        yield opened_server


async def send(wire_server: WireServer, *message_ids: str) -> None:
    answer = await wire_server.send(*(a_message(each, message_group="g") for each in message_ids))
    assert answer.status.code == pb.OK


async def push(wire_server: WireServer, client_id: str, attempt_id: str = "") -> list[pb.Message]:
    """What a push consumer gets that does not wait."""
    request = wire.ReceiveMessageRequest(
        group=GROUP, message_queue=pb.MessageQueue(topic=TOPIC), batch_size=32, auto_renew=True, attempt_id=attempt_id
    )
    convert.set_ms(request.long_polling_timeout, 0)
    frames = await wire_server.frames("ReceiveMessage", request, client_id=client_id)
    return [frame.message for frame in frames if frame.HasField("message")]


async def join(stream: Any) -> None:
    """Say that one is a push consumer which works in order."""
    settings = pb.Settings(client_type=pb.PUSH_CONSUMER)
    settings.subscription.group.CopyFrom(GROUP)
    settings.subscription.subscriptions.add().topic.CopyFrom(TOPIC)
    await stream.write(wire.TelemetryCommand(settings=settings))
    answer = await stream.read()
    assert answer.settings.subscription.fifo


def ids(messages: list[pb.Message]) -> list[str]:
    return [each.system_properties.message_id for each in messages]


def attempts(messages: list[pb.Message]) -> list[int]:
    return [each.system_properties.delivery_attempt for each in messages]


@pytest.mark.user("U11")
@pytest.mark.row("L15")
@pytest.mark.parametrize(
    ("end", "within_s"), [("its stream breaks", 2), ("it falls silent", 36), ("it says goodbye", 1)]
)
async def test_when_its_holder_is_gone_another_goes_on(
    wire_server: WireServer, clock: ManualClock, end: str, within_s: int
) -> None:
    async with wire_server.telemetry("gone") as stream:
        await join(stream)
        assert ids(await push(wire_server, "gone")) == ["m1", "m2", "m3"]
        if end == "it says goodbye":
            await wire_server.call(
                "NotifyClientTermination", wire.NotifyClientTerminationRequest(group=GROUP), client_id="gone"
            )
        elif end == "its stream breaks":
            await stream.done_writing()
            assert not await stream.read()
        async with wire_server.telemetry("heir") as heir:
            await join(heir)
            await clock.advance(within_s * SECOND - 1, wire_server.broker.settle)
            assert await push(wire_server, "heir") == []
            await clock.advance(1, wire_server.broker.settle)
            again = await push(wire_server, "heir")
    assert ids(again) == ["m1", "m2", "m3"]
    assert attempts(again) == [2, 2, 2]


@pytest.mark.user("U11")
@pytest.mark.row("K9")
async def test_after_a_lost_answer_the_same_attempt_gets_the_same_messages(wire_server: WireServer) -> None:
    async with wire_server.telemetry("c1") as stream:
        await join(stream)
        lost = await push(wire_server, "c1", "attempt-1")
        before = await wire_server.digest()
        assert await push(wire_server, "c2", "attempt-2") == [], "the group is locked"
        found = await push(wire_server, "c1", "attempt-1")
        assert [each.system_properties.receipt_handle for each in found] == [
            each.system_properties.receipt_handle for each in lost
        ]
        assert (ids(found), attempts(found)) == (["m1", "m2", "m3"], [1, 1, 1])
        assert await wire_server.digest() == before, "it is a read"


@pytest.mark.user("U11")
async def test_an_empty_answer_does_not_use_an_attempt_up(wire_server: WireServer) -> None:
    async with wire_server.telemetry("c1") as stream, wire_server.telemetry("c2") as other:
        await join(stream)
        await join(other)
        held = await push(wire_server, "c1", "attempt-1")
        assert await push(wire_server, "c2", "attempt-2") == []
        ack = wire.AckMessageRequest(group=GROUP, topic=TOPIC)
        for each in held:
            ack.entries.add(receipt_handle=each.system_properties.receipt_handle)
        assert (await wire_server.call("AckMessage", ack)).status.code == pb.OK
        await send(wire_server, "m4")
        for _ in range(2):
            found = await push(wire_server, "c2", "attempt-2")
            assert (ids(found), attempts(found)) == (["m4"], [1])
