"""Members, shares and locks as clients ask for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from popproto.v1 import legacy_pb2 as legacy
from popproto.v1.legacy_pb2_grpc import LegacyStub
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access.flow import Rules
from popserver.engine.clock import ManualClock
from popserver.members.flow import Membership
from popserver.members.notices import NOTIFY_PAUSE_MS
from popserver.model.errors import StoreUnavailable
from popserver.model.names import Resource
from popserver.model.topic import NewTopic
from popserver.services.administration import operations_of
from tests.support.running_broker import PATIENCE_S, until
from tests.support.signing import signed
from tests.support.wire_server import GROUP, TOPIC, WireServer, headers, opened

SECOND = 1_000


def settings(
    *,
    topic: str = TOPIC.name,
    kind: int = pb.PULL_CONSUMER,
    ours: bool = True,
    expression: str = "*",
    **properties: str,
) -> pb.Settings:
    entry = pb.SubscriptionEntry(topic=pb.Resource(name=topic), expression=pb.FilterExpression(expression=expression))
    named = {f"popmq.{name}": value for name, value in properties.items()} | ({"popmq.client": "1"} if ours else {})
    subscription = pb.Subscription(group=GROUP, subscriptions=[entry] if topic else [])
    return pb.Settings(client_type=kind, subscription=subscription, client_properties=named)  # type: ignore[arg-type]


@asynccontextmanager
async def stream_of(wire_server: WireServer, client_id: str, **said: Any) -> AsyncIterator[tuple[Any, pb.Settings]]:
    """The client's telemetry stream, and what its settings were answered."""
    async with wire_server.telemetry(client_id) as stream:
        await stream.write(wire.TelemetryCommand(settings=settings(**said)))
        answer = await stream.read()
        assert answer.status.code == pb.OK, answer.status
        yield stream, answer.settings


async def frame_of(wire_server: WireServer, stream: Any) -> Any:
    """The next frame, as soon as a group may be told again."""
    clock = wire_server.broker.engine.clock
    assert isinstance(clock, ManualClock)
    await clock.advance(NOTIFY_PAUSE_MS, wire_server.broker.settle)
    async with asyncio.timeout(PATIENCE_S):
        return await stream.read()


async def topic(wire_server: WireServer, queues: int, name: str = TOPIC.name) -> None:
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", name), queues))


async def members(wire_server: WireServer) -> list[legacy.GroupMember]:
    request = legacy.ListMembersRequest(group=GROUP)
    answer = await LegacyStub(wire_server.channel).ListMembers(request, metadata=headers("anybody", {}))
    assert answer.status.code == pb.OK, answer.status
    return list(answer.members)


async def share(wire_server: WireServer, client_id: str, name: str = TOPIC.name) -> list[int]:
    request = wire.QueryAssignmentRequest(group=GROUP, topic=pb.Resource(name=name))
    answer = await wire_server.call("QueryAssignment", request, client_id=client_id)
    assert answer.status.code == pb.OK, answer.status
    return [each.message_queue.id for each in answer.assignments]


def names(*numbers: int, name: str = TOPIC.name) -> list[legacy.QueueName]:
    return [legacy.QueueName(topic=pb.Resource(name=name), queue_id=number) for number in numbers]


async def lock(wire_server: WireServer, client_id: str, *queues: legacy.QueueName) -> Any:
    request = legacy.LockQueuesRequest(group=GROUP, queues=queues)
    return await LegacyStub(wire_server.channel).LockQueues(request, metadata=headers(client_id, {}))


async def unlock(wire_server: WireServer, client_id: str, *queues: legacy.QueueName) -> Any:
    request = legacy.UnlockQueuesRequest(group=GROUP, queues=queues)
    return await LegacyStub(wire_server.channel).UnlockQueues(request, metadata=headers(client_id, {}))


# ---- Members ----


