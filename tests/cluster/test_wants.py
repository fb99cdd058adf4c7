"""A server notifies the others only of topics in which one of them has waiting polls, and no wake-up is lost by it."""

from __future__ import annotations

import asyncio

from popserver.cluster.wanted import WantedTopics
from popserver.database.notifications import WANTS, Notification
from popserver.engine.clock import ManualClock
from popserver.engine.wakeups import WATCHED_MS, PollKey, WatchedTopics
from tests.support.builders import TOPIC
from tests.support.running_broker import ids, until
from tests.support.several_brokers import SeveralBrokers, notices

ONE, TWO, THREE = 1, 2, 3


def test_whoever_has_announced_nothing_wants_all() -> None:
    wanted = WantedTopics()
    assert set(wanted.among({ONE, TWO})) == {ONE, TWO}
    wanted.announced("b", frozenset({ONE}))
    wanted.agree_on({"b", "c"})
    assert set(wanted.among({ONE, TWO})) == {ONE, TWO}
    wanted.announced("c", frozenset())
    wanted.agree_on({"b", "c"})
    assert set(wanted.among({ONE, TWO})) == {ONE}


def test_what_was_left_out_is_named_when_a_server_wants_it() -> None:
    wanted = WantedTopics()
    wanted.announced("b", frozenset({ONE}))
    wanted.agree_on({"b"})
    assert list(wanted.among({TWO, THREE})) == []
    assert wanted.announced("b", frozenset({ONE, TWO})) == {TWO}
    assert set(wanted.among({ONE, TWO})) == {ONE, TWO}
    assert wanted.announced("b", frozenset({ONE, TWO})) == set()
    assert wanted.announced("b", None) == {THREE}
    assert set(wanted.among({THREE})) == {THREE}


def test_a_server_that_is_gone_wants_nothing_and_after_a_gap_all_want_all() -> None:
    wanted = WantedTopics()
    wanted.announced("b", frozenset({ONE}))
    wanted.announced("c", frozenset({TWO}))
    wanted.agree_on({"b", "c"})
    wanted.agree_on({"c"})
    assert set(wanted.among({ONE, TWO})) == {TWO}
    wanted.forget()
    assert set(wanted.among({ONE, TWO})) == {ONE, TWO}


def test_an_announcement_that_comes_before_its_servers_heartbeat_counts() -> None:
    wanted = WantedTopics()
    wanted.announced("b", frozenset({ONE}))
    wanted.agree_on(())
    wanted.agree_on({"b"})
    assert set(wanted.among({ONE, TWO})) == {ONE}


async def test_a_topic_is_watched_for_a_while_after_its_last_poll() -> None:
    clock, announced = ManualClock(), []
    watched = WatchedTopics(clock)
    watched.on_new = lambda: announced.append(watched.topics())
    for _ in range(2):
        with watched.at(ONE), watched.at(ONE):
            watched.forget_old()
            assert ONE in watched
    assert announced == [{ONE}]
    await clock.advance(WATCHED_MS - 1, _nothing)
    watched.forget_old()
    assert watched.topics() == {ONE}
    await clock.advance(1, _nothing)
    watched.forget_old()
    assert watched.topics() == set()


def test_only_among_several_servers_it_matters_what_is_watched() -> None:
    watched = WatchedTopics(ManualClock())
    assert watched.hears_of(ONE)
    watched.is_shared = True
    assert not watched.hears_of(ONE)


async def test_what_nobody_waits_for_is_not_notified(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await _agreed(servers)
    with notices(servers.a.broker.engine.database) as said:
        (first,) = await servers.a.send()
        assert said == []
        assert ids(await servers.b.receive()) == [first.message_id]
        poll = await servers.b.poll(poll_ms=3_600_000)
        (second,) = await servers.a.send()
        assert ids(await poll) == [second.message_id]


async def test_an_announcement_that_comes_after_the_commit_wakes_the_poll(servers: SeveralBrokers) -> None:
    """The message is sent when the poll has searched and waits already, and its server's announcement is under way."""
    await servers.a.topic()
    await _agreed(servers)
    feed = servers.a.broker.servers._feed
    assert feed is not None
    hear, held = feed._heard, list[Notification]()
    feed._heard = held.append
    poll = await servers.b.poll(poll_ms=3_600_000)
    with notices(servers.a.broker.engine.database) as said:
        (sent,) = await servers.a.send()
    assert said == []
    await until(lambda: any(WANTS in each.signals for each in held))
    assert not poll.done()
    feed._heard = hear
    for each in held:
        hear(each)
    assert ids(await asyncio.wait_for(poll, 60)) == [sent.message_id]


async def test_what_was_found_empty_is_searched_again(servers: SeveralBrokers) -> None:
    """Without a notification the server must not trust that a topic is still empty."""
    await servers.a.topic()
    await _agreed(servers)
    for _ in range(3):
        assert await servers.b.receive() == []
        (sent,) = await servers.a.send()
        assert ids(await servers.b.receive()) == [sent.message_id]


async def test_a_topic_with_waiting_pulls_is_wanted_too(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    topic = await servers.b.broker.catalog.topic(TOPIC)
    await _agreed(servers)
    parked = servers.b.broker.consuming.pulls.parked
    wait = asyncio.create_task(parked.park(PollKey(1, topic.topic_id), 0, 10**6, 0, servers.clock.now_ms() + 10**6))
    await until(lambda: topic.topic_id in (_wanted(servers) or ()))
    parked.close()
    await wait  # it may have been woken before: whoever connects anew searches once more


async def _agreed(servers: SeveralBrokers) -> None:
    """Until the first server knows what the other one wants."""
    await until(lambda: _wanted(servers) is not None)


def _wanted(servers: SeveralBrokers) -> frozenset[int] | None:
    wants = servers.a.broker.servers._wants
    assert wants is not None
    return wants._wanted._wanted


async def _nothing() -> None:
    pass
