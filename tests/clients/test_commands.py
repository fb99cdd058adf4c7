"""What an operator asks of clients, on their telemetry streams: threads, a message on trial, another session."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from popproto.v1 import admin_pb2 as admin
from popproto.v1.admin_pb2_grpc import AdminStub
from popproto.v2 import admin_pb2 as rocketmq_admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.admin_pb2_grpc import AdminStub as RocketmqAdminStub
from popserver.access.flow import Rules
from popserver.clients import commands
from popserver.clients.command_frames import STACK_TRACE_LENGTH_MAX, sender
from popserver.model.errors import NoAnswer, NotFound
from popserver.rocketmq_admin import consumers
from tests.support.running_broker import until
from tests.support.sessions import CONSUMER, PRODUCER, client, traces, tried
from tests.support.signed_server import ADMIN, SECRET, as_, give
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, opened


@pytest.fixture
async def wire_server(tmp_path: Path) -> AsyncIterator[WireServer]:
    async with opened(tmp_path, administered=True) as opened_server:
        yield opened_server


def ask(wire_server: WireServer, method: str, **fields: Any) -> Awaitable[Any]:
    """A call of popmq.v1.Admin, or of RocketMQ's service where ours has no such method."""
    headers = fields.pop("headers", {})
    is_ours = method in admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name
    module, stub = (admin, AdminStub) if is_ours else (rocketmq_admin, RocketmqAdminStub)
    request = getattr(module, f"{method}Request")(**fields)
    answer: Awaitable[Any] = getattr(stub(wire_server.channel), method)(request, metadata=tuple(headers.items()))
    return answer


async def test_the_threads_of_a_client_are_told(wire_server: WireServer) -> None:
    async with client(wire_server, "c1", traces("one")), client(wire_server, "c2", traces("two")):
        for client_id, text in (("c1", "one"), ("c2", "two")):
            answer = await ask(wire_server, "PrintThreadStackTrace", client_id=client_id)
            assert (answer.status.code, answer.thread_stack_trace) == (pb.OK, text)


async def test_a_long_trace_is_cut(wire_server: WireServer) -> None:
    async with client(wire_server, "c1", traces("x" * (STACK_TRACE_LENGTH_MAX + 7))):
        answer = await ask(wire_server, "PrintThreadStackTrace", client_id="c1")
    assert answer.thread_stack_trace == f"{'x' * STACK_TRACE_LENGTH_MAX}\n… 7 characters more"


@pytest.mark.parametrize("code", [pb.OK, pb.FAILED_TO_CONSUME_MESSAGE, pb.NOT_IMPLEMENTED])
async def test_a_message_is_tried_out_and_nothing_changes(wire_server: WireServer, code: pb.Code.ValueType) -> None:
    await wire_server.send(a_message("m1", body=b"secret", tag="A"))
    async with client(wire_server, "c1", tried(code, "because")) as asked:
        before = await wire_server.digest()
        answer = await ask(wire_server, "VerifyMessage", client_id="c1", message_id="m1", topic=TOPIC)
        assert (answer.status.code, answer.status.message) == (code, "because")
        assert await wire_server.digest() == before
    told = asked[0].verify_message_command.message
    assert (told.topic.name, told.body, told.system_properties.message_id) == (TOPIC.name, b"secret", "m1")
    assert told.system_properties.delivery_attempt == 1
    assert told.system_properties.body_digest.checksum


async def test_a_client_is_told_to_reconnect(wire_server: WireServer) -> None:
    async with client(wire_server, "c1") as asked:
        assert (await ask(wire_server, "ReconnectClient", client_id="c1")).status.code == pb.OK
        await until(lambda: bool(asked))
    assert asked[0].HasField("reconnect_endpoints_command")
    assert asked[0].reconnect_endpoints_command.nonce


async def test_who_is_not_there_is_named(wire_server: WireServer) -> None:
    await wire_server.send(a_message("m1"))
    await wire_server.call("Heartbeat", wire.HeartbeatRequest(group=GROUP), client_id="no-stream")
    for client_id in ("nobody", "no-stream"):
        for method, more in (
            ("PrintThreadStackTrace", {}),
            ("ReconnectClient", {}),
            ("VerifyMessage", {"message_id": "m1"}),
        ):
            status = (await ask(wire_server, method, client_id=client_id, **more)).status
            assert status.code == pb.NOT_FOUND
            assert f"client '{client_id}' has no session with this server" in status.message
    async with client(wire_server, "c1"):
        missing = await ask(wire_server, "VerifyMessage", client_id="c1", message_id="no such")
        assert missing.status.code == pb.MESSAGE_NOT_FOUND
    assert (await ask(wire_server, "PrintThreadStackTrace")).status.code == pb.BAD_REQUEST


async def test_a_client_that_does_not_answer(wire_server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "ANSWER_WITHIN_S", 0.05)
    async with client(wire_server, "c1"):
        status = (await ask(wire_server, "PrintThreadStackTrace", client_id="c1")).status
    assert status.code == pb.REQUEST_TIMEOUT
    assert "client 'c1' has not answered within 0.05 s" in status.message
    assert not wire_server.broker.sessions.commands._asked


