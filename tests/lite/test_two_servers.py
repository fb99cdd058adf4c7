"""Lite topics on two servers that share one Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from popserver.lite.expire import ExpireLite
from popserver.lite.flow import LiteAction
from popserver.lite.subscriptions import SILENT_MS
from popserver.messages.lite_topics import expiring
from popserver.model.group import LiteModel
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from tests.support.builders import TOPIC
from tests.support.lite_broker import LiteBroker, lite_messages
from tests.support.running_broker import ids, until, watched
from tests.support.several_brokers import SeveralBrokers


class Pair:
    """Two servers with one topic of lite topics."""

    def __init__(self, servers: SeveralBrokers) -> None:
        self.servers = servers
        self.a, self.b = (LiteBroker(each.broker, each.clock) for each in (servers.a, servers.b))
        self.told: list[tuple[str, str, str]] = []  # which server would tell which client, and the lite topic
        for name, each in (("a", self.a), ("b", self.b)):
            each.broker.sessions.lite._notify = self._teller(name)

    def _teller(self, server: str) -> Callable[[str, str], Awaitable[None]]:
        async def tell(client_id: str, lite_topic: str) -> None:
            self.told.append((server, client_id, lite_topic))

        return tell

    def known(self, broker: LiteBroker) -> dict[str, set[str]]:
        clients = broker.broker.sessions.lite.clients
        return {key.client_id: client.lite_topics for key, client in clients._known.items()}


@pytest.fixture
async def pair(servers: SeveralBrokers) -> Pair:
    pair = Pair(servers)
    await pair.a.broker.catalog.create_topic(NewTopic(TOPIC, 2, (MessageType.LITE,)))
    return pair


async def test_what_is_subscribed_at_one_server_is_delivered_at_each(pair: Pair) -> None:
    await pair.a.sync("a", "b")
    sent = await pair.b.send_lite("a", "b", "c")
    assert set(await pair.a.take(batch_size=1)) | set(await pair.b.take()) == set(sent[:2])
    assert await pair.a.got() == await pair.b.got() == []


async def test_a_send_at_one_server_wakes_the_client_at_the_other(pair: Pair) -> None:
    await pair.a.sync("a", client_id="one")
    await pair.a.sync("b", client_id="two")
    one, two = await pair.a.poll(client_id="one"), await pair.a.poll(client_id="two")
    sent = await pair.b.send_lite("a")
    assert ids(await one) == sent
    assert not two.done()
    sent = await pair.b.send_lite("b")
    assert ids(await two) == sent


async def test_a_poll_hears_of_a_subscription_at_the_other_server(pair: Pair) -> None:
    await pair.a.exclusive(model=LiteModel.SHARED)
    sent = await pair.b.send_lite("a")
    poll = await pair.a.poll(client_id="one")
    await pair.b.sync("a", client_id="one")
    assert ids(await poll) == sent


async def test_the_server_that_has_the_session_tells_what_is_lost(pair: Pair) -> None:
    """The client's calls come to the other server, its session is here."""
    await pair.b.exclusive()
    await pair.b.sync("a", "b", client_id="one")
    await pair.b.sync("a", client_id="two")
    await until(lambda: {("a", "one", "a"), ("b", "one", "a")} == set(pair.told))
    pair.told.clear()
    await pair.b.sync("a", "b", client_id="one", action=LiteAction.COMPLETE_ADD)
    await until(lambda: {("a", "one", "a"), ("b", "one", "a")} == set(pair.told))
    sent = await pair.a.send_lite("a", "b")
    assert await pair.a.take("one") == sent[1:]
    assert await pair.a.take("two") == sent[:1]


async def test_who_unsubscribes_itself_is_told_nothing(pair: Pair) -> None:
    await pair.a.sync("a", "b", client_id="one")
    await pair.b.sync("a", client_id="one", action=LiteAction.PARTIAL_REMOVE)
    await until(lambda: pair.known(pair.a) == {"one": {"b"}})
    await pair.servers.settle()
    assert pair.told == []


