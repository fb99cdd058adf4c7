"""What one server commits wakes the polls that wait at another."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

from popserver.cluster import listen as cluster_listen
from popserver.cluster.listen import listen
from popserver.database.database import Database
from popserver.members.notices import NOTIFY_PAUSE_MS
from popserver.model.errors import StoreUnavailable
from popserver.model.names import dead_letter_topic
from popserver.model.retry import SECOND_MS
from tests.support.builders import GROUP, TOPIC
from tests.support.members import Heard, come
from tests.support.running_broker import RunningBroker, ids, until
from tests.support.several_brokers import SeveralBrokers, notices, silence


async def poll_at(broker: RunningBroker, **more: Any) -> asyncio.Task[Any]:
    """A long poll that nothing but a notice can wake: its own server does nothing."""
    return await broker.poll(poll_ms=3_600_000, **more)


async def test_a_send_wakes_a_poll_elsewhere(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    poll = await poll_at(servers.b)
    (sent,) = await servers.a.send()
    assert ids(await poll) == [sent.message_id]


async def test_what_was_found_empty_is_looked_at_again(servers: SeveralBrokers) -> None:
    for _ in range(3):
        assert await servers.b.receive() == []
        (sent,) = await servers.a.send()
        assert ids(await servers.b.receive(poll_ms=10_000)) == [sent.message_id]


async def test_one_message_wakes_one_poll_of_each_server(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    polls = [await poll_at(each, batch_size=1) for each in (servers.a, servers.b) for _ in range(3)]
    await servers.a.send()
    await until(lambda: sum(poll.done() for poll in polls) == 1)
    await servers.settle()
    assert sum(poll.done() for poll in polls) == 1
    await servers.a.send(5)
    await asyncio.gather(*polls)


async def test_a_hold_that_ends_wakes_a_poll_elsewhere(servers: SeveralBrokers) -> None:
    await servers.a.send()
    (held,) = await servers.a.receive(invisible_ms=2_500)
    poll = await poll_at(servers.b)
    await servers.advance(2_500)
    assert [each.attempt for each in await poll] == [held.attempt + 1]


async def test_what_is_given_back_wakes_a_poll_elsewhere(servers: SeveralBrokers) -> None:
    await servers.a.send()
    (held,) = await servers.a.receive()
    poll = await poll_at(servers.b)
    await servers.a.change(held, 0, give_back=True)
    assert [each.attempt for each in await poll] == [1]


async def test_a_dead_letter_wakes_who_watches_elsewhere(servers: SeveralBrokers) -> None:
    await servers.a.send()
    (held,) = await servers.a.receive()
    watching = await poll_at(servers.b, group=GROUP._replace(name="watchers"), topic=dead_letter_topic(GROUP))
    await servers.a.broker.forward_to_dead_letter_queue(GROUP, TOPIC, held.receipt_handle)
    assert ids(await watching) == [held.stored.message.message_id]


async def test_a_killed_servers_holds_end_at_their_time(servers: SeveralBrokers) -> None:
    await servers.a.send()
    await servers.a.receive(invisible_ms=5_000)
    silence(servers.a)
    poll = await poll_at(servers.b)
    await servers.advance(4_999)
    assert not poll.done()
    await servers.advance(1)
    assert [each.attempt for each in await poll] == [2]


async def test_who_has_just_come_misses_nothing(lone_server: SeveralBrokers) -> None:
    """Messages are sent all the time while further servers come, poll, and go on polling."""
    servers = lone_server
    await servers.a.topic()
    sent: list[str] = []
    stopping = asyncio.Event()

    async def send() -> None:
        while not stopping.is_set():
            sent.extend(each.message_id for each in await servers.a.send())
            await asyncio.sleep(0.001)

    sending = asyncio.create_task(send())
    received: list[str] = []
    for _ in range(5):
        newcomer = await servers.one_more()
        for _ in range(20):
            received += ids(await asyncio.wait_for(newcomer.receive(1, poll_ms=3_600_000), 60))
    stopping.set()
    await sending
    assert received == sent[: len(received)], "the topic has one queue"


async def test_who_has_just_come_is_told_of_what_was_not_told(lone_server: SeveralBrokers) -> None:
    """The old server has not heard of the new one, and commits; the new one's poll has parked already."""
    servers = lone_server
    await servers.a.topic()
    deaf = servers.a.broker.servers
    hear, deaf._on_notification = deaf._on_notification, lambda notification: None  # type: ignore[method-assign]
    assert deaf._feed is not None
    deaf._feed._heard = deaf._on_notification
    newcomer = await servers.one_more()
    poll = await poll_at(newcomer)
    with notices(servers.a.broker.engine.database) as said:
        (sent,) = await servers.a.send()
    assert said == []
    deaf._feed._heard = hear
    await servers.advance(3 * SECOND_MS)
    assert ids(await asyncio.wait_for(poll, 60)) == [sent.message_id]