async def test_a_client_that_leaves_before_it_answers(wire_server: WireServer) -> None:
    async with client(wire_server, "c1") as asked:
        waiting = asyncio.ensure_future(ask(wire_server, "PrintThreadStackTrace", client_id="c1"))
        await until(lambda: bool(asked))
    status = (await waiting).status
    assert status.code == pb.NOT_FOUND
    assert "client 'c1' disconnected before it answered" in status.message


async def test_nobody_answers_for_another(wire_server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "ANSWER_WITHIN_S", 0.3)
    async with client(wire_server, "c1") as asked, wire_server.telemetry("c2") as stream:
        await stream.write(CONSUMER)
        await stream.read()
        waiting = asyncio.ensure_future(ask(wire_server, "PrintThreadStackTrace", client_id="c1"))
        await until(lambda: bool(asked))
        stolen = traces("forged")(asked[0])
        assert stolen is not None
        await stream.write(stolen)
        for rubbish in (wire.TelemetryCommand(), traces("x")(wire.TelemetryCommand()), tried(pb.OK)(asked[0])):
            await stream.write(rubbish)
        await stream.write(CONSUMER)
        await stream.read()
        assert (await waiting).status.code == pb.REQUEST_TIMEOUT


async def test_only_so_many_wait(wire_server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "WAITING_MAX", 2)
    async with client(wire_server, "c1") as asked:
        waiting = [asyncio.ensure_future(ask(wire_server, "PrintThreadStackTrace", client_id="c1")) for _ in range(2)]
        await until(lambda: len(asked) == 2)
        status = (await ask(wire_server, "PrintThreadStackTrace", client_id="c1")).status
        assert status.code == pb.TOO_MANY_REQUESTS
        assert "2 commands wait" in status.message
    assert {(await each).status.code for each in waiting} == {pb.NOT_FOUND}


async def test_clients_are_listed(wire_server: WireServer) -> None:
    await wire_server.call("Heartbeat", wire.HeartbeatRequest(), client_id="unknown")
    async with client(wire_server, "a"), client(wire_server, "b", settings=PRODUCER):
        listed = (await ask(wire_server, "ListClients")).clients
        assert [(each.client_id, each.client_type, each.group.name, each.connected) for each in listed] == [
            ("a", pb.PUSH_CONSUMER, GROUP.name, True),
            ("b", pb.PRODUCER, "", True),
            ("unknown", 0, "", False),
        ]
        of_group = await ask(wire_server, "ListClients", group=GROUP)
        assert [each.client_id for each in of_group.clients] == ["a"]
        assert not (await ask(wire_server, "ListClients", group=pb.Resource(name="others"))).clients


async def test_a_message_is_not_told_to_a_user_who_may_not_read_it(tmp_path: Path) -> None:
    async with opened(tmp_path, administered=True, rules=Rules(auth=True), admin=ADMIN) as wire_server:
        await wire_server.users.add("alice", SECRET, is_admin=False)
        await give(wire_server, "ALLOW SUB group:counters")
        send = wire.SendMessageRequest(messages=[a_message("m1")])
        await wire_server.call("SendMessage", send, headers=as_(*ADMIN))
        async with client(wire_server, "c1", tried(pb.OK), headers=as_("alice")) as asked:
            wish = {"client_id": "alice/c1", "message_id": "m1", "headers": as_(*ADMIN)}
            status = (await ask(wire_server, "VerifyMessage", **wish)).status
            assert (status.code, asked) == (pb.FORBIDDEN, [])
            assert "user 'alice' may not SUB topic 'flights'" in status.message
            await give(wire_server, "ALLOW SUB topic:flights")
            assert (await ask(wire_server, "VerifyMessage", **wish)).status.code == pb.OK


async def test_a_client_that_leaves_while_it_is_told_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stream takes nothing, and is gone before the command is given up."""
    monkeypatch.setattr(commands, "WRITTEN_WITHIN_S", 0.05)
    unheard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    known, stream, blocked = commands.Commands(), object(), asyncio.Event()

    async def tell(_command: commands.Command, _nonce: str) -> None:
        blocked.set()
        await asyncio.Event().wait()

    known.joined("c1", stream, tell)
    asking = asyncio.create_task(known.ask("c1", commands.PrintThreads(), 1))
    await blocked.wait()
    known.left("c1", stream)
    await asyncio.wait([asking])
    assert isinstance(asking.exception(), NoAnswer)
    del asking
    gc.collect()
    assert unheard == []


async def test_a_stream_that_breaks_while_a_command_is_written_is_a_client_that_left() -> None:
    caller, say = Mock(client_id="c1"), AsyncMock(side_effect=BrokenPipeError())
    caller.call.Disconnected = BrokenPipeError
    with pytest.raises(NotFound, match="client 'c1' disconnected"):
        await sender(caller, say, "host:8081")(commands.Reconnect(), "nonce")
