"""Locks of queues: never two holders, on either database, whoever races."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AsyncExitStack
from functools import partial

import pytest

from popserver.catalog import groups, topics
from popserver.engine.clock import ManualClock
from popserver.engine.transaction import Transaction
from popserver.members import locks
from popserver.members.locks import LAPSE_MS, Lock, Unlock
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, TopicNotFound
from popserver.model.group import Group, Mode
from popserver.model.names import Resource
from popserver.model.topic import QueueName, Topic
from tests.support.builders import GROUP, TOPIC
from tests.support.open_store import SECOND, START_MS, OpenStore, open_store
from tests.support.running_broker import RunningBroker, rollbacks_of, running_broker, until
from tests.support.several_brokers import SeveralBrokers

CLIENTS = ["c1", "c2", "c3"]


@pytest.fixture
def made(store: OpenStore) -> tuple[Group, Topic]:
    """A group of mode PULL, and a topic of four queues."""
    group = store.group()
    store.one(groups.set_group_mode, groups.SetGroupMode(group, Mode.PULL))
    return group, store.topic(queues=4)


def a_lock(made: tuple[Group, Topic], client_id: str, numbers: Sequence[int]) -> Lock:
    group, topic = made
    return Lock(group, client_id, [topic.queues[number] for number in numbers])


def lock(store: OpenStore, made: tuple[Group, Topic], client_id: str, *numbers: int) -> list[int]:
    return [each.number for each in store.one(locks.lock, a_lock(made, client_id, numbers))]


@pytest.mark.row("F2")
def test_who_comes_second_does_not_get_it(store: OpenStore, made: tuple[Group, Topic]) -> None:
    assert lock(store, made, "c1", 1, 0) == [1, 0]
    assert lock(store, made, "c2", 0, 2) == [2]
    assert lock(store, made, "c1", 0, 1) == [0, 1], "its own it keeps"


@pytest.mark.row("F3")
def test_a_lock_is_free_60_s_after_its_last_renewal(store: OpenStore, made: tuple[Group, Topic]) -> None:
    assert lock(store, made, "c1", 0, 1) == [0, 1]
    store.now_ms += 20 * SECOND
    assert lock(store, made, "c1", 0) == [0]
    store.now_ms += 40 * SECOND - 1
    assert lock(store, made, "c2", 0, 1) == []
    store.now_ms += 1
    assert lock(store, made, "c2", 0, 1) == [1]
    store.now_ms += 20 * SECOND
    assert lock(store, made, "c2", 0, 1) == [0, 1]
    assert lock(store, made, "c1", 0, 1) == []


@pytest.mark.row("F2")
def test_only_its_holder_gives_a_lock_up(store: OpenStore, made: tuple[Group, Topic]) -> None:
    group, topic = made
    lock(store, made, "c1", 0, 1)
    store.one(locks.unlock, Unlock(group, "c2", topic.queues))
    assert lock(store, made, "c2", 0, 1) == []
    store.one(locks.unlock, Unlock(group, "c1", topic.queues[:1]))
    assert lock(store, made, "c2", 0, 1) == [0]


def test_in_one_transaction_the_first_gets_it(store: OpenStore, made: tuple[Group, Topic]) -> None:
    wishes = [a_lock(made, "c2", [2, 0]), a_lock(made, "c1", [0, 1]), a_lock(made, "c2", [1, 0])]
    locked = store.do(locks.lock, *wishes)
    assert [[queue.number for queue in each] for each in locked if isinstance(each, list)] == [[2, 0], [1], [0]]


def test_groups_have_locks_of_their_own(store: OpenStore, made: tuple[Group, Topic]) -> None:
    other = store.group("shipping")
    store.one(groups.set_group_mode, groups.SetGroupMode(other, Mode.PULL))
    assert lock(store, made, "c1", 0) == [0]
    assert lock(store, (other, made[1]), "c2", 0) == [0]


def test_nothing_is_left_of_the_locks_of_what_is_gone(store: OpenStore, made: tuple[Group, Topic]) -> None:
    other = store.topic("refunds")
    lock(store, made, "c1", 0)
    lock(store, (made[0], other), "c1", 0)
    store.one(topics.delete_topic, topics.DeleteTopic(other.name))
    store.purge()
    assert store.one_value("SELECT COUNT(*) FROM queue_lock") == 1
    assert lock(store, (made[0], other), "c1", 0) == [], "a lock that came too late leaves nothing either"
    store.one(groups.delete_group, groups.DeleteGroup(GROUP))
    store.purge()
    assert lock(store, made, "c1", 0) == []
    assert store.one_value("SELECT COUNT(*) FROM queue_lock") == 0


@pytest.mark.row("F3")
def test_a_clock_does_not_start_before_the_newest_lock(store: OpenStore, made: tuple[Group, Topic]) -> None:
    """Else a wall clock put back would keep it from everybody until it has caught up."""
    assert locks.newest_lock_ms(store.conn) == 0
    lock(store, made, "c1", 0)
    assert locks.newest_lock_ms(store.conn) == START_MS


@pytest.mark.row("F2", "F3")
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_asked_when_a_model_says_the_same(store: OpenStore, made: tuple[Group, Topic], seed: int) -> None:
    chance = random.Random(seed)
    holders: dict[int, tuple[str, int]] = {}
    for _ in range(60):
        store.now_ms += chance.choice([0, 0, 1, 20 * SECOND, 40 * SECOND - 1, 60 * SECOND])
        client_id, numbers = chance.choice(CLIENTS), chance.sample(range(4), chance.randint(1, 4))
        if chance.random() < 0.3:
            store.one(locks.unlock, Unlock(made[0], client_id, [made[1].queues[number] for number in numbers]))
            holders = {n: held for n, held in holders.items() if n not in numbers or held[0] != client_id}
            continue
        free = [n for n in numbers if n not in holders or holders[n][0] == client_id or holders[n][1] <= store.now_ms]
        assert lock(store, made, client_id, *numbers) == free
        holders |= dict.fromkeys(free, (client_id, store.now_ms + LAPSE_MS))


# ---- At brokers ----

Pair = tuple[RunningBroker, RunningBroker]
NAMES = [QueueName(TOPIC, number) for number in range(4)]


@pytest.mark.row("F2")
@pytest.mark.parametrize("seed", range(3))
async def test_racing_clients_never_hold_one_queue_together(pair: Pair, seed: int) -> None:
    await pair[0].topic(queues=4)
    holders: dict[QueueName, str] = {}

    async def contend(broker: RunningBroker, client_id: str) -> int:
        chance, locks, got = random.Random(f"{seed}{client_id}"), broker.broker.sessions.queue_locks, 0
        for _ in range(30):
            wish = chance.sample(NAMES, chance.randint(1, 4))
            for name in await locks.lock(GROUP, client_id, wish):
                assert holders.setdefault(name, client_id) == client_id
                got += 1
            await asyncio.sleep(0)
            if chance.random() < 0.7:
                own = [name for name, holder in holders.items() if holder == client_id]
                for name in own:
                    del holders[name]
                await locks.unlock(GROUP, client_id, own)
        return got

    # Two of them at each broker.
    shares = await asyncio.gather(*(contend(pair[number % 2], f"c{number}") for number in range(4)))
    assert all(shares)


@pytest.mark.row("F3")
async def test_of_many_that_wait_for_a_lock_to_lapse_one_gets_it(pair: Pair) -> None:
    await pair[0].topic(queues=4)
    assert await pair[0].broker.sessions.queue_locks.lock(GROUP, "frozen", NAMES) == NAMES

    async def all_try() -> list[list[QueueName]]:
        tries = (pair[n % 2].broker.sessions.queue_locks.lock(GROUP, f"c{n}", NAMES[n % 3 :]) for n in range(8))
        return await asyncio.gather(*tries)

    pair[0].clock._now_ms += LAPSE_MS - 1
    assert not any(await all_try())
    pair[0].clock._now_ms += 1
    taken = [name for locked in await all_try() for name in locked]
    assert sorted(taken) == NAMES


async def test_a_lock_taken_again_is_not_undone_by_the_unlock_before_it(pair: Pair) -> None:
    """Though both are written in one transaction."""
    await pair[0].topic(queues=4)
    inner = pair[0].broker
    await inner.sessions.queue_locks.lock(GROUP, "c1", NAMES)
    group = await inner.catalog.group(GROUP)
    topic = await inner.catalog.topic(TOPIC)
    given_up = inner.engine.writer.submit(Unlock(group, "c1", topic.queues))
    again = inner.engine.writer.submit(Lock(group, "c1", topic.queues))
    await given_up
    assert await again == list(topic.queues)
    assert await inner.sessions.queue_locks.lock(GROUP, "c2", NAMES) == []


async def test_a_group_that_consumes_message_by_message_has_no_locks(pair: Pair) -> None:
    await pair[0].topic(queues=4)
    await pair[0].receive()
    with pytest.raises(BadRequest, match="'billing' consumes in mode POP"):
        await pair[1].broker.sessions.queue_locks.lock(GROUP, "c1", NAMES)


async def test_a_first_lock_fixes_the_mode(pair: Pair) -> None:
    await pair[0].topic(queues=4)
    await pair[0].broker.sessions.queue_locks.lock(GROUP, "c1", NAMES)
    with pytest.raises(BadRequest, match="'billing' consumes in mode PULL"):
        await pair[1].receive()


async def test_a_queue_that_is_not_there_is_named(pair: Pair) -> None:
    await pair[0].topic(queues=4)
    locks = pair[0].broker.sessions.queue_locks
    with pytest.raises(BadRequest, match="topic 'orders' has no queue 4; it has 4, numbered 0 to 3"):
        await locks.lock(GROUP, "c1", [*NAMES, QueueName(TOPIC, 4)])
    with pytest.raises(TopicNotFound, match="topic 'nowhere' does not exist"):
        await locks.unlock(GROUP, "c1", [QueueName(Resource("", "nowhere"), 0)])
    assert await locks.lock(GROUP, "c2", NAMES) == NAMES, "nothing was locked"


async def test_a_group_that_is_made_again_has_no_locks_of_the_one_before(pair: Pair) -> None:
    a, b = pair
    await a.topic(queues=4)
    assert await a.broker.sessions.queue_locks.lock(GROUP, "c1", NAMES) == NAMES
    await b.broker.sessions.queue_locks.lock(Resource("", "shipping"), "c1", NAMES)
    await a.broker.catalog.delete_group(GROUP)
    await a.broker.settle()
    assert [row.locks for row in await a.query("SELECT COUNT(*) AS locks FROM queue_lock")] == [len(NAMES)]
    await until(lambda: GROUP not in b.broker.catalog._groups)
    await b.group()
    assert await b.broker.sessions.queue_locks.lock(GROUP, "c2", NAMES) == NAMES
    assert await a.broker.sessions.queue_locks.lock(GROUP, "c1", NAMES) == []
    await a.broker.sessions.queue_locks.unlock(GROUP, "c1", NAMES)
    assert await a.broker.sessions.queue_locks.lock(GROUP, "c3", NAMES) == [], "c2 has them"


async def test_a_holder_of_a_deleted_group_is_told_which_one_is_gone(sqlite_url: str, postgres_url: str) -> None:
    """At each server, where groups are not created on first use."""
    for url in (sqlite_url, postgres_url):
        async with AsyncExitStack() as running:
            clock = ManualClock()
            start = partial(running_broker, url, auto_create=False, clock=clock, shared=url == postgres_url)
            brokers = [await running.enter_async_context(start()) for _ in range(1 + (url == postgres_url))]
            await brokers[0].topic(queues=4)
            await brokers[0].group()
            for each in brokers:
                await each.broker.sessions.queue_locks.lock(GROUP, "c1", NAMES)
            await brokers[0].broker.catalog.delete_group(GROUP)
            await until(lambda: not any(GROUP in each.broker.catalog._groups for each in brokers))  # noqa: B023
            for each in brokers:
                for call in (each.broker.sessions.queue_locks.lock, each.broker.sessions.queue_locks.unlock):
                    with pytest.raises(ConsumerGroupNotFound, match="'billing' does not exist"):
                        await call(GROUP, "c1", NAMES)
                with pytest.raises(ConsumerGroupNotFound, match="'billing' does not exist"):
                    await each.broker.sessions.group_members.of(GROUP)


# ---- At two servers ----


@pytest.mark.row("F2")
def test_an_unlock_is_not_lost_to_somebody_who_asks_in_vain(postgres_url: str) -> None:
    with open_store(postgres_url) as one, open_store(postgres_url) as other:
        group = one.group()
        one.one(groups.set_group_mode, groups.SetGroupMode(group, Mode.PULL))
        made = group, one.topic(queues=4)
        lock(one, made, "c1", 0, 1)
        other.database.begin(other.conn)
        asking = Transaction.at(other.conn, other.now_ms)
        assert locks.lock(asking, [a_lock(made, "c2", [1])]) == [[]]
        with ThreadPoolExecutor(1) as thread:
            given_up = thread.submit(one.one, locks.unlock, Unlock(group, "c1", made[1].queues))
            wait([given_up], timeout=0.1)
            other.conn.exec_driver_sql("COMMIT")
            given_up.result(timeout=10)
        assert one.one_value("SELECT COUNT(*) FROM queue_lock") == 0


async def test_who_gives_up_and_takes_waits_for_nobody_who_waits_for_it(servers: SeveralBrokers) -> None:
    """Each server's transactions give up queues of one end and take those of the other, opposite to the other's."""
    await servers.a.topic(queues=4)
    brokers = servers.a.broker, servers.b.broker
    group, topic = await brokers[0].catalog.group(GROUP), await brokers[0].catalog.topic(TOPIC)
    await brokers[0].catalog.set_group_mode(group, Mode.PULL)
    low, high = topic.queues[:2], topic.queues[2:]
    with rollbacks_of(servers.a) as of_a, rollbacks_of(servers.b) as of_b:
        for _ in range(20):
            for inner, own in zip(brokers, (high, low), strict=True):
                await inner.engine.writer.submit(Lock(group, "c1", own))
            answers = [
                inner.engine.writer.submit(wish)
                for inner, own, other in ((brokers[0], high, low), (brokers[1], low, high))
                for wish in (Unlock(group, "c1", own), Lock(group, "c2", other))
            ]
            await asyncio.gather(*answers)
            for client_id in ("c1", "c2"):
                await brokers[0].engine.writer.submit(Unlock(group, client_id, topic.queues))
    assert not of_a + of_b