@pytest.mark.row("J1", "J2")
async def test_a_pull_consumer_that_subscribes_is_a_member(wire_server: WireServer) -> None:
    async with stream_of(wire_server, "c2", model="BROADCASTING"), stream_of(wire_server, "c1", expression="a||b"):
        first, second = await members(wire_server)
        assert (first.client_id, first.model, second.client_id, second.model) == (
            "c1",
            "CLUSTERING",
            "c2",
            "BROADCASTING",
        )
        (entry,) = first.subscriptions
        assert (entry.topic.name, entry.expression.type, entry.expression.expression) == (TOPIC.name, pb.TAG, "a || b")
        assert first.joined_at.ToMilliseconds() == wire_server.broker.engine.clock.now_ms()


async def test_others_are_no_members(wire_server: WireServer) -> None:
    kinds = [pb.PUSH_CONSUMER, pb.SIMPLE_CONSUMER]
    async with AsyncExitStack() as streams:
        for kind in kinds:
            await streams.enter_async_context(stream_of(wire_server, f"c{kind}", kind=kind))
        await streams.enter_async_context(stream_of(wire_server, "assigns", topic=""))
        assert await members(wire_server) == []


@pytest.mark.row("J1")
async def test_a_goodbye_ends_it(wire_server: WireServer) -> None:
    async with stream_of(wire_server, "c1"):
        await wire_server.call(
            "NotifyClientTermination", wire.NotifyClientTerminationRequest(group=GROUP), client_id="c1"
        )
        await wire_server.broker.settle()
        assert await members(wire_server) == []


