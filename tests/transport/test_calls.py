"""Whatever comes through the wire is answered with a status, and the server goes on."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from tests.support.wire_server import METHODS, WireServer, a_message

EVERY_METHOD = [method.name for method in METHODS]
GARBAGE = [b"\xff\xff\xff\xff", b"\x0a\x7f\x01"]  # no field number; a length beyond the end


def test_the_service_has_seventeen_methods() -> None:
    assert len(EVERY_METHOD) == 17


@pytest.mark.parametrize("data", GARBAGE)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_garbage_is_answered_in_words(wire_server: WireServer, method: Any, data: bytes) -> None:
    before = await wire_server.digest()
    answer = getattr(wire, method.output_type.name).FromString(await wire_server.raw(method.name, data))
    assert answer.status.code == pb.BAD_REQUEST
    assert answer.status.message == f"the {len(data)} bytes sent are no {method.input_type.full_name}"
    assert await wire_server.digest() == before


async def test_text_that_is_no_utf8_is_garbage(wire_server: WireServer) -> None:
    data = b"\x0a\x04\x12\x02\xc3\x28"  # a topic name of two bytes
    answer = wire.QueryRouteResponse.FromString(await wire_server.raw("QueryRoute", data))
    assert answer.status.code == pb.BAD_REQUEST


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
async def test_every_call_needs_a_client_id(wire_server: WireServer, method: Any) -> None:
    before = await wire_server.digest()
    request = getattr(wire, method.input_type.name)()
    if method.name == "Heartbeat":
        request.client_type = pb.PRODUCER
    (status,) = await wire_server.statuses(method.name, request, client_id=None)
    assert status.code == pb.CLIENT_ID_REQUIRED
    assert "x-mq-client-id" in status.message
    assert await wire_server.digest() == before


async def test_a_blank_client_id_is_none(wire_server: WireServer) -> None:
    (status,) = await wire_server.statuses("QueryRoute", wire.QueryRouteRequest(), client_id="  ")
    assert status.code == pb.CLIENT_ID_REQUIRED


async def test_an_empty_heartbeat_may_come_from_nobody(wire_server: WireServer) -> None:
    """A client looks whether an endpoint is back: no headers, no content (protocol 1.4)."""
    (status,) = await wire_server.statuses("Heartbeat", wire.HeartbeatRequest(), client_id=None)
    assert status.code == pb.OK


async def test_an_endless_client_id_is_refused(wire_server: WireServer) -> None:
    (status,) = await wire_server.statuses("Heartbeat", wire.HeartbeatRequest(), client_id="c" * 256)
    assert status.code == pb.BAD_REQUEST
    assert "256 characters, at most 255" in status.message


@pytest.mark.parametrize("language", ["", "HTTP", "KLINGON"])
async def test_headers_may_be_odd(wire_server: WireServer, language: str) -> None:
    odd = {"x-mq-language": language, "x-mq-date-time": "yesterday", "authorization": "MQv2-HMAC-SHA1 Credential="}
    (status,) = await wire_server.statuses("Heartbeat", wire.HeartbeatRequest(client_type=pb.PRODUCER), headers=odd)
    assert status.code == pb.OK


async def test_an_unforeseen_error_is_one_plain_sentence(
    wire_server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(wire_server.broker.producing.sending, "send", fail)
    request = wire.SendMessageRequest(messages=[a_message()])
    (status,) = await wire_server.statuses("SendMessage", request, headers={"x-mq-request-id": "r-17"})
    assert status.code == pb.INTERNAL_SERVER_ERROR
    assert "SendMessage" in status.message
    assert "r-17" in status.message
    assert "secret" not in status.message
    assert "ZeroDivision" not in status.message
    monkeypatch.undo()
    assert (await wire_server.send(a_message())).status.code == pb.OK


async def test_the_largest_legal_body_passes(wire_server: WireServer) -> None:
    body = bytes(4 * 1024 * 1024)
    properties = {f"key{number}": "v" * 100 for number in range(100)}
    assert (await wire_server.send(a_message(body=body, user_properties=properties))).status.code == pb.OK
    (received,) = await wire_server.receive()
    assert received.body == body


async def test_a_body_of_5_mib_is_refused_by_us(wire_server: WireServer) -> None:
    before = await wire_server.digest()
    status = (await wire_server.send(a_message(body=bytes(5 * 1024 * 1024)))).status
    assert status.code == pb.MESSAGE_BODY_TOO_LARGE
    assert "5242880 bytes, at most 4194304" in status.message
    assert await wire_server.digest() == before


@pytest.mark.builtin("the size is known before the request arrives")
async def test_beyond_32_mib_a_request_is_refused_before_it_is_there(wire_server: WireServer) -> None:
    status = (await wire_server.send(a_message(body=bytes(33 * 1024 * 1024)))).status
    assert status.code == pb.BAD_REQUEST
    assert "at most 33554432 bytes" in status.message
    assert (await wire_server.send(a_message())).status.code == pb.OK
