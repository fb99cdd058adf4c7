"""ReceiveBulk, RenewAttempt and AckAttempt over the wire, with a clock that stands still until it is moved."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.catalog.groups import UpdateGroup
from popserver.model.group import LiteModel
from popserver.model.topic import MessageType, NewTopic
from popserver.transport import convert
from tests.support.wire_bulk import ack, receive_bulk, renew
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, advance

SECOND = 1_000


async def send(wire_server: WireServer, *names: str) -> None:
    await wire_server.send(*(a_message(name, tag=name[:1]) for name in names))


@pytest.mark.row("O5")
async def test_a_lost_answer_comes_again_the_same(timed_wire_server: WireServer) -> None:
    wire_server = timed_wire_server
    await send(wire_server, "m0", "m1", "m2")
    first = await receive_bulk(wire_server)
    assert (first.code, sorted(first.ids)) == (pb.OK, ["m0", "m1", "m2"])
    await send(wire_server, "m3")
    for answer in (await receive_bulk(wire_server), await receive_bulk(wire_server, max_messages=0, invisible_ms=0)):
        assert answer.rows == first.rows
    assert {row["delivery_attempt"] for row in first.rows} == {1}
    assert (await receive_bulk(wire_server, "lease-2")).ids == ["m3"]


async def test_renewed_it_stays_and_then_it_is_acked(timed_wire_server: WireServer) -> None:
    wire_server = timed_wire_server
    await send(wire_server, "m0", "m1")
    first = await receive_bulk(wire_server)
    for _ in range(3):
        await advance(wire_server, 20 * SECOND)
        renewed = await renew(wire_server)
        assert (renewed.status.code, renewed.held) == (pb.OK, 2)
    assert (await receive_bulk(wire_server)).rows == first.rows
    acked = await ack(wire_server)
    assert (acked.status.code, acked.acked) == (pb.OK, 2)
    repeated = await ack(wire_server)
    assert (repeated.status.code, repeated.acked) == (pb.OK, 0)
    assert (await receive_bulk(wire_server, max_messages=0)).ids == []
    assert (await renew(wire_server)).held == 0
    await advance(wire_server, 3_600 * SECOND)
    assert (await receive_bulk(wire_server, "lease-2")).ids == [], "done is done"


async def test_run_out_it_is_gone_from_the_attempt_and_granted_elsewhere(timed_wire_server: WireServer) -> None:
    wire_server = timed_wire_server
    await send(wire_server, "m0", "m1")
    await receive_bulk(wire_server)
    await advance(wire_server, 30 * SECOND)
    assert (await receive_bulk(wire_server, max_messages=0)).ids == []
    assert (await renew(wire_server)).held == 0
    assert (await ack(wire_server)).acked == 0
    other = await receive_bulk(wire_server, "lease-2")
    assert sorted(other.ids) == ["m0", "m1"]
    assert {row["delivery_attempt"] for row in other.rows} == {2}
    group = await wire_server.broker.catalog.group(convert.resource(GROUP, ""))
    share = wire_server.broker.consuming.redeliveries.share(group.group_id, wire_server.broker.engine.clock.now_ms())
    assert (share.deliveries, share.retries) == (4, 2)
    assert (await receive_bulk(wire_server)).ids == [], "the first one may take again; nothing is left"


@pytest.mark.parametrize("model", [LiteModel.SHARED, LiteModel.EXCLUSIVE])
async def test_a_group_whose_clients_name_lite_topics_is_refused(
    timed_wire_server: WireServer, model: LiteModel
) -> None:
    """Otherwise the job would end without messages, and nobody would say why."""
    catalog = timed_wire_server.broker.catalog
    await catalog.create_topic(NewTopic(convert.resource(TOPIC, ""), 1, (MessageType.LITE,)))
    await catalog.group(convert.resource(GROUP, ""))
    await catalog.update_group(UpdateGroup(convert.resource(GROUP, ""), lite=model))
    await timed_wire_server.send(a_message("m0", lite_topic="UA1545"))
    answer = await receive_bulk(timed_wire_server)
    assert answer.code == pb.BAD_REQUEST
    assert "this consumer names none" in answer.status.message
    await catalog.update_group(UpdateGroup(convert.resource(GROUP, ""), lite=LiteModel.WILDCARD))
    assert (await receive_bulk(timed_wire_server)).ids == ["m0"]


async def test_nothing_new_where_only_what_is_held_is_asked_for(timed_wire_server: WireServer) -> None:
    wire_server = timed_wire_server
    await send(wire_server, "m0")
    await receive_bulk(wire_server, "another")
    await send(wire_server, "m1")
    answer = await receive_bulk(wire_server, max_messages=0, invisible_ms=0)
    assert (answer.code, answer.rows, len(answer.frames)) == (pb.OK, [], 1)


async def test_columns_and_filter_are_the_caller_s(timed_wire_server: WireServer) -> None:
    wire_server = timed_wire_server
    await send(wire_server, "a0", "b0", "a1")
    wanted = pb.FilterExpression(type=pb.TAG, expression="a")
    answer = await receive_bulk(wire_server, columns=["message_id", "topic"], filter_expression=wanted)
    assert sorted(row["message_id"] for row in answer.rows) == ["a0", "a1"]
    assert {row["topic"] for row in answer.rows} == {"flights"}
    assert set(answer.rows[0]) == {"message_id", "topic"}


async def test_in_pages_where_it_is_much(timed_wire_server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popserver.bulk.pages.CHUNK_MESSAGES_MAX", 4)
    monkeypatch.setattr("popserver.bulk.pages.CHUNK_BYTES_MAX", 100)
    bodies = [b"x" * size for size in (30, 30, 30, 30, 90, 90, 300, 1, 1, 1, 1, 1)]
    await timed_wire_server.send(*(a_message(f"m{number:02}", body=body) for number, body in enumerate(bodies)))
    answer = await receive_bulk(timed_wire_server)
    assert sorted(answer.ids) == [f"m{number:02}" for number in range(12)]
    chunks = [[len(row["body"]) for row in table.to_pylist()] for table in answer.tables]
    assert all(len(each) <= 4 and (sum(each) <= 100 or len(each) == 1) for each in chunks), chunks


async def test_a_call_that_breaks_off_leaves_everything_held(
    timed_wire_server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire_server = timed_wire_server
    await send(wire_server, "m0", "m1")

    def broken(*_: Any) -> Any:
        raise ConnectionResetError

    with monkeypatch.context() as patch:
        patch.setattr(wire_server.broker.consuming.bulk, "pages", broken)
        assert (await receive_bulk(wire_server)).code == pb.INTERNAL_SERVER_ERROR
    assert sorted((await receive_bulk(wire_server, max_messages=0)).ids) == ["m0", "m1"]


async def test_a_client_that_is_gone_leaves_everything_held(timed_wire_server: WireServer) -> None:
    wire_server = timed_wire_server
    await send(wire_server, "m0")
    await receive_bulk(wire_server, invisible_ms=600 * SECOND, client_id="driver-1")
    await advance(wire_server, 300 * SECOND)
    assert (await receive_bulk(wire_server, max_messages=0, client_id="driver-2")).ids == ["m0"]
    assert (await ack(wire_server)).acked == 1


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        ({"max_messages": 1_001}, pb.BAD_REQUEST, "max_messages is 1001; ask for up to 1000 messages, or send 0 for"),
        ({"max_messages": -1}, pb.BAD_REQUEST, "max_messages is -1"),
        ({"attempt_id": "  "}, pb.BAD_REQUEST, "the attempt id is blank"),
        ({"attempt_id": "x" * 256}, pb.BAD_REQUEST, "attempt id 'xxxx"),
        ({"columns": ["colour"]}, pb.BAD_REQUEST, "column 'colour' is not known"),
        ({"invisible_ms": 0}, pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small: 0 ms, at least 10000 ms"),
        ({"invisible_ms": 43_200_001}, pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large"),
        ({"filter_expression": pb.FilterExpression(type=pb.SQL, expression="(")}, pb.ILLEGAL_FILTER_EXPRESSION, ""),
        ({"group": pb.Resource(name="")}, pb.ILLEGAL_CONSUMER_GROUP, ""),
    ],
)
async def test_what_is_refused(wire_server: WireServer, more: dict[str, Any], code: int, sentence: str) -> None:
    await send(wire_server, "m0")
    before = await wire_server.digest()
    answer = await receive_bulk(wire_server, **more)
    assert (answer.code, len(answer.frames)) == (code, 1)
    assert answer.status.message.startswith(sentence)
    assert await wire_server.digest() == before


async def test_a_renewal_has_the_limits_of_a_change(wire_server: WireServer) -> None:
    assert (await renew(wire_server, invisible_ms=-1)).status.code == pb.ILLEGAL_INVISIBLE_TIME
    assert (await renew(wire_server, invisible_ms=43_200_001)).status.code == pb.ILLEGAL_INVISIBLE_TIME
    assert (await renew(wire_server, "")).status.code == pb.BAD_REQUEST
    assert (await ack(wire_server, "")).status.code == pb.BAD_REQUEST


async def test_what_is_not_there_holds_nothing_and_is_not_made(wire_server: WireServer) -> None:
    before = await wire_server.digest()
    assert (await receive_bulk(wire_server, max_messages=0)).code == pb.CONSUMER_GROUP_NOT_FOUND
    assert (await renew(wire_server)).status.code == pb.CONSUMER_GROUP_NOT_FOUND
    assert (await ack(wire_server)).status.code == pb.CONSUMER_GROUP_NOT_FOUND
    assert await wire_server.digest() == before


async def test_a_queue_that_came_later_has_its_number(wire_server: WireServer) -> None:
    await send(wire_server, "m0")
    await receive_bulk(wire_server, "warm")
    topic = convert.resource(TOPIC, "")
    count = len((await wire_server.broker.catalog.topic(topic)).queues)
    await wire_server.broker.catalog.update_topic(topic, queue_count=count + 4)
    for number in range(count + 4):
        await send(wire_server, f"n{number}")
    answer = await receive_bulk(wire_server)
    assert {row["queue_id"] for row in answer.rows} == set(range(count + 4))
