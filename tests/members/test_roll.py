"""Members that are there and not in the list of their group come back into it."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.database.notifications import EVERYTHING, Notification
from popserver.engine.background import RETRY_MS
from popserver.members import sql as members_sql
from popserver.members.notices import NOTIFY_PAUSE_MS
from popserver.model.errors import ConsumerGroupNotFound
from popserver.model.names import Resource
from tests.support.builders import GROUP, TOPIC
from tests.support.members import come, listed
from tests.support.running_broker import RunningBroker, until
from tests.support.several_brokers import SeveralBrokers

SECOND = 1_000
Pair = tuple[RunningBroker, RunningBroker]


async def shares(broker: RunningBroker, *client_ids: str) -> list[list[int]]:
    topic = await broker.broker.catalog.topic(TOPIC)
    members = broker.broker.sessions.group_members
    return [[queue.number for queue in await members.share_of(each, GROUP, topic)] for each in client_ids]


async def settled(pair: Pair) -> None:
    """Two rounds of notices at either broker: what is missed, and what became of it."""
    for _ in range(2):
        for broker in pair:
            await broker.advance(NOTIFY_PAUSE_MS)


# ---- A deleted group ----


@pytest.mark.row("J1", "G6")
async def test_a_group_that_is_made_again_has_the_members_that_are_there(pair: Pair) -> None:
    a, b = pair
    await a.topic(queues=6)
    await come(a, "c1", stream="1")
    await come(b, "c2", stream="2")
    await a.broker.catalog.delete_group(GROUP)
    await settled(pair)
    with pytest.raises(ConsumerGroupNotFound):
        await listed(a)
    await until(lambda: GROUP not in b.broker.catalog._groups)
    await come(b, "c3", stream="3")
    await settled(pair)
    assert await listed(a) == ["c1", "c2", "c3"]
    assert await shares(a, "c1", "c2", "c3") == [[0, 1], [2, 3], [4, 5]]


async def test_whatever_makes_it_again(pair: Pair) -> None:
    """A commit, say; nobody joins."""
    await come(pair[0])
    await pair[1].broker.catalog.delete_group(GROUP)
    await settled(pair)
    await pair[1].group()
    await settled(pair)
    assert await listed(pair[0]) == ["c1"]


async def test_a_member_of_a_deleted_group_is_written_once_and_hinders_nothing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = pair[0]
    await come(broker)
    await broker.broker.catalog.delete_group(GROUP)
    joins = 0
    submit = broker.broker.engine.writer.submit

    async def count(request: Any, **more: Any) -> Any:
        nonlocal joins
        joins += isinstance(request, members_sql.JoinGroup)
        return await submit(request, **more)

    monkeypatch.setattr(broker.broker.engine.writer, "submit", count)
    inner = broker.broker
    inner.sessions.group_members.rejoin("c1", inner.sessions.group_members._here["c1"])
    for _ in range(5):
        await broker.advance(RETRY_MS)
    assert joins == 1
    assert "c1" not in inner.engine.background._waiting


async def test_who_comes_back_to_a_group_made_again_is_in_that_one(pair: Pair) -> None:
    broker = pair[0]
    await come(broker)
    await broker.advance(121 * SECOND)
    await broker.broker.settle()
    await broker.broker.catalog.delete_group(GROUP)
    await broker.group()
    broker.broker.sessions.clients.seen("c1")
    await broker.broker.settle()
    assert await listed(broker) == ["c1"]


# ---- A row that another server has removed ----


async def test_of_two_streams_one_may_break(servers: SeveralBrokers) -> None:
    a, b = servers.a, servers.b
    await a.topic(queues=4)
    await come(a, "c1", stream="at a")
    await come(a, "c2", stream="at a too")
    await come(b, "c1", stream="at b")
    b.broker.sessions.clients.disconnected("c1", "at b")
    await servers.advance(SECOND)
    await until(lambda: "c1" not in b.broker.sessions.group_members._here)
    await servers.advance(NOTIFY_PAUSE_MS)
    await servers.advance(NOTIFY_PAUSE_MS)
    assert await listed(b) == ["c1", "c2"]
    assert await shares(b, "c1", "c2") == [[0, 1], [2, 3]]


async def test_a_late_call_does_not_take_a_member_from_where_it_is(servers: SeveralBrokers) -> None:
    a, b = servers.a, servers.b
    await come(a, stream="at a")
    a.broker.sessions.clients.disconnected("c1", "at a")
    await servers.advance(2 * SECOND)
    await come(b, stream="at b")
    before = await b.query("SELECT * FROM member")
    a.broker.sessions.clients.call_closed(a.broker.sessions.clients.call_opened("c1"))
    await servers.settle()
    assert await b.query("SELECT * FROM member") == before
    for _ in range(5):
        await servers.advance(30 * SECOND)
        b.broker.sessions.clients.seen("c1")
    assert not a.broker.sessions.clients.has("c1")
    assert await listed(b) == ["c1"]
    b.broker.sessions.clients.ended("c1")
    await servers.settle()
    await servers.advance(NOTIFY_PAUSE_MS)
    assert await listed(b) == [], "and nobody brings it back"


async def test_a_notice_that_was_missed_is_made_up_for(servers: SeveralBrokers) -> None:
    a = servers.a
    await come(a)
    await servers.advance(NOTIFY_PAUSE_MS)
    conn = a.broker.engine.database.writing.connect()
    a.broker.engine.database.begin(conn)
    conn.exec_driver_sql("DELETE FROM member")
    a.broker.engine.database.commit(conn)
    conn.close()
    a.broker._on_notification(Notification("", signals=frozenset({EVERYTHING})))
    await servers.advance(NOTIFY_PAUSE_MS)
    await servers.settle()
    assert await listed(a) == ["c1"]


async def test_nothing_is_kept_of_members_that_have_left(pair: Pair) -> None:
    members = pair[0].broker.sessions.group_members
    for name in ("c1", "c2"):
        await come(pair[0], name, stream=name)
    other = await pair[0].broker.catalog.group(Resource("", "shipping"))
    await members.join("c1", members._here["c1"]._replace(group=other))
    assert set(members._refresh._here) == {GROUP, other.name}
    for name in ("c1", "c2"):
        pair[0].broker.sessions.clients.ended(name)
    await pair[0].broker.settle()
    assert (members._refresh._here, members._refresh._listeners, members.notices._listeners) == ({}, {}, {})
