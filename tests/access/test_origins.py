"""A denied topic stays denied where its messages stand as dead letters and retries of a group."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from popproto.v1 import bulk_pb2, legacy_pb2
from popproto.v1.bulk_pb2_grpc import BulkStub
from popproto.v1.legacy_pb2_grpc import LegacyStub
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access.flow import Rules
from popserver.database.schema import message
from popserver.delivery import origins
from popserver.engine.clock import ManualClock
from popserver.model.names import Resource
from popserver.model.topic import NewTopic
from popserver.transport import convert
from tests.support.signed_server import ADMIN, SECRET, as_, give
from tests.support.wire_server import WireServer, a_message, handle_of, headers, opened, receive_request

SECRETS, PLAIN = pb.Resource(name="secret"), pb.Resource(name="plain")
READS_ALL = ("ALLOW SUB topic:*", "ALLOW SUB group:*")
DENIED = (*READS_ALL, "DENY SUB topic:secret")
Read = Callable[[WireServer, str, pb.Resource, pb.Resource], Awaitable[tuple[pb.Status, list[str]]]]


def group(name: str) -> pb.Resource:
    return pb.Resource(name=name)


def letters(name: str) -> pb.Resource:
    return pb.Resource(name=f"%DLQ%{name}")


def retries(name: str) -> pb.Resource:
    return pb.Resource(name=f"%RETRY%{name}")


@pytest.fixture(params=["sqlite", "postgres"])
async def guard(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WireServer]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    options: dict[str, Any] = {"postgres_url": url, "rules": Rules(auth=True), "clock": ManualClock()}
    async with opened(tmp_path, admin=ADMIN, **options) as wire_server:
        for name in ("alice", "carol"):
            await wire_server.users.add(name, SECRET, is_admin=False)
        for topic in (SECRETS, PLAIN):
            await wire_server.broker.catalog.create_topic(NewTopic(convert.resource(topic, ""), 1))
        yield wire_server


def signed_by(user: str) -> dict[str, str]:
    return as_(*ADMIN) if user == ADMIN[0] else as_(user)


async def receive(wire_server: WireServer, user: str, of: pb.Resource, topic: pb.Resource, batch_size: int = 32) -> Any:
    request = receive_request(group=of, topic=topic, batch_size=batch_size)
    frames = await wire_server.frames("ReceiveMessage", request, headers=signed_by(user))
    return frames[0].status, [frame.message for frame in frames if frame.HasField("message")]


async def receive_ids(
    wire_server: WireServer, user: str, of: pb.Resource, topic: pb.Resource
) -> tuple[pb.Status, list[str]]:
    status, messages = await receive(wire_server, user, of, topic)
    return status, [each.system_properties.message_id for each in messages]


async def pull_message(
    wire_server: WireServer, user: str, of: pb.Resource, topic: pb.Resource
) -> tuple[pb.Status, list[str]]:
    request = wire.PullMessageRequest(group=of, message_queue=pb.MessageQueue(topic=topic), batch_size=32)
    frames = await wire_server.frames("PullMessage", request, headers=signed_by(user))
    found = [frame.message.system_properties.message_id for frame in frames if frame.HasField("message")]
    return frames[0].status, found


async def pull_batch(
    wire_server: WireServer, user: str, of: pb.Resource, topic: pb.Resource
) -> tuple[pb.Status, list[str]]:
    request = legacy_pb2.PullBatchRequest(group=of, queue=legacy_pb2.QueueName(topic=topic), batch_size=32)
    answer = await LegacyStub(wire_server.channel).PullBatch(request, metadata=headers("c", signed_by(user)))
    return answer.status, [each.system_properties.message_id for each in answer.messages]


async def pull_bulk(
    wire_server: WireServer, user: str, of: pb.Resource, topic: pb.Resource
) -> tuple[pb.Status, list[str]]:
    request = bulk_pb2.PullBulkRequest(group=of, topic=topic, end_offset=1 << 39, columns=["message_id"])
    return await _bulk(wire_server, "PullBulk", request, user)


async def receive_bulk(
    wire_server: WireServer, user: str, of: pb.Resource, topic: pb.Resource
) -> tuple[pb.Status, list[str]]:
    request = bulk_pb2.ReceiveBulkRequest(
        group=of, topic=topic, attempt_id=f"by {user}", max_messages=100, columns=["message_id"]
    )
    convert.set_ms(request.invisible_duration, 30_000)
    return await _bulk(wire_server, "ReceiveBulk", request, user)


async def _bulk(wire_server: WireServer, method: str, request: Any, user: str) -> tuple[pb.Status, list[str]]:
    pa = pytest.importorskip("pyarrow")
    call = getattr(BulkStub(wire_server.channel), method)(request, metadata=headers("c", signed_by(user)))
    frames = [frame async for frame in call]
    tables = [pa.ipc.open_stream(frame.chunk).read_all() for frame in frames if frame.chunk]
    ids = [row["message_id"] for table in tables for row in table.to_pylist()]
    return next(frame.status for frame in frames if frame.HasField("status")), ids


WAYS: dict[str, Read] = {
    "receive": receive_ids,
    "pull": pull_message,
    "pull batch": pull_batch,
    "pull bulk": pull_bulk,
    "receive bulk": receive_bulk,
}


async def let_die(wire_server: WireServer, topic: pb.Resource, of: pb.Resource) -> None:
    """All that is there for the group becomes its dead letters."""
    _, messages = await receive(wire_server, ADMIN[0], of, topic)
    assert messages
    for each in messages:
        forward = wire.ForwardMessageToDeadLetterQueueRequest(group=of, topic=topic, receipt_handle=handle_of(each))
        answer = await wire_server.call("ForwardMessageToDeadLetterQueue", forward, headers=as_(*ADMIN))
        assert answer.status.code == pb.OK


async def send(wire_server: WireServer, *named: tuple[str, pb.Resource]) -> None:
    for message_id, topic in named:
        request = wire.SendMessageRequest(messages=[a_message(message_id, topic=topic)])
        assert (await wire_server.call("SendMessage", request, headers=as_(*ADMIN))).status.code == pb.OK


@pytest.mark.parametrize("way", WAYS)
async def test_dead_letters_of_a_denied_topic_are_not_told(guard: WireServer, way: str) -> None:
    for policy in DENIED:
        await give(guard, policy)
    for policy in READS_ALL:
        await give(guard, policy, "carol")
    await send(guard, ("s", SECRETS), ("p", PLAIN))
    await let_die(guard, SECRETS, group("ga"))
    await let_die(guard, PLAIN, group("gb"))
    read = WAYS[way]
    status, ids = await read(guard, "alice", group("readers"), letters("ga"))
    assert (status.code, ids) == (pb.FORBIDDEN, [])
    assert "it comes from topic 'secret'" in status.message
    assert "popmq acl policy remove" in status.message
    status, ids = await read(guard, "alice", group("readers"), letters("gb"))
    assert (status.code, ids) == (pb.OK, ["p"]), "what comes from other topics is"
    await guard.broker.settle()
    status, messages = await receive(guard, "carol", group("readers"), letters("ga"))
    assert [each.system_properties.message_id for each in messages] == ["s"], "nothing was consumed"
    if "receive" in way:
        assert messages[0].system_properties.delivery_attempt == 1


async def test_what_stands_before_a_denied_message_is_read(guard: WireServer) -> None:
    for policy in DENIED:
        await give(guard, policy)
    await send(guard, ("p", PLAIN), ("s", SECRETS))
    for topic in (PLAIN, SECRETS):
        await let_die(guard, topic, group("ga"))
    status, _ = await receive(guard, "alice", group("readers"), letters("ga"))
    assert status.code == pb.FORBIDDEN, "a batch that holds one is refused whole"
    await guard.broker.settle()
    status, messages = await receive(guard, "alice", group("readers"), letters("ga"), 1)
    assert [each.system_properties.message_id for each in messages] == ["p"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_group_that_reads_dead_letters_hides_nothing(guard: WireServer, way: str) -> None:
    """Dead letters that died once more in another group, and retries of them, come from where the first one does."""
    for policy in DENIED:
        await give(guard, policy)
    await send(guard, ("s", SECRETS))
    await let_die(guard, SECRETS, group("ga"))
    await let_die(guard, letters("ga"), group("gb"))
    back = legacy_pb2.SendBackRequest(group=group("gc"), queue=legacy_pb2.QueueName(topic=letters("gb")), delay_level=1)
    answer = await LegacyStub(guard.channel).SendBack(back, metadata=headers("c", as_(*ADMIN)))
    assert answer.status.code == pb.OK
    clock = guard.broker.engine.clock
    assert isinstance(clock, ManualClock)
    await clock.advance(1_000, guard.broker.settle)
    for topic in (letters("gb"), retries("gc")):
        status, ids = await WAYS[way](guard, "alice", group("readers"), topic)
        assert (status.code, ids) == (pb.FORBIDDEN, []), topic
        assert "it comes from topic 'secret'" in status.message
    with guard.broker.engine.database.read() as conn:
        (key,) = conn.execute(select(message.c.message_key).order_by(message.c.stored_at_ms.desc()).limit(1)).one()
        assert origins.topics_behind(conn, [key]) == {Resource("", name) for name in ("%DLQ%gb", "%DLQ%ga", "secret")}


async def test_a_retry_of_a_denied_topic_is_not_told(guard: WireServer) -> None:
    for policy in DENIED:
        await give(guard, policy)
    await send(guard, ("s", SECRETS))
    back = legacy_pb2.SendBackRequest(group=group("ga"), queue=legacy_pb2.QueueName(topic=SECRETS), delay_level=1)
    await LegacyStub(guard.channel).SendBack(back, metadata=headers("c", as_(*ADMIN)))
    clock = guard.broker.engine.clock
    assert isinstance(clock, ManualClock)
    await clock.advance(1_000, guard.broker.settle)
    status, ids = await pull_batch(guard, "alice", group("ga"), retries("ga"))
    assert (status.code, ids) == (pb.FORBIDDEN, [])
    assert await pull_batch(guard, ADMIN[0], group("ga"), retries("ga")) == (pb.Status(code=pb.OK, message="OK"), ["s"])


async def test_where_an_origin_is_not_known_any_more_a_denial_counts(guard: WireServer) -> None:
    """The dead letter between is gone: nothing says any more that it was not of the denied topic."""
    for policy in DENIED:
        await give(guard, policy)
    for policy in READS_ALL:
        await give(guard, policy, "carol")
    await send(guard, ("s", SECRETS))
    await let_die(guard, SECRETS, group("ga"))
    await let_die(guard, letters("ga"), group("gb"))
    await guard.broker.catalog.delete_topic(Resource("", "%DLQ%ga"))
    await guard.broker.settle()
    status, ids = await pull_message(guard, "alice", group("readers"), letters("gb"))
    assert (status.code, ids) == (pb.FORBIDDEN, [])
    assert "is no longer stored" in status.message
    status, ids = await pull_message(guard, "carol", group("readers"), letters("gb"))
    assert (status.code, ids) == (pb.OK, ["s"])


async def test_who_is_denied_nothing_is_not_looked_after(guard: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look at the store is for those alone who are denied something."""
    for policy in READS_ALL:
        await give(guard, policy)
    await send(guard, ("s", SECRETS))
    await let_die(guard, SECRETS, group("ga"))
    looks: list[Any] = []
    found = origins.topics_behind
    monkeypatch.setattr(origins, "topics_behind", lambda conn, keys: looks.append(keys) or found(conn, keys))
    assert await pull_message(guard, "alice", group("readers"), letters("ga")) == (
        pb.Status(code=pb.OK, message="OK"),
        ["s"],
    )
    assert not looks
    await give(guard, "DENY SUB topic:others")
    assert (await pull_message(guard, "alice", group("readers"), letters("ga")))[1] == ["s"]
    assert len(looks) == 1