async def test_a_lone_server_tells_nobody(lone_server: SeveralBrokers) -> None:
    alone = lone_server.a
    with notices(alone.broker.engine.database) as said:
        await alone.send(3)
        await alone.ack(*await alone.receive())
        await alone.advance(30 * SECOND_MS)
    assert said == []
    assert alone.broker.servers.others == ()


async def test_until_it_hears_a_server_tells_everybody(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await deafen(servers)
    with notices(servers.a.broker.engine.database) as said:
        await servers.a.send()
    assert len(said) == 1


async def test_a_broken_ear_hears_again_and_looks_at_what_it_missed(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    poll = await poll_at(servers.b)
    await deafen(servers)
    (sent,) = await servers.a.send()
    assert ids(await asyncio.wait_for(poll, 60)) == [sent.message_id]
    await until(lambda: is_hearing(servers.b))
    again = await poll_at(servers.b)
    (sent,) = await servers.a.send()
    assert ids(await asyncio.wait_for(again, 60)) == [sent.message_id]


async def test_members_are_told_of_what_a_broken_ear_missed(
    servers: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_listen = asyncio.Event()

    async def listen_when_let(database: Database) -> Any:
        await may_listen.wait()
        return await listen(database)

    monkeypatch.setattr(cluster_listen, "listen", listen_when_let)
    await servers.a.group()
    heard = Heard(servers.b)
    await deafen(servers)
    await until(lambda: len(heard.told) == 1)
    await servers.advance(NOTIFY_PAUSE_MS)
    await come(servers.a)
    assert len(heard.told) == 1
    may_listen.set()
    await until(lambda: is_hearing(servers.b))
    # The group may rest from an earlier telling, which the manual clock alone can end.
    while len(heard.told) < 2:
        await servers.advance(NOTIFY_PAUSE_MS)
        await asyncio.sleep(0.01)


async def test_without_an_ear_it_looks_once_a_second(servers: SeveralBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    async def nobody(_: Database) -> Any:
        raise StoreUnavailable("not now")

    await servers.a.topic()
    poll = await poll_at(servers.b)
    monkeypatch.setattr(cluster_listen, "listen", nobody)
    await deafen(servers)
    (sent,) = await servers.a.send()
    assert ids(await asyncio.wait_for(poll, 60)) == [sent.message_id]


@pytest.mark.parametrize("said", ["rubbish", '["x",[1],[["topic"]],[]]', '["x",[Infinity],[],[]]'])
async def test_rubbish_on_the_channel_does_no_harm(servers: SeveralBrokers, said: str) -> None:
    await servers.a.topic()
    with psycopg.connect(servers.url, autocommit=True) as conn, capture_logs() as logs:
        for _ in range(3):
            conn.execute("SELECT pg_notify('popmq', %s)", (said,))
        poll = await poll_at(servers.b)
        (sent,) = await servers.a.send()
        # What comes by the same channel after it is heard.
        assert ids(await poll) == [sent.message_id]
    told = [each["payload"] for each in logs if each["event"].startswith("a notification cannot be decoded")]
    assert set(told) == {said}
    assert len(told) <= 2, "once a minute at each server"


async def test_a_users_own_transaction_is_heard(servers: SeveralBrokers) -> None:
    """`popmq_ack` of a message of a message group says `due`."""
    await servers.a.topic()
    await servers.settle()
    before = servers.b.broker.maintenance._sleeper
    woken: list[int] = []
    before._work = noting(before._work, woken)
    with psycopg.connect(servers.url, autocommit=True) as conn:
        conn.execute("NOTIFY popmq, 'due'")
    # A manual clock rings an alarm for now when it is moved, be it by nothing.
    for _ in range(200):
        await servers.advance(0)
        if woken:
            break
        await asyncio.sleep(0.01)
    assert woken


def noting(work: Any, woken: list[int]) -> Any:
    async def noted() -> Any:
        woken.append(1)
        return await work()

    return noted


async def deafen(servers: SeveralBrokers) -> None:
    """End the connections on which they listen."""
    with psycopg.connect(servers.url) as conn:
        conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query = 'LISTEN popmq'")
    await until(lambda: not is_hearing(servers.a) and not is_hearing(servers.b))


def is_hearing(broker: RunningBroker) -> bool:
    ear = broker.broker.servers._feed
    return ear is not None and ear.is_up
