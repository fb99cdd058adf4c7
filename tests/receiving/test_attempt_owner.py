"""An attempt id names a receive to the one who made it."""

from __future__ import annotations

import pytest

from popproto.v1 import bulk_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.services.clients import BULK
from popserver.transport import convert
from tests.support.receiving import push
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, headers


async def bulk(wire_server: WireServer, method: str, request: object, client_id: str) -> list[object]:
    """The answer's frames."""
    shape = BULK.methods_by_name[method]
    path = f"/{BULK.full_name}/{method}"
    answer = getattr(bulk_pb2, shape.output_type.name)
    coders = (lambda each: each.SerializeToString(), answer.FromString)
    if shape.server_streaming:
        call = wire_server.channel.unary_stream(path, *coders)(request, metadata=headers(client_id, {}))
        return [frame async for frame in call]
    return [await wire_server.channel.unary_unary(path, *coders)(request, metadata=headers(client_id, {}))]


def handle(message: pb.Message) -> str:
    return message.system_properties.receipt_handle


@pytest.mark.parametrize("other", ["another", "pushe"])
async def test_another_client_of_the_group_gets_nothing_by_it(wire_server: WireServer, other: str) -> None:
    await wire_server.send(a_message())
    held = await push(wire_server, attempt_id="a-1")
    assert len(held) == 1
    assert await push(wire_server, other, attempt_id="a-1") == []
    again = await push(wire_server, attempt_id="a-1")
    assert [handle(each) for each in again] == [handle(each) for each in held], "its own client gets the same"


async def test_a_receive_cannot_be_acknowledged_by_its_attempt_id(wire_server: WireServer) -> None:
    await wire_server.send(a_message())
    request = wire.ReceiveMessageRequest(
        group=GROUP, message_queue=pb.MessageQueue(topic=TOPIC), batch_size=1, attempt_id="a-1"
    )
    convert.set_ms(request.invisible_duration, 30_000)
    frames = await wire_server.frames("ReceiveMessage", request, client_id="c1")
    assert sum(frame.HasField("message") for frame in frames) == 1
    for client_id in ("c1", "c2"):
        (acked,) = await bulk(
            wire_server, "AckAttempt", bulk_pb2.AckAttemptRequest(group=GROUP, topic=TOPIC, attempt_id="a-1"), client_id
        )
        assert isinstance(acked, bulk_pb2.AckAttemptResponse)
        assert (acked.status.code, acked.acked) == (pb.OK, 0)


async def test_a_bulk_receive_is_for_every_process_of_its_user(wire_server: WireServer) -> None:
    await wire_server.send(a_message())
    request = bulk_pb2.ReceiveBulkRequest(group=GROUP, topic=TOPIC, attempt_id="a-1", max_messages=10)
    convert.set_ms(request.invisible_duration, 30_000)
    for client_id in ("c1", "c2"):
        frames = await bulk(wire_server, "ReceiveBulk", request, client_id)
        assert sum(frame.messages for frame in frames) == 1  # type: ignore[attr-defined]
    acknowledge = bulk_pb2.AckAttemptRequest(group=GROUP, topic=TOPIC, attempt_id="a-1")
    (acked,) = await bulk(wire_server, "AckAttempt", acknowledge, "c3")
    assert acked.acked == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("attempt_id", ["a\nb", "a\x1b[2Jb", "a\x00b"])
async def test_an_attempt_id_with_a_control_character_is_refused(wire_server: WireServer, attempt_id: str) -> None:
    request = wire.ReceiveMessageRequest(
        group=GROUP, message_queue=pb.MessageQueue(topic=TOPIC), batch_size=1, auto_renew=True, attempt_id=attempt_id
    )
    before = await wire_server.digest()
    (refused,) = await wire_server.statuses("ReceiveMessage", request)
    assert refused.code == pb.BAD_REQUEST
    assert repr(attempt_id) in refused.message
    assert await wire_server.digest() == before