@pytest.mark.row("J1")
@pytest.mark.parametrize("breaks_off", [False, True])
async def test_a_goodbye_before_the_settings_are_answered_counts(
    wire_server: WireServer, breaks_off: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would ever take back the membership that is written after it."""
    inner, asked, may_go_on, joined = (
        wire_server.broker.sessions.group_members,
        asyncio.Event(),
        asyncio.Event(),
        asyncio.Event(),
    )
    joins = inner.join

    async def join(client_id: str, membership: Membership) -> None:
        asked.set()
        await may_go_on.wait()
        await joins(client_id, membership)
        joined.set()
        if breaks_off:
            raise asyncio.CancelledError

    monkeypatch.setattr(inner, "join", join)
    async with wire_server.telemetry("c1") as stream:
        await stream.write(wire.TelemetryCommand(settings=settings()))
        await asked.wait()
        await wire_server.call(
            "NotifyClientTermination", wire.NotifyClientTerminationRequest(group=GROUP), client_id="c1"
        )
        may_go_on.set()
        await joined.wait()
        await until(lambda: "c1" not in inner._here)
    await wire_server.broker.settle()
    assert await members(wire_server) == []


async def test_an_unknown_group_is_refused(wire_server: WireServer) -> None:
    request = legacy.ListMembersRequest(group=pb.Resource(name="nobody"))
    answer = await LegacyStub(wire_server.channel).ListMembers(request, metadata=headers("c1", {}))
    assert answer.status.code == pb.CONSUMER_GROUP_NOT_FOUND
    assert "'nobody' does not exist" in answer.status.message


async def test_an_unknown_model_is_refused_by_name(wire_server: WireServer) -> None:
    async with wire_server.telemetry("c1") as stream:
        await stream.write(wire.TelemetryCommand(settings=settings(model="ANYCAST")))
        refusal = (await stream.read()).status
    assert refusal.code == pb.INVALID_CLIENT_PROPERTIES
    assert "'popmq.model' is 'ANYCAST'; choose one of CLUSTERING, BROADCASTING" in refusal.message
    assert wire_server.broker.sessions.group_members._here == {}


# ---- Notices ----


@pytest.mark.row("G6")
async def test_a_member_is_told_by_a_frame_of_its_settings(wire_server: WireServer) -> None:
    async with stream_of(wire_server, "c1", expression="a") as (stream, first):
        assert first.client_properties["popmq.client_id"] == "c1"
        assert first.client_properties["popmq.resets"] == "0"
        async with stream_of(wire_server, "c2"):
            frame = await frame_of(wire_server, stream)
            assert frame.status.code == pb.OK
            told = frame.settings
            assert told.client_properties["popmq.members"] != first.client_properties["popmq.members"]
            told.client_properties["popmq.members"] = first.client_properties["popmq.members"]
            assert told == first, "all else as it was agreed"


async def test_what_has_changed_meanwhile_is_in_the_next_answer(wire_server: WireServer) -> None:
    async with stream_of(wire_server, "c1") as (_, first):
        pass
    async with stream_of(wire_server, "c2"), stream_of(wire_server, "c1") as (_, second):
        assert second.client_properties["popmq.members"] != first.client_properties["popmq.members"]


async def test_foreign_clients_are_not_told(wire_server: WireServer) -> None:
    async with stream_of(wire_server, "c1", ours=False) as (stream, first):
        assert not [name for name in first.client_properties if name.startswith("popmq")]
        async with stream_of(wire_server, "c2"):
            await stream.write(wire.TelemetryCommand(settings=settings(ours=False, expression="b")))
            frame = await frame_of(wire_server, stream)
            assert frame.settings.subscription.subscriptions[0].expression.expression == "b", "the next is its answer"


async def test_after_a_failure_what_was_agreed_before_is_told_on(
    wire_server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> Any:
        raise StoreUnavailable

    async with stream_of(wire_server, "c1") as (stream, _):
        with monkeypatch.context() as patch:
            patch.setattr(wire_server.broker.catalog, "group", fail)
            await stream.write(wire.TelemetryCommand(settings=settings()))
            assert (await stream.read()).status.code == pb.INTERNAL_SERVER_ERROR
        async with stream_of(wire_server, "c2"):
            assert (await frame_of(wire_server, stream)).settings.client_type == pb.PULL_CONSUMER


async def test_nothing_is_kept_of_streams_that_have_ended(wire_server: WireServer) -> None:
    async with stream_of(wire_server, "c1") as (stream, _):
        await stream.write(wire.TelemetryCommand(settings=settings(expression="b")))
        await stream.read()
    notices = wire_server.broker.sessions.group_members.notices
    wire_server.broker.sessions.clients.ended("c1")
    await until(lambda: not notices._listeners)


# ---- Shares ----


@pytest.mark.row("G1", "J3")
async def test_members_share_a_topics_queues(wire_server: WireServer) -> None:
    await topic(wire_server, 5)
    async with stream_of(wire_server, "c1"), stream_of(wire_server, "c2"):
        assert [await share(wire_server, "c1"), await share(wire_server, "c2")] == [[0, 1, 2], [3, 4]]
        async with stream_of(wire_server, "b"), stream_of(wire_server, "d", topic="refunds"):
            assert [await share(wire_server, name) for name in ("b", "c1", "c2", "d")] == [[0, 1], [2, 3], [4], []]


async def test_who_broadcasts_or_is_no_member_gets_every_queue(wire_server: WireServer) -> None:
    await topic(wire_server, 3)
    async with (
        stream_of(wire_server, "c1", model="BROADCASTING"),
        stream_of(wire_server, "c2", topic=""),
        stream_of(wire_server, "c3"),
    ):
        assert [await share(wire_server, name) for name in ("c1", "c2", "c3")] == [[0, 1, 2]] * 3


async def test_asking_for_a_share_does_not_fix_the_groups_mode(wire_server: WireServer) -> None:
    await topic(wire_server, 3)
    async with stream_of(wire_server, "c1"):
        await share(wire_server, "c1")
        assert (await lock(wire_server, "c1", *names(0))).status.code == pb.OK


async def test_push_and_simple_consumers_get_all_queues_as_before(wire_server: WireServer) -> None:
    await topic(wire_server, 3)
    async with (
        stream_of(wire_server, "c1", kind=pb.PUSH_CONSUMER),
        stream_of(wire_server, "c2", kind=pb.SIMPLE_CONSUMER),
    ):
        assert [await share(wire_server, "c1"), await share(wire_server, "c2")] == [[-1], [-1]]


# ---- Locks ----


@pytest.mark.row("F2", "F3")
async def test_a_lock_is_one_clients_for_60_s(wire_server: WireServer) -> None:
    await topic(wire_server, 3)
    answer = await lock(wire_server, "c1", *names(1, 0))
    assert (answer.status.code, list(answer.locked)) == (pb.OK, names(1, 0))
    assert answer.lapses_after.ToSeconds() == 60
    other = await lock(wire_server, "c2", *names(0, 1, 2))
    assert (other.status.code, list(other.locked)) == (pb.OK, names(2))
    assert (await unlock(wire_server, "c1", *names(0))).status.code == pb.OK
    assert list((await lock(wire_server, "c2", *names(0, 1))).locked) == names(0)
    clock = wire_server.broker.engine.clock
    assert isinstance(clock, ManualClock)
    await clock.advance(60 * SECOND, wire_server.broker.settle)
    assert list((await lock(wire_server, "c2", *names(0, 1))).locked) == names(0, 1)


async def test_locks_that_cannot_be_are_refused(wire_server: WireServer) -> None:
    await topic(wire_server, 3)
    for asked in (lock, unlock):
        refusal = (await asked(wire_server, "c1", *names(0, 7))).status
        assert refusal.code == pb.BAD_REQUEST
        assert "topic 'flights' has no queue 7; it has 3" in refusal.message
        refusal = (await asked(wire_server, "c1", *names(0, name="nowhere"))).status
        assert refusal.code == pb.TOPIC_NOT_FOUND
    await wire_server.receive()
    refusal = (await lock(wire_server, "c1", *names(0))).status
    assert refusal.code == pb.BAD_REQUEST
    assert "'counters' consumes in mode POP" in refusal.message


# ---- Who disagrees, who is idle ----


@pytest.mark.row("G5")
async def test_members_of_different_models_are_warned_of(wire_server: WireServer) -> None:
    with capture_logs() as logs:
        async with stream_of(wire_server, "c1"), stream_of(wire_server, "c2", model="BROADCASTING"):
            facts = await operations_of(wire_server.broker).group(Resource("", GROUP.name))
    (warning,) = [each for each in logs if each["log_level"] == "warning"]
    assert (warning["wants"], warning["other_wants"]) == ("model BROADCASTING", "model CLUSTERING")
    assert any("c1 has model CLUSTERING, c2 has model BROADCASTING" in hint for hint in facts.hints)


@pytest.mark.row("J10")
async def test_idle_members_are_shown_with_their_group(wire_server: WireServer) -> None:
    await topic(wire_server, 1)
    async with stream_of(wire_server, "c1"), stream_of(wire_server, "c2"):
        facts = await operations_of(wire_server.broker).group(Resource("", GROUP.name))
    assert {each.client_id: str(each.kind) for each in facts.consumers} == {"c1": "PULL", "c2": "PULL"}
    assert any("1 of the 2 members of group 'counters' have no queue to consume (c2)" in hint for hint in facts.hints)


async def test_signed_members_are_known_by_their_users_too(tmp_path: Path) -> None:
    """Two users may give their clients one id; and a client learns by which one the members know it."""
    rules, admin = Rules(auth=True), ("root", "root-has-a-secret")
    async with opened(tmp_path, clock=ManualClock(), rules=rules, admin=admin) as wire_server:
        stream: Any = wire_server.stub.Telemetry(metadata=headers("c1", signed(*admin)))
        await stream.write(wire.TelemetryCommand(settings=settings()))
        answer = await stream.read()
        assert answer.settings.client_properties["popmq.client_id"] == "root/c1"
        request = legacy.ListMembersRequest(group=GROUP)
        listed = await LegacyStub(wire_server.channel).ListMembers(request, metadata=headers("c2", signed(*admin)))
        assert [each.client_id for each in listed.members] == ["root/c1"]
        stream.cancel()
