"""A server whose callers must sign: who is let in, to what, and that a refusal changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from popproto.v2 import admin_pb2 as rocketmq
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.admin_pb2_grpc import AdminStub
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from popserver.access.flow import Rules
from popserver.engine.clock import ManualClock
from popserver.model.names import Resource
from popserver.model.topic import NewTopic
from tests.support import wire_pull
from tests.support.running_broker import until
from tests.support.signed_server import ADMIN, REQUESTS, SECRET, as_, give, give_everything, guarded
from tests.support.signing import signed
from tests.support.wire_server import LIMITS, TOPIC, WireServer, a_message, opened, receive_request

LET_IN = "let in"
_ALONE = (("grpc.use_local_subchannel_pool", 1),)

PUBLISHES = {"SendMessage", "EndTransaction", "RecallMessage", "Telemetry"}
ASKS_NOTHING = {"NotifyClientTermination"}
ASKS_THE_TOPIC = {"QueryOffset"}
ASKS_THE_GROUP = {"Heartbeat"}

# What a user has been given, and whether that is enough for (PUB topic, SUB topic, SUB group).
GIVEN: dict[str, tuple[list[str], set[str]]] = {
    "nothing": ([], set()),
    "pub": (["ALLOW PUB topic:flights"], {"PUB"}),
    "sub topic": (["ALLOW SUB topic:flights"], {"SUB"}),
    "sub group": (["ALLOW SUB group:counters"], {"GROUP"}),
    "sub": (["ALLOW SUB topic:flights", "ALLOW SUB group:counters"], {"SUB", "GROUP"}),
    "prefixes": (["ALLOW PUB,SUB topic:fl*", "ALLOW SUB group:*"], {"PUB", "SUB", "GROUP"}),
    "others": (["ALLOW PUB,SUB topic:trains", "ALLOW SUB group:others", "ALLOW PUB,SUB topic:flights2"], set()),
    "denied pub": (["ALLOW PUB,SUB topic:*", "ALLOW SUB group:*", "DENY PUB topic:flights"], {"SUB", "GROUP"}),
    "denied topic": (["ALLOW PUB,SUB topic:flights", "ALLOW SUB group:*", "DENY PUB,SUB topic:*"], {"GROUP"}),
    "denied group": (
        ["ALLOW PUB,SUB topic:*", "ALLOW SUB group:counters", "DENY SUB group:count*"],
        {"PUB", "SUB"},
    ),
    "another namespace": (["ALLOW PUB,SUB topic:* eu", "ALLOW SUB group:* eu"], set()),
}


def is_enough(method: str, rights: set[str]) -> bool:
    if method in ASKS_NOTHING:
        return True
    if method == "QueryRoute":
        return bool(rights & {"PUB", "SUB"})
    if method in PUBLISHES:
        return "PUB" in rights
    if method in ASKS_THE_TOPIC:
        return "SUB" in rights
    if method in ASKS_THE_GROUP:
        return "GROUP" in rights
    return {"SUB", "GROUP"} <= rights


@pytest.fixture
async def guard(tmp_path: Path) -> AsyncIterator[WireServer]:
    async with guarded(tmp_path, users=("alice", "bob")) as wire_server:
        yield wire_server


def kind_of(status: pb.Status) -> str:
    return pb.Code.Name(status.code) if status.code in {pb.UNAUTHORIZED, pb.FORBIDDEN} else LET_IN


def test_the_table_of_requests_is_complete() -> None:
    assert list(REQUESTS) == [method.name for method in wire.DESCRIPTOR.services_by_name["MessagingService"].methods]


@pytest.mark.parametrize("given_", GIVEN)
async def test_a_user_may_what_policies_say(guard: WireServer, given_: str) -> None:
    """Every RPC: 17 times what a user may have been given."""
    policies, rights = GIVEN[given_]
    for policy in policies:
        await give(guard, policy)
    for method, request in REQUESTS.items():
        before = await guard.digest()
        (status,) = await guard.statuses(method, request, headers=as_("alice"))
        if is_enough(method, rights):
            assert kind_of(status) == LET_IN, (method, status)
            continue
        assert status.code == pb.FORBIDDEN, (method, status)
        assert status.message.startswith("user 'alice' may not ")
        assert "flights" in status.message or "counters" in status.message
        assert "popmq acl policy" in status.message
        assert await guard.digest() == before


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": signed("alice", SECRET)["authorization"]},
        {"x-mq-date-time": "20250101T000000Z"},
        signed("alice", "wrong-secret"),
        signed("nobody", SECRET),
        signed("alice", SECRET) | {"x-mq-date-time": "20250101T000001Z"},
        signed("alice", SECRET) | {"authorization": "MQv2-HMAC-SHA1 Credential=, SignedHeaders=, Signature="},
        signed("alice", SECRET) | {"authorization": "MQv2-HMAC-SHA256 Credential=alice"},
    ],
    ids=["unsigned", "undated", "dated", "wrong secret", "unknown", "another date", "empty", "another algorithm"],
)
async def test_who_does_not_sign_rightly_learns_and_changes_nothing(guard: WireServer, headers: dict[str, str]) -> None:
    await give_everything(guard)
    before, clients = await guard.digest(), len(guard.broker.sessions.clients)
    for method, request in REQUESTS.items():
        (status,) = await guard.statuses(method, request, headers=headers)
        assert status.code == pb.UNAUTHORIZED, (method, status)
        assert "alice" not in status.message
        assert "flights" not in status.message
    assert len(guard.broker.sessions.clients) == clients, "nobody was noticed"
    assert await guard.digest() == before


async def test_an_unknown_a_disabled_and_a_wrong_one_are_told_the_same(guard: WireServer) -> None:
    await guard.users.set_disabled("bob", True)
    told = set()
    for headers in (as_("bob"), as_("nobody"), as_("alice", "wrong-secret")):
        (status,) = await guard.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=headers)
        told.add((status.code, status.message))
    assert len(told) == 1


async def test_a_stranger_is_refused_before_his_bytes_are_read(guard: WireServer) -> None:
    answer = wire.SendMessageResponse.FromString(await guard.raw("SendMessage", b"\xff\xff\xff\xff"))
    assert answer.status.code == pb.UNAUTHORIZED


async def test_an_admin_may_everything(guard: WireServer) -> None:
    for method, request in REQUESTS.items():
        for status in await guard.statuses(method, request, headers=as_(*ADMIN)):
            assert kind_of(status) == LET_IN, (method, status)


async def test_a_look_whether_the_server_is_there_needs_no_signature(guard: WireServer) -> None:
    """It has no headers at all, and without an answer the Go client shuns the server (protocol 1.4)."""
    (status,) = await guard.statuses("Heartbeat", wire.HeartbeatRequest(), client_id=None)
    assert status.code == pb.OK
    (status,) = await guard.statuses("Heartbeat", REQUESTS["Heartbeat"], client_id=None)
    assert status.code == pb.CLIENT_ID_REQUIRED


async def test_a_signed_call_still_needs_a_client_id(guard: WireServer) -> None:
    (status,) = await guard.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=as_("alice"), client_id=None)
    assert status.code == pb.CLIENT_ID_REQUIRED


async def test_without_auth_the_header_means_nothing(wire_server: WireServer) -> None:
    for headers in (signed("nobody", "any-secret"), {"authorization": "rubbish"}):
        (status,) = await wire_server.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=headers)
        assert status.code == pb.OK


async def test_every_topic_of_a_request_is_asked_about(guard: WireServer) -> None:
    await give(guard, "ALLOW PUB topic:flights")
    before = await guard.digest()
    mixed = wire.SendMessageRequest(messages=[a_message("a"), a_message("b", topic=pb.Resource(name="secret"))])
    (status,) = await guard.statuses("SendMessage", mixed, headers=as_("alice"))
    assert status.code == pb.FORBIDDEN
    assert "'secret'" in status.message
    assert await guard.digest() == before


async def test_the_namespace_may_stand_in_the_header(guard: WireServer) -> None:
    await give(guard, "ALLOW PUB topic:flights eu")
    send = REQUESTS["SendMessage"]
    (status,) = await guard.statuses("SendMessage", send, headers=as_("alice", **{"x-mq-namespace": "eu"}))
    assert status.code == pb.OK
    (status,) = await guard.statuses("SendMessage", send, headers=as_("alice"))
    assert status.code == pb.FORBIDDEN
    elsewhere = wire.SendMessageRequest(
        messages=[a_message(topic=pb.Resource(name="flights", resource_namespace="us"))]
    )
    (status,) = await guard.statuses("SendMessage", elsewhere, headers=as_("alice", **{"x-mq-namespace": "eu"}))
    assert status.code == pb.FORBIDDEN
    assert "'us/flights'" in status.message


async def test_who_may_not_send_makes_no_topic(guard: WireServer) -> None:
    before = await guard.digest()
    for method in ("QueryRoute", "SendMessage", "QueryAssignment"):
        (status,) = await guard.statuses(method, REQUESTS[method], headers=as_("alice"))
        assert status.code == pb.FORBIDDEN
    assert await guard.digest() == before


async def test_a_group_reads_its_own_dead_letters(guard: WireServer) -> None:
    await give(guard, "ALLOW SUB group:counters")
    for name, expected in (("%DLQ%counters", LET_IN), ("%DLQ%others", "FORBIDDEN")):
        request = receive_request(topic=pb.Resource(name=name))
        (status,) = await guard.statuses("ReceiveMessage", request, headers=as_("alice"))
        assert kind_of(status) == expected, (name, status)


async def test_a_refused_go_push_client_is_made_to_wait(tmp_path: Path) -> None:
    """It asks again 20 ms after any refusal (protocol 1.7), also after one of the signature."""
    async with guarded(tmp_path, limits=LIMITS._replace(push_refusal_pause_ms=100)) as wire_server:
        for headers in (as_("alice"), as_("nobody")):
            started = asyncio.get_running_loop().time()
            go = headers | {"x-mq-language": "GO"}
            (status,) = await wire_server.statuses("ReceiveMessage", receive_request(push=True), headers=go)
            assert status.code in {pb.FORBIDDEN, pb.UNAUTHORIZED}
            assert asyncio.get_running_loop().time() - started >= 0.1


# ---- The log ----


def turned_away(logs: list[Any]) -> list[tuple[str, str, str]]:
    told = [each for each in logs if each["event"] == "caller refused"]
    assert all(each["log_level"] == "warning" for each in told)
    return [(each["user"], each["address"], each["reason"]) for each in told]


async def test_who_is_not_let_in_leaves_a_line_in_the_log(guard: WireServer) -> None:
    await guard.users.set_disabled("bob", True)
    signature = signed("alice", "wrong-secret")["authorization"].rpartition("=")[2]
    with capture_logs() as logs:
        bearer = {"authorization": f"Bearer {SECRET}"}
        for headers in (as_("alice", "wrong-secret"), as_("shpo"), as_("bob"), {}, bearer):
            for _ in range(3):
                await guard.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=headers)
    assert turned_away(logs) == [
        ("alice", "127.0.0.1", "the signature was not made with this user's secret"),
        ("shpo", "127.0.0.1", "there is no user of this name"),
        ("bob", "127.0.0.1", "this user is disabled"),
        ("", "127.0.0.1", "the call is not signed"),
    ]
    assert SECRET not in str(logs)
    assert "wrong-secret" not in str(logs)
    assert signature not in str(logs)


async def test_a_secret_in_the_place_of_the_name_is_not_told(guard: WireServer) -> None:
    with capture_logs() as logs:
        for name in (SECRET, ADMIN[1], "no name at all!", "x" * 65):
            await guard.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=as_(name, "alice"))
    assert [user for user, _, _ in turned_away(logs)] == ["(not shown)"] * 4
    assert SECRET not in str(logs)


async def test_a_signature_that_is_too_old_is_told_as_such(tmp_path: Path) -> None:
    clock = ManualClock()
    async with guarded(tmp_path, rules=Rules(auth=True, max_age_ms=60_000), clock=clock) as wire_server:
        clock._now_ms += 3_600_000
        with capture_logs() as logs:
            await wire_server.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=as_("alice"))
    [(user, _, reason)] = turned_away(logs)
    assert (user, reason[:24]) == ("alice", "the call was signed 3600")


async def test_it_is_told_once_a_minute_and_never_of_more_than_a_thousand(tmp_path: Path) -> None:
    clock = ManualClock()
    async with guarded(tmp_path, clock=clock) as wire_server:

        async def told(*names: str) -> list[str]:
            with capture_logs() as logs:
                for name in names:
                    await wire_server.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=as_(name))
            return [user for user, _, _ in turned_away(logs)]

        assert await told("carl", "carl", "cleo") == ["carl", "cleo"]
        clock._now_ms += 59_999
        assert await told("carl", "cleo") == []
        clock._now_ms += 1
        assert await told("cleo", "carl", "cleo") == ["cleo", "carl"]
        assert len(await told(*(f"n{number}" for number in range(1_010)))) == 998
        clock._now_ms += 60_000
        assert await told("carl") == ["carl"]


# ---- Settings ----


def producing(*topics: str) -> wire.TelemetryCommand:
    named = [pb.Resource(name=topic) for topic in topics]
    return wire.TelemetryCommand(settings=pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=named)))


def consuming(group: str, *topics: str) -> wire.TelemetryCommand:
    entries = [
        pb.SubscriptionEntry(topic=pb.Resource(name=topic), expression=pb.FilterExpression(type=pb.TAG, expression="*"))
        for topic in topics
    ]
    subscription = pb.Subscription(group=pb.Resource(name=group), subscriptions=entries)
    return wire.TelemetryCommand(settings=pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription))


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (producing(), LET_IN),
        (producing("flights"), LET_IN),
        (producing("flights", "trains"), "FORBIDDEN"),
        (consuming("counters", "flights"), LET_IN),
        (consuming("counters", "flights", "trains"), "FORBIDDEN"),
        (consuming("others", "flights"), "FORBIDDEN"),
        (consuming("others"), "FORBIDDEN"),
    ],
)
async def test_settings_name_what_a_client_may(
    guard: WireServer, command: wire.TelemetryCommand, expected: str
) -> None:
    await give(guard, "ALLOW PUB,SUB topic:flights")
    await give(guard, "ALLOW SUB group:counters")
    before = await guard.digest()
    async with guard.telemetry(headers=as_("alice")) as stream:
        await stream.write(command)
        assert kind_of((await stream.read()).status) == expected
        if expected != LET_IN:
            assert await guard.digest() == before
            assert await stream.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "may not" in await stream.details()


async def test_a_stranger_hears_why_and_the_stream_ends(guard: WireServer) -> None:
    async with guard.telemetry(headers=as_("alice", "wrong-secret")) as stream:
        await stream.write(producing("flights"))
        refused = (await stream.read()).status
        assert refused.code == pb.UNAUTHORIZED
        assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await stream.details() == refused.message


async def shut_out(wire_server: WireServer) -> None:
    await wire_server.users.set_disabled("alice", True)


async def rotate(wire_server: WireServer) -> None:
    await wire_server.users.rotate("alice", "another-secret")


async def remove(wire_server: WireServer) -> None:
    await wire_server.users.remove("alice")


async def deny(wire_server: WireServer) -> None:
    await give(wire_server, "DENY PUB,SUB topic:flights")


@pytest.mark.parametrize(
    ("change", "code"),
    [(shut_out, pb.UNAUTHORIZED), (rotate, pb.UNAUTHORIZED), (remove, pb.UNAUTHORIZED), (deny, pb.FORBIDDEN)],
)
async def test_an_open_stream_ends_when_its_user_may_no_longer(
    guard: WireServer, change: Any, code: pb.Code.ValueType
) -> None:
    await give_everything(guard)
    await give_everything(guard, "bob")
    async with (
        guard.telemetry(headers=as_("alice")) as stream,
        guard.telemetry(headers=as_("bob")) as another,
    ):
        for each in (stream, another):
            await each.write(producing("flights"))
            assert (await each.read()).status.code == pb.OK
        await change(guard)
        refused = (await stream.read()).status
        assert refused.code == code
        ends = {pb.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED, pb.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED}
        assert (await stream.code(), await stream.details()) == (ends[code], refused.message)
        await another.write(producing("flights"))
        assert (await another.read()).status.code == pb.OK


@pytest.mark.parametrize(
    ("change", "code"),
    [(shut_out, pb.UNAUTHORIZED), (rotate, pb.UNAUTHORIZED), (remove, pb.UNAUTHORIZED), (deny, pb.FORBIDDEN)],
)
async def test_a_poll_that_waited_gets_nothing_it_may_no_longer_have(
    tmp_path: Path, change: Any, code: pb.Code.ValueType
) -> None:
    clock = ManualClock()
    async with guarded(tmp_path, clock=clock) as wire_server:
        await give_everything(wire_server)
        request = receive_request(poll_ms=20_000)
        poll = asyncio.create_task(wire_server.frames("ReceiveMessage", request, headers=as_("alice"), timeout=30))
        await until(lambda: wire_server.broker.engine.wakeups.parked == 1)
        await change(wire_server)
        sent = await wire_server.call("SendMessage", REQUESTS["SendMessage"], headers=as_(*ADMIN))
        assert sent.status.code == pb.OK
        frames = await poll
        assert [frame.status.code for frame in frames if frame.HasField("status")] == [code]
        assert not any(frame.HasField("message") for frame in frames)
        # It was granted meanwhile; a second later it is there for others.
        await clock.advance(2_000, wire_server.broker.settle)
        again = await wire_server.frames("ReceiveMessage", receive_request(), headers=as_(*ADMIN))
        assert [frame.message.system_properties.message_id for frame in again if frame.HasField("message")] == ["new"]


@pytest.mark.parametrize(
    ("change", "code"),
    [(shut_out, pb.UNAUTHORIZED), (rotate, pb.UNAUTHORIZED), (remove, pb.UNAUTHORIZED), (deny, pb.FORBIDDEN)],
)
@pytest.mark.parametrize("pull", [wire_pull.pull, wire_pull.pull_batch], ids=["PullMessage", "PullBatch"])
async def test_a_pull_that_was_held_gets_nothing_it_may_no_longer_have(
    tmp_path: Path, pull: Any, change: Any, code: pb.Code.ValueType
) -> None:
    async with guarded(tmp_path, clock=ManualClock()) as wire_server:
        await give_everything(wire_server)
        await wire_server.broker.catalog.create_topic(NewTopic(Resource("", TOPIC.name), 1))
        held = asyncio.create_task(pull(wire_server, poll_ms=20_000, headers=as_("alice"), timeout=30))
        await until(lambda: wire_server.broker.consuming.pulls.parked.count == 1)
        await change(wire_server)
        sent = await wire_server.call("SendMessage", REQUESTS["SendMessage"], headers=as_(*ADMIN))
        assert sent.status.code == pb.OK
        refused = await held
        assert (refused.code, refused.messages) == (code, [])


# ---- Clients ----


async def test_nobody_ends_another_users_client(tmp_path: Path) -> None:
    """Two users' clients of one id are two clients: a goodbye of one leaves the other's holds alone."""
    clock = ManualClock()
    async with guarded(tmp_path, users=("alice", "bob"), clock=clock) as wire_server:
        for user in ("alice", "bob"):
            await give_everything(wire_server, user)
        await wire_server.call("SendMessage", REQUESTS["SendMessage"], headers=as_("alice"))
        frames = await wire_server.frames("ReceiveMessage", receive_request(push=True), headers=as_("alice"))
        assert sum(frame.HasField("message") for frame in frames) == 1
        before = await wire_server.digest()
        goodbye = REQUESTS["NotifyClientTermination"]
        for _ in range(2):
            assert (await wire_server.call("NotifyClientTermination", goodbye, headers=as_("bob"))).status.code == pb.OK
        await clock.advance(3_000, wire_server.broker.settle)
        assert await wire_server.digest() == before
        assert (await wire_server.call("NotifyClientTermination", goodbye, headers=as_("alice"))).status.code == pb.OK
        await clock.advance(3_000, wire_server.broker.settle)
        again = await wire_server.frames("ReceiveMessage", receive_request(), headers=as_("bob"))
        assert sum(frame.HasField("message") for frame in again) == 1


async def test_a_stolen_client_id_brings_nothing(guard: WireServer) -> None:
    await give_everything(guard)
    await give_everything(guard, "bob")
    async with guard.telemetry(headers=as_("alice")) as mine, guard.telemetry(headers=as_("bob")) as others:
        for stream in (mine, others):
            await stream.write(producing("flights"))
            assert (await stream.read()).status.code == pb.OK
        assert {client.client_id for client in guard.broker.sessions.clients._by_id.values()} == {
            "alice/test-client",
            "bob/test-client",
        }


async def test_another_groups_handle_is_refused_also_to_who_may_both(guard: WireServer) -> None:
    await give_everything(guard)
    await guard.call("SendMessage", REQUESTS["SendMessage"], headers=as_("alice"))
    frames = await guard.frames("ReceiveMessage", receive_request(), headers=as_("alice"))
    handle = next(frame.message for frame in frames if frame.HasField("message")).system_properties.receipt_handle
    await guard.call(
        "QueryAssignment",
        wire.QueryAssignmentRequest(topic=TOPIC, group=pb.Resource(name="others")),
        headers=as_("alice"),
    )
    before = await guard.digest()
    stolen = wire.AckMessageRequest(
        group=pb.Resource(name="others"), topic=TOPIC, entries=[wire.AckMessageEntry(receipt_handle=handle)]
    )
    assert (await guard.call("AckMessage", stolen, headers=as_("alice"))).status.code == pb.INVALID_RECEIPT_HANDLE
    assert await guard.digest() == before


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.one_of(
        st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=80),
        st.lists(
            st.sampled_from(["Credential=alice", "Credential=root", "Signature=00", "Signature=", "=", ",", "/", " "])
        ).map("".join),
    )
)
def test_no_header_opens_the_door(shared_guard: tuple[Any, WireServer], text: str) -> None:
    run, wire_server = shared_guard
    for header in (text, f"MQv2-HMAC-SHA1 {text}"):
        headers = {"x-mq-date-time": "20250101T000000Z", "authorization": header.strip()}
        (status,) = run(wire_server.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=headers))
        assert status.code == pb.UNAUTHORIZED


@pytest.fixture
def shared_guard(tmp_path: Path) -> Any:
    with asyncio.Runner() as runner:
        context = guarded(tmp_path)
        wire_server = runner.run(context.__aenter__())
        yield runner.run, wire_server
        runner.run(context.__aexit__(None, None, None))


# ---- Quotas ----


async def test_a_quota_refuses_and_says_how_long(tmp_path: Path) -> None:
    clock = ManualClock()
    async with guarded(tmp_path, rules=Rules(auth=True, messages_per_s=2), clock=clock) as wire_server:
        await give_everything(wire_server)

        async def send(message_id: str, user: str = "alice", secret: str = SECRET) -> pb.Status:
            request = wire.SendMessageRequest(messages=[a_message(message_id)])
            status: pb.Status = (await wire_server.call("SendMessage", request, headers=as_(user, secret))).status
            return status

        assert [(await send(name)).code for name in ("a", "b")] == [pb.OK, pb.OK]
        before = await wire_server.digest()
        refused = await send("c")
        assert refused.code == pb.TOO_MANY_REQUESTS
        assert refused.message == "user 'alice' has used up its 2 messages per second; try again in 1 ms"
        assert await wire_server.digest() == before
        assert (await send("d", *ADMIN)).code == pb.OK, "another user's is another one"
        clock._now_ms += 500
        assert (await send("c")).code == pb.OK


async def test_an_admin_sends_within_the_same_quota(tmp_path: Path) -> None:
    rules = Rules(auth=True, messages_per_s=1)
    async with guarded(tmp_path, rules=rules, clock=ManualClock(), administered=True) as wire_server:
        stub, metadata = AdminStub(wire_server.channel), tuple(as_(*ADMIN).items())
        request = rocketmq.AdminSendMessageRequest(topic=TOPIC, body=b"x")
        answers = [await stub.AdminSendMessage(request, metadata=metadata) for _ in range(2)]
        assert [each.status.code for each in answers] == [pb.OK, pb.TOO_MANY_REQUESTS]
        assert "has used up its 1 messages per second" in answers[1].status.message
        sent = wire.SendMessageRequest(messages=[a_message("a")])
        (status,) = await wire_server.statuses("SendMessage", sent, headers=as_(*ADMIN))
        assert status.code == pb.TOO_MANY_REQUESTS


async def test_without_users_an_address_has_the_quota_of_what_it_sends(tmp_path: Path) -> None:
    rules = Rules(requests_per_s=1, messages_per_s=5)
    async with opened(tmp_path, rules=rules, clock=ManualClock(), administered=True) as wire_server:
        request = rocketmq.AdminSendMessageRequest(topic=TOPIC, body=b"x")
        answers = [await AdminStub(wire_server.channel).AdminSendMessage(request) for _ in range(2)]
        assert [each.status.code for each in answers] == [pb.OK, pb.TOO_MANY_REQUESTS]
        assert answers[1].status.message.startswith("address '127.0.0.1' has used up its 1 requests per second")
        reads = await AdminStub(wire_server.channel).DescribeTopicStatus(
            rocketmq.DescribeTopicStatusRequest(topic=TOPIC)
        )
        assert reads.status.code == pb.OK


async def test_what_ends_holds_is_counted_but_never_refused(tmp_path: Path) -> None:
    async with opened(tmp_path, rules=Rules(requests_per_s=1), clock=ManualClock()) as wire_server:
        for method in ("AckMessage", "ChangeInvisibleDuration", "Heartbeat", "NotifyClientTermination", "Telemetry"):
            for _ in range(2):
                (status,) = await wire_server.statuses(method, REQUESTS[method])
                assert status.code != pb.TOO_MANY_REQUESTS
        for method in ("QueryRoute", "SendMessage", "ReceiveMessage", "QueryAssignment"):
            (status,) = await wire_server.statuses(method, REQUESTS[method])
            assert status.code == pb.TOO_MANY_REQUESTS
            assert "client 'test-client'" in status.message
        (status,) = await wire_server.statuses("QueryRoute", REQUESTS["QueryRoute"], client_id="another")
        assert status.code == pb.OK


async def test_who_is_refused_otherwise_pays_nothing(tmp_path: Path) -> None:
    rules = Rules(auth=True, messages_per_s=1)
    async with guarded(tmp_path, rules=rules, clock=ManualClock()) as wire_server:
        for _ in range(3):
            (status,) = await wire_server.statuses("SendMessage", REQUESTS["SendMessage"], headers=as_("alice"))
            assert status.code == pb.FORBIDDEN
        await give_everything(wire_server)
        (status,) = await wire_server.statuses("SendMessage", REQUESTS["SendMessage"], headers=as_("alice"))
        assert status.code == pb.OK


# ---- Connections ----


@pytest.mark.builtin("knows which connections signed")
async def test_a_flood_that_never_signs_ends_no_connection_that_did(tmp_path: Path) -> None:
    """And a newcomer always finds room; in every mode, as callers must sign."""
    limits = LIMITS._replace(connections_max=8, connections_per_address_max=8)
    async with guarded(tmp_path, limits=limits) as wire_server:
        (status,) = await wire_server.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=as_("alice"))
        assert status.code != pb.UNAUTHORIZED
        unsigned = wire_server.broker.engine.budgets["connections without a signature"]
        connections = wire_server.broker.engine.budgets["connections"]
        assert (connections.used, unsigned.used) == (1, 0)
        flood = [await asyncio.open_connection("127.0.0.1", wire_server.server.port) for _ in range(20)]
        for _, writer in flood:
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        for reader, _ in flood[:16]:
            await ended(reader)
        assert (connections.used, unsigned.used, unsigned.refused) == (5, 4, 16)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{wire_server.server.port}", options=_ALONE) as newcomer:
            stub = MessagingServiceStub(newcomer)
            answer = await stub.QueryRoute(
                REQUESTS["QueryRoute"],
                metadata=tuple(as_("alice", **{"x-mq-client-id": "another"}).items()),
                wait_for_ready=True,
            )
            assert answer.status.code != pb.UNAUTHORIZED
            assert (connections.used, unsigned.used) == (5, 3)
        (status,) = await wire_server.statuses("QueryRoute", REQUESTS["QueryRoute"], headers=as_("alice"))
        assert status.code != pb.UNAUTHORIZED
        for _, writer in flood:
            writer.transport.abort()


async def ended(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), 30)


# ---- Back-pressure ----


async def test_what_waits_to_be_stored_is_bounded(tmp_path: Path) -> None:
    """A store that does not keep up makes senders wait, not the memory grow; and nothing answered OK is lost."""
    async with opened(tmp_path, limits=LIMITS) as wire_server:
        await wire_server.send(a_message("first"))
        backlog = wire_server.broker.engine.budgets["send backlog"]
        backlog.limit = 4_000
        sends = [
            wire.SendMessageRequest(messages=[a_message(f"m{number}", body=bytes(1_000))]) for number in range(100)
        ]
        answers = await asyncio.gather(*(wire_server.call("SendMessage", send) for send in sends))
        statuses = [answer.status for answer in answers]
        refused = [status for status in statuses if status.code != pb.OK]
        assert refused
        assert all(status.code == pb.TOO_MANY_REQUESTS for status in refused)
        assert "--send-backlog" in refused[0].message
        stored = 1 + len(statuses) - len(refused)
        assert len({message.system_properties.message_id for message in await _all(wire_server)}) == stored
        assert (backlog.used, backlog.refused) == (0, len(refused))
        assert (await wire_server.send(a_message("last", body=bytes(1_000_000)))).status.code == pb.OK, (
            "alone it may be large"
        )


async def _all(wire_server: WireServer) -> list[pb.Message]:
    received: list[pb.Message] = []
    while batch := await wire_server.receive():
        received += batch
    return received
