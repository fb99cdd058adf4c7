"""Handing back over the wire, and what comes of it in a pull."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from popproto.v1 import legacy_pb2 as words
from popproto.v1.legacy_pb2_grpc import LegacyStub
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access.flow import Rules
from popserver.engine.clock import ManualClock
from popserver.model.group import Mode
from popserver.model.names import Resource
from tests.support.running_broker import until
from tests.support.signed_server import SECRET, give, guarded
from tests.support.signing import signed
from tests.support.wire_pull import legacy, make_topic, pull, queue, queue_name, update_offset
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, advance, opened

RETRIES = pb.Resource(name=f"%RETRY%{GROUP.name}")
LETTERS = pb.Resource(name=f"%DLQ%{GROUP.name}")
SECOND = 1_000


@pytest.fixture(params=["sqlite", "postgres"])
async def timed_wire_server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WireServer]:
    """On a manual clock; with one queue and three messages."""
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with opened(tmp_path, postgres_url=url, clock=ManualClock()) as opened_server:
        await make_topic(opened_server)
        await opened_server.send(*(a_message(f"m{number}", user_properties={"n": str(number)}) for number in range(3)))
        yield opened_server


async def send_back(
    wire_server: WireServer, offset: int = 0, *, topic: pb.Resource = TOPIC, number: int = 0, **more: Any
) -> words.SendBackResponse:
    fields: dict[str, Any] = {"group": GROUP, "queue": queue_name(number, topic), "offset": offset} | more
    answer: words.SendBackResponse = await legacy(wire_server, "SendBack", words.SendBackRequest(**fields))
    return answer


@pytest.mark.row("E9")
@pytest.mark.row("E14")
async def test_what_one_member_hands_back_another_pulls_later(timed_wire_server: WireServer) -> None:
    assert (await pull(timed_wire_server, client_id="a")).ids == ["m0", "m1", "m2"]
    answer = await send_back(timed_wire_server, 1)
    assert (answer.status.code, answer.is_dead_letter) == (pb.OK, False)
    assert (await update_offset(timed_wire_server, 3)).code == pb.OK
    waiting = asyncio.create_task(
        pull(timed_wire_server, client_id="b", message_queue=queue(0, RETRIES), poll_ms=15 * SECOND)
    )
    await until(lambda: timed_wire_server.broker.consuming.pulls.parked.count == 1)
    await advance(timed_wire_server, 10 * SECOND - 1)
    assert not waiting.done()
    await advance(timed_wire_server, 1)
    (again,) = (await waiting).messages
    assert (again.topic.name, again.body) == (RETRIES.name, b"body")
    assert (again.system_properties.message_id, again.system_properties.delivery_attempt) == ("m1", 2)
    properties = dict(again.user_properties)
    assert (properties["n"], properties["RETRY_TOPIC"], properties["RECONSUME_TIME"]) == ("1", TOPIC.name, "1")


@pytest.mark.row("E15")
async def test_levels(timed_wire_server: WireServer) -> None:
    for offset, level in ((0, 1), (1, 2), (2, -1)):
        answer = await send_back(timed_wire_server, offset, delay_level=level)
        assert (answer.status.code, answer.is_dead_letter) == (pb.OK, level < 0)
    await advance(timed_wire_server, SECOND)
    assert (await pull(timed_wire_server, message_queue=queue(0, RETRIES))).ids == ["m0"]
    await advance(timed_wire_server, 4 * SECOND)
    assert (await pull(timed_wire_server, message_queue=queue(0, RETRIES))).ids == ["m0", "m1"]
    (letter,) = (await pull(timed_wire_server, message_queue=queue(0, LETTERS))).messages
    assert letter.system_properties.dead_letter_queue.topic == TOPIC.name
    refused = await send_back(timed_wire_server, delay_level=19)
    assert refused.status.code == pb.BAD_REQUEST
    assert "delay level 19 is above the highest, 18" in refused.status.message


@pytest.mark.row("E16")
@pytest.mark.parametrize(("most", "deaths"), [(0, 1), (2, 3), (-1, 17), (None, 17)])
async def test_after_so_many_failures_it_is_a_dead_letter(
    timed_wire_server: WireServer, most: int | None, deaths: int
) -> None:
    more: dict[str, Any] = {} if most is None else {"max_reconsume_times": most}
    outcomes = [(await send_back(timed_wire_server, delay_level=1, **more)).is_dead_letter]
    while not outcomes[-1]:
        assert len(outcomes) < deaths
        await advance(timed_wire_server, SECOND)
        # Every failure but the last makes one copy more, and the newest fails next.
        newest = len(outcomes) - 1
        outcomes.append(
            (await send_back(timed_wire_server, newest, topic=RETRIES, delay_level=1, **more)).is_dead_letter
        )
    assert len(outcomes) == deaths
    (letter,) = (await pull(timed_wire_server, message_queue=queue(0, LETTERS))).messages
    assert letter.system_properties.message_id == "m0"
    assert dict(letter.user_properties) == {"n": "0"}


@pytest.mark.parametrize(
    ("fields", "code", "words_of_it"),
    [
        ({"offset": 3}, pb.MESSAGE_NOT_FOUND, "queue 0 of topic 'flights' stores no message at offset 3"),
        ({"offset": -1}, pb.MESSAGE_NOT_FOUND, "a queue cannot have offset -1"),
        ({"offset": 1 << 40}, pb.MESSAGE_NOT_FOUND, f"a queue cannot have offset {1 << 40}"),
        ({"number": 4}, pb.BAD_REQUEST, "topic 'flights' has no queue 4"),
        ({"topic": pb.Resource(name="nosuch")}, pb.TOPIC_NOT_FOUND, "'nosuch'"),
        (
            {"topic": pb.Resource(name="%RETRY%others")},
            pb.BAD_REQUEST,
            "has the retries of another group than 'counters'",
        ),
        ({"group": pb.Resource(name=" ")}, pb.ILLEGAL_CONSUMER_GROUP, "blank"),
    ],
)
async def test_what_cannot_be_handed_back_is_named(
    timed_wire_server: WireServer, fields: dict[str, Any], code: int, words_of_it: str
) -> None:
    answer = await send_back(timed_wire_server, **fields)
    assert (answer.status.code, answer.is_dead_letter) == (code, False)
    assert words_of_it in answer.status.message


async def test_the_first_one_fixes_the_mode(timed_wire_server: WireServer) -> None:
    await send_back(timed_wire_server)
    assert (await timed_wire_server.broker.catalog.group(Resource("", GROUP.name))).mode is Mode.PULL
    popping = pb.Resource(name="popping")
    await timed_wire_server.receive(group=popping)
    refused = await send_back(timed_wire_server, group=popping)
    assert refused.status.code == pb.BAD_REQUEST
    assert "'popping' consumes in mode POP" in refused.status.message


async def test_a_groups_own_topics_are_made_on_demand_and_sent_to_by_nobody(timed_wire_server: WireServer) -> None:
    for topic in (RETRIES, LETTERS):
        route = await timed_wire_server.call("QueryRoute", wire.QueryRouteRequest(topic=topic))
        assert [each.id for each in route.message_queues] == [0]
        assert (await pull(timed_wire_server, message_queue=queue(0, topic))).code == pb.MESSAGE_NOT_FOUND
        message = a_message("no")
        message.topic.name = topic.name
        sent = await timed_wire_server.call("SendMessage", wire.SendMessageRequest(messages=[message]))
        assert sent.status.code == pb.ILLEGAL_TOPIC


async def test_it_takes_the_rights_of_the_topic_and_the_group(tmp_path: Path) -> None:
    async with guarded(tmp_path, rules=Rules(auth=True)) as wire_server:
        await make_topic(wire_server)
        stub = LegacyStub(wire_server.channel)
        metadata = (("x-mq-client-id", "c"), *signed("alice", SECRET).items())
        codes = []
        for policy in ("ALLOW SUB group:counters", f"ALLOW SUB topic:{TOPIC.name}"):
            await give(wire_server, policy)
            for topic in (TOPIC, RETRIES):
                request = words.SendBackRequest(group=GROUP, queue=queue_name(0, topic))
                codes.append((await stub.SendBack(request, metadata=metadata)).status.code)
        assert codes == [pb.FORBIDDEN, pb.TOPIC_NOT_FOUND, pb.MESSAGE_NOT_FOUND, pb.TOPIC_NOT_FOUND]