async def test_a_client_that_moves_to_another_server_keeps_its_lite_topics(pair: Pair) -> None:
    await pair.a.sync("a", client_id="one")
    poll = await pair.a.poll(client_id="one")
    poll.cancel()
    for _ in range(3):
        await pair.servers.advance(SILENT_MS // 2)
        await pair.b.sync("a", client_id="one", action=LiteAction.COMPLETE_ADD)
    sent = await pair.a.send_lite("a")
    assert await pair.b.take("one") == sent


async def test_a_client_that_is_gone_is_forgotten_everywhere(pair: Pair) -> None:
    await pair.a.sync("a", client_id="one")
    assert await pair.b.got("one") == []
    assert pair.known(pair.a) == pair.known(pair.b) == {"one": {"a"}}
    await pair.b.sync(client_id="one", action=LiteAction.COMPLETE_REMOVE)
    await until(lambda: not pair.known(pair.a) and not pair.known(pair.b))
    await pair.a.sync("a", client_id="one")
    assert await pair.b.got("one") == []
    await pair.servers.advance(SILENT_MS + 1_000)
    await until(lambda: not pair.known(pair.a) and not pair.known(pair.b))


async def test_a_deleted_group_is_forgotten_everywhere(pair: Pair) -> None:
    other = Resource("", "other")
    await pair.a.sync("a", client_id="one", group=other)
    assert await pair.b.got("one", group=other) == []
    await pair.a.broker.catalog.delete_group(other)
    await pair.servers.settle()
    await until(lambda: not pair.known(pair.a) and not pair.known(pair.b))


async def test_a_lite_topic_that_both_create_counts_once(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    sent: list[str] = []

    def meanwhile() -> None:
        if not sent:
            sent.append("b")
            asyncio.run_coroutine_threadsafe(pair.b.send_lite("a", "b"), loop).result(20)

    # After the lite topics that are missing were read.
    with watched(pair.a.broker.engine.database, ("SELECT topic", "UPDATE topic"), meanwhile):
        await pair.a.send_lite("a", "c")
    assert sent == ["b"]
    (row,) = await pair.a.query("SELECT lite_topics FROM topic WHERE name = 'orders'")
    assert row.lite_topics == 3


async def test_expiry_waits_for_no_send(pair: Pair) -> None:
    """A send that creates lite topics has locked the topic, and may be about to lock the queue."""
    await pair.a.broker.catalog.update_topic(TOPIC, lite_expires_ms=60_000)
    await pair.a.send_lite("a")
    database = pair.a.broker.engine.database
    with database.connect_writer() as conn:
        conn.exec_driver_sql("BEGIN")
        conn.exec_driver_sql("UPDATE topic SET lite_topics = lite_topics")
        with capture_logs() as said:
            await pair.servers.advance(120_002)
        assert not [each for each in said if "delayed" in each["event"]]
        conn.exec_driver_sql("ROLLBACK")
    count = "SELECT COUNT(*) AS n FROM lite_topic"
    assert (await pair.a.query(count))[0].n == 1
    await pair.servers.advance(60_001)
    assert (await pair.a.query(count))[0].n == 0


@pytest.mark.parametrize("remembers", [True, False])
async def test_a_message_that_is_sent_while_its_lite_topic_expires_is_delivered(pair: Pair, *, remembers: bool) -> None:
    await pair.a.sync("a")
    await pair.a.send_lite("a")
    await pair.a.take()
    await pair.servers.advance(600_000)
    await pair.a.sync("a")
    await pair.a.broker.catalog.update_topic(TOPIC, lite_expires_ms=60_000)
    loop, b = asyncio.get_running_loop(), pair.b.broker
    removed: list[int] = []

    async def expire() -> None:
        found = await b.engine.reader.read(lambda conn: expiring(conn, b.engine.clock.aged_ms()))
        removed.append(await b.engine.writer.submit(ExpireLite(found)))

    def meanwhile() -> None:
        if not removed:
            asyncio.run_coroutine_threadsafe(expire(), loop).result(20)

    if not remembers:
        pair.a.broker.engine.writer._memory.clear()
    # After the lite topic was found, or remembered, before the queue is locked.
    with watched(pair.a.broker.engine.database, "UPDATE queue", meanwhile):
        sent = await pair.a.send_lite("a")
    assert removed == [1]
    assert await pair.a.take() == sent


async def test_a_server_does_not_believe_in_lite_topics_that_another_has_removed(pair: Pair) -> None:
    await pair.a.sync("a", "b")
    await pair.a.send_lite("a", "b")
    await pair.b.send_lite("a", "b")
    assert len(await pair.a.take()) == 4
    await pair.a.broker.catalog.update_topic(TOPIC, lite_expires_ms=60_000)
    await pair.servers.advance(120_002)
    assert await pair.a.query("SELECT name FROM lite_topic") == []
    await pair.a.sync("a", "b")
    for server in (pair.a, pair.b):
        sent = await server.send_lite("a", "b")
        assert set(await pair.a.take()) == set(sent)
    assert [row.name for row in await pair.a.query("SELECT name FROM lite_topic ORDER BY name")] == ["a", "b"]


async def test_a_repeated_send_to_an_expired_lite_topic_creates_none(pair: Pair) -> None:
    await pair.a.broker.catalog.update_topic(TOPIC, lite_expires_ms=60_000)
    message = lite_messages("a")
    await pair.a.send(message)
    await pair.servers.advance(180_000)
    await pair.a.send(message)
    assert await pair.a.query("SELECT lite_topics FROM topic WHERE lite_topics <> 0") == []
