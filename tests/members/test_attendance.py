"""When a member is there, and when it is gone (requirement J1)."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.members import sql as members_sql
from popserver.model.errors import ConsumerGroupNotFound, StoreUnavailable
from popserver.model.group import Model
from tests.support.builders import GROUP
from tests.support.members import come, listed
from tests.support.running_broker import RunningBroker, running_broker
from tests.support.several_brokers import SeveralBrokers, silence

SECOND = 1_000


@pytest.fixture
async def broker(pair: tuple[RunningBroker, RunningBroker]) -> RunningBroker:
    await pair[0].group()
    return pair[0]


async def wait(broker: RunningBroker, by_ms: int) -> None:
    await broker.advance(by_ms)
    await broker.broker.settle()


@pytest.mark.row("J1")
async def test_a_goodbye_counts_at_once(broker: RunningBroker) -> None:
    await come(broker)
    assert await listed(broker) == ["c1"]
    broker.broker.sessions.clients.ended("c1")
    await broker.broker.settle()
    assert await listed(broker) == []


@pytest.mark.row("J1")
async def test_who_is_silent_is_gone_after_120_s(broker: RunningBroker) -> None:
    await come(broker)
    await wait(broker, 120 * SECOND - 1)
    assert await listed(broker) == ["c1"]
    await wait(broker, 1)
    assert await listed(broker) == []


@pytest.mark.row("J1")
async def test_beats_of_30_s_keep_a_member_and_write_nothing(broker: RunningBroker) -> None:
    await come(broker)
    before = await broker.query("SELECT * FROM member")
    for _ in range(10):
        await wait(broker, 30 * SECOND)
        broker.broker.sessions.clients.seen("c1")
    assert await broker.query("SELECT * FROM member") == before


async def test_a_broken_stream_counts_after_a_second(broker: RunningBroker) -> None:
    await come(broker)
    broker.broker.sessions.clients.disconnected("c1", "stream")
    await wait(broker, SECOND - 1)
    assert await listed(broker) == ["c1"]
    await wait(broker, 1)
    assert await listed(broker) == []


async def test_a_pull_that_is_held_keeps_its_member(broker: RunningBroker) -> None:
    await come(broker)
    call = broker.broker.sessions.clients.call_opened("c1")
    broker.broker.sessions.clients.disconnected("c1", "stream")
    await wait(broker, 300 * SECOND)
    assert await listed(broker) == ["c1"]
    broker.broker.sessions.clients.call_closed(call)
    await wait(broker, 120 * SECOND)
    assert await listed(broker) == []


async def test_a_member_that_was_taken_for_gone_is_one_again_when_heard_of(broker: RunningBroker) -> None:
    await come(broker)
    await wait(broker, 121 * SECOND)
    broker.broker.sessions.clients.seen("c1")
    await broker.broker.settle()
    assert await listed(broker) == ["c1"]


async def test_other_clients_keep_their_35_s(broker: RunningBroker) -> None:
    broker.broker.sessions.clients.seen("producer")
    await come(broker)
    await wait(broker, 35 * SECOND)
    assert not broker.broker.sessions.clients.has("producer")
    assert broker.broker.sessions.clients.has("c1")


async def test_who_subscribes_to_nothing_any_more_is_no_member(broker: RunningBroker) -> None:
    await come(broker)
    broker.broker.sessions.clients.settled("c1", works_in_order=False, role=None)
    await broker.broker.settle()
    assert await listed(broker) == []


async def test_a_member_of_another_group_has_left_the_first(broker: RunningBroker) -> None:
    await come(broker)
    members = broker.broker.sessions.group_members
    other = await broker.broker.catalog.group(GROUP._replace(name="shipping"))
    await members.join("c1", members._here["c1"]._replace(group=other))
    await broker.broker.settle()
    assert await listed(broker) == []
    assert [each.client_id for each in await members.of(other.name)] == ["c1"]


async def test_going_that_could_not_be_written_does_not_undo_coming_back(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await come(broker)
    submit = broker.broker.engine.writer.submit
    refuses = True

    async def refuse(request: Any, **more: Any) -> Any:
        if refuses and isinstance(request, members_sql.LeaveGroup):
            raise StoreUnavailable
        return await submit(request, **more)

    monkeypatch.setattr(broker.broker.engine.writer, "submit", refuse)
    broker.broker.sessions.clients.ended("c1")
    await broker.broker.settle()
    await come(broker, stream="another")
    refuses = False
    await wait(broker, 5 * SECOND)
    assert await listed(broker) == ["c1"]


async def test_who_could_not_be_written_is_no_member(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable

    with monkeypatch.context() as patched:
        patched.setattr(broker.broker.engine.writer, "submit", refuse)
        with pytest.raises(StoreUnavailable):
            await come(broker)
    assert broker.broker.sessions.group_members._here == {}
    await come(broker)
    assert await listed(broker) == ["c1"]


async def test_an_unknown_group_has_no_list(broker: RunningBroker) -> None:
    with pytest.raises(ConsumerGroupNotFound, match="'nobody' does not exist"):
        await broker.broker.sessions.group_members.of(GROUP._replace(name="nobody"))


async def test_a_file_starts_without_members(sqlite_url: str) -> None:
    """Their streams are gone with the server that had them; they come again."""
    async with running_broker(sqlite_url) as before:
        await come(before)
        assert await listed(before) == ["c1"]
    async with running_broker(sqlite_url) as after:
        assert await listed(after) == []


@pytest.mark.row("J10")
async def test_members_without_a_queue_are_pointed_out(broker: RunningBroker) -> None:
    await broker.topic(queues=2)
    members = broker.broker.sessions.group_members
    for name in ("c1", "c2"):
        await come(broker, name)
    assert await members.idle_hint(GROUP) == ""
    await come(broker, "c3")
    await come(broker, "everything", model=Model.BROADCASTING)
    hint = await members.idle_hint(GROUP)
    assert "1 of the 4 members of group 'billing' have no queue to consume (c3)" in hint
    assert "2 of topic 'orders'" in hint


# ---- Several servers ----


@pytest.mark.row("J2")
async def test_every_server_lists_the_same(servers: SeveralBrokers) -> None:
    await come(servers.a, "c2")
    await come(servers.b, "c1")
    assert await listed(servers.a) == await listed(servers.b) == ["c1", "c2"]
    servers.b.broker.sessions.clients.ended("c1")
    await servers.settle()
    assert await listed(servers.a) == await listed(servers.b) == ["c2"]


async def test_who_moves_to_another_server_never_was_away(servers: SeveralBrokers) -> None:
    await come(servers.a, stream="first")
    await come(servers.b, stream="second")
    servers.a.broker.sessions.clients.disconnected("c1", "first")
    await servers.advance(5 * SECOND)
    assert await listed(servers.a) == ["c1"]
    await come(servers.a, stream="third")
    servers.b.broker.sessions.clients.disconnected("c1", "second")
    await servers.advance(5 * SECOND)
    assert await listed(servers.b) == ["c1"]


async def test_the_members_of_a_killed_server_are_forgotten(servers: SeveralBrokers) -> None:
    await come(servers.a, "c1")
    await come(servers.b, "c2")
    silence(servers.a)
    for _ in range(4):
        assert await listed(servers.b) == ["c1", "c2"]
        await servers.advance(8 * SECOND)
        servers.b.broker.sessions.clients.seen("c2")
    await servers.advance(5 * SECOND)
    assert await listed(servers.b) == ["c2"]


async def test_a_server_that_was_away_lists_its_members_again(servers: SeveralBrokers) -> None:
    await come(servers.a)
    away = servers.a.broker.servers
    away._closed = True
    for _ in range(4):
        await servers.advance(20 * SECOND)
        servers.a.broker.sessions.clients.seen("c1")
    assert await listed(servers.b) == []
    away._closed = False
    away._begin_heartbeat()
    await servers.settle()
    assert await listed(servers.b) == ["c1"]
