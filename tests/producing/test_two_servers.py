"""Delayed and half messages where several servers share a database: anybody's to let in, nobody's to do twice."""

from __future__ import annotations

import asyncio
from typing import Any

from popserver.model.errors import InvalidTransactionId
from popserver.model.message import Message
from popserver.model.topic import MessageType, NewTopic
from popserver.producing.half_messages import Check
from popserver.producing.rules import Resolution
from tests.support.builders import TOPIC, a_message
from tests.support.running_broker import RunningBroker, until
from tests.support.several_brokers import SeveralBrokers, silence

MINUTE = 60_000


def delayed(servers: SeveralBrokers, after_ms: int = MINUTE) -> Message:
    return a_message(message_type=MessageType.DELAY, deliver_at_ms=servers.clock.now_ms() + after_ms)


async def make_topic(servers: SeveralBrokers, queues: int = 1) -> None:
    types = (MessageType.NORMAL, MessageType.DELAY, MessageType.TRANSACTION)
    await servers.a.broker.catalog.create_topic(NewTopic(TOPIC, queues, types))


class Producer:
    """A producer on a stream of one server; notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def join(self, server: RunningBroker, client_id: str) -> None:
        await server.broker.producing.transactions.joined(client_id, self, [TOPIC], self._ask)

    async def _ask(self, check: Check) -> None:
        self.asked.append(check.stored.message.message_id)


async def ids_of(server: RunningBroker, table: str) -> list[str]:
    rows = await server.query(f"SELECT message_id FROM {table}")
    return [bytes(row.message_id).hex().upper() for row in rows]


async def test_what_one_server_took_another_lets_in(servers: SeveralBrokers) -> None:
    await make_topic(servers)
    (sent,) = await servers.a.send([delayed(servers)])
    silence(servers.a)
    servers.a.broker.producing.pending._sleeper._closed = True
    servers.a.broker.producing.pending._sleeper._clear_alarm()
    assert await servers.b.receive() == []
    poll = await servers.b.poll(poll_ms=10 * MINUTE)
    await servers.advance(2 * MINUTE)
    (delivery,) = await poll
    assert delivery.stored.message.message_id == sent.message_id


async def test_a_poll_at_one_server_hears_what_another_lets_in(servers: SeveralBrokers) -> None:
    await make_topic(servers)
    await servers.b.receive()
    poll = await servers.b.poll(poll_ms=10 * MINUTE)
    await servers.a.send([delayed(servers)])
    await servers.advance(MINUTE)
    assert len(await poll) == 1


async def test_each_enters_once_whoever_is_first(servers: SeveralBrokers) -> None:
    await make_topic(servers, 4)
    batches = [[delayed(servers) for _ in range(500)] for _ in range(4)]
    for number, batch in enumerate(batches):
        await (servers.a if number % 2 else servers.b).send(batch)
    servers.clock._now_ms += MINUTE
    for _ in range(20):
        for server in (servers.a, servers.b):
            server.broker.producing.pending.check_due()
        await servers.advance(10)
    sent = sorted(each.message_id for batch in batches for each in batch)
    assert sorted(await ids_of(servers.a, "message")) == sent
    assert await ids_of(servers.a, "pending") == []
    rows = await servers.a.query("SELECT min_offset, next_offset FROM queue")
    assert sum(row.next_offset - row.min_offset for row in rows) == len(sent)


async def test_any_server_decides_and_the_first_decision_counts(servers: SeveralBrokers) -> None:
    await make_topic(servers, 2)
    halves = await servers.a.send([a_message(message_type=MessageType.TRANSACTION) for _ in range(40)])

    async def end(server: RunningBroker, index: int, resolution: Resolution) -> Any:
        half = halves[index]
        try:
            await server.broker.producing.transactions.end(TOPIC, half.message_id, half.transaction_id, resolution)
        except InvalidTransactionId as refusal:
            return refusal
        return None

    outcomes = await asyncio.gather(
        *(end(servers.a, index, Resolution.COMMIT) for index in range(40)),
        *(end(servers.b, index, Resolution.ROLLBACK) for index in range(40)),
    )
    committed = set(await ids_of(servers.a, "message"))
    for half, outcome in zip(halves, outcomes[:40], strict=True):
        assert (outcome is None) == (half.message_id in committed)
    assert await ids_of(servers.a, "pending") == []


async def test_only_a_server_with_a_producer_takes_a_check(servers: SeveralBrokers) -> None:
    await make_topic(servers)
    producer = Producer()
    (half,) = await servers.a.send([a_message(message_type=MessageType.TRANSACTION)])
    await servers.advance(MINUTE)
    assert [row.checks for row in await servers.a.query("SELECT checks FROM pending")] == [0]
    await producer.join(servers.b, "p1")
    await servers.advance(1)
    assert producer.asked == [half.message_id]


async def test_a_half_is_asked_about_where_its_producers_are(servers: SeveralBrokers) -> None:
    await make_topic(servers)
    producer = Producer()
    await producer.join(servers.b, "p1")
    await servers.advance(1)
    (half,) = await servers.a.send([a_message(message_type=MessageType.TRANSACTION)])
    await servers.advance(MINUTE // 2)
    assert producer.asked[:1] == [half.message_id]


async def test_two_servers_ask_once_a_check(servers: SeveralBrokers) -> None:
    await make_topic(servers)
    here, there = Producer(), Producer()
    await here.join(servers.a, "p1")
    await there.join(servers.b, "p2")
    await servers.a.send([a_message(message_type=MessageType.TRANSACTION) for _ in range(20)])
    await servers.advance(6_000)
    await until(lambda: len(here.asked) + len(there.asked) >= 20)
    await servers.advance(29_000)
    assert len(here.asked) + len(there.asked) == 20
    assert not set(here.asked) & set(there.asked)
