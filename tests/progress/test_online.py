"""Resets while members are online, at one server and at two."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest

import popserver
from popclient import ConsumeResult, MessageView, Producer, PullConsumer, PushConsumer
from popclient.admin import Admin
from popserver.members.notices import NOTIFY_PAUSE_MS
from popserver.model.errors import TooManyRequests
from popserver.progress.rules import Edge
from tests.support.builders import GROUP, TOPIC
from tests.support.members import Heard
from tests.support.running_broker import PATIENCE_S, RunningBroker
from tests.support.scripted_server import until_in_thread
from tests.support.several_brokers import SeveralBrokers, several_brokers

FIRST = "CONSUME_FROM_FIRST_OFFSET"


@pytest.fixture
def broker() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded() as running:
        yield running


@pytest.fixture
def operator(broker: popserver.EmbeddedBroker) -> Iterator[Admin]:
    with Admin(broker.endpoint) as admin:
        admin.create_topic("flights", queue_count=2)
        yield admin


def send(broker: popserver.EmbeddedBroker, *texts: str) -> None:
    with Producer(broker.endpoint) as producer:
        for text in texts:
            producer.send("flights", text)


@pytest.mark.row("H13")
def test_a_pull_consumer_goes_where_the_operator_says(broker: popserver.EmbeddedBroker, operator: Admin) -> None:
    numbers = [str(number) for number in range(40)]
    send(broker, *numbers)
    with PullConsumer(broker.endpoint, "reports", consume_from=FIRST) as consumer:
        consumer.subscribe("flights")
        seen: Counter[str] = Counter()
        while len(seen) < 40:
            seen.update(each.text for each in consumer.poll(5))
        consumer.commit()
        operator.reset_offsets("reports", "flights", "BEGINNING")
        while len(seen) < 40 or min(seen.values()) < 2:
            seen.update(each.text for each in consumer.poll(5))
        consumer.commit()
        assert set(seen.values()) == {2}
    assert sum(each.ready for each in operator.list_lag("reports")) == 0


@pytest.mark.row("H13")
def test_push_consumers_get_everything_again_and_hold_nothing_from_before(
    broker: popserver.EmbeddedBroker, operator: Admin
) -> None:
    send(broker, *map(str, range(40)))
    seen: Counter[str] = Counter()
    goes_on = threading.Event()

    def listener(message: MessageView) -> ConsumeResult:
        seen[message.text] += 1
        goes_on.wait(60)
        return ConsumeResult.SUCCESS

    with PushConsumer(broker.endpoint, "workers", "flights", listener, concurrency=4):
        until_in_thread(lambda: sum(seen.values()) == 4)
        operator.reset_offsets("workers", "flights", "BEGINNING")
        goes_on.set()
        until_in_thread(lambda: len(seen) == 40 and sum(seen.values()) >= 44)
        until_in_thread(lambda: not any(each.ready or each.inflight for each in operator.list_lag("workers")))


@pytest.fixture
async def servers(postgres_url: str) -> AsyncIterator[SeveralBrokers]:
    async with several_brokers(postgres_url) as several:
        yield several


@pytest.mark.row("H13")
async def test_members_at_another_server_hear_of_it(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await servers.a.group()
    await servers.a.send(9)
    heard = Heard(servers.b)
    await servers.a.broker.progress().reset(GROUP, TOPIC, None, 4, dry_run=False, force=True)
    # It may hear before of the group itself, which was made a moment ago, and then hears nothing more for PAUSE_MS.
    async with asyncio.timeout(PATIENCE_S):
        while not heard.told or heard.told[-1].resets != 1:
            await servers.advance(NOTIFY_PAUSE_MS)
    assert [each.resets for each in heard.told] in ([1], [0, 1]), "no notice comes twice"


async def test_servers_that_reset_receive_and_ack_at_once_lose_nothing(servers: SeveralBrokers) -> None:
    """Whatever the interleaving: each reset is whole, and everything behind the last one comes again."""
    await servers.a.topic()
    await servers.a.group()
    await servers.a.send(100)
    acked: Counter[int] = Counter()
    resets_left = 20

    async def consume(server: RunningBroker) -> None:
        """Until nothing is left, and no reset is to come."""
        while resets_left or (await servers.a.query("SELECT ready + inflight FROM group_lag"))[0][0]:
            left = await server.receive(8)
            while left:  # as clients do if the other server is just acking or resetting it
                outcomes = await server.ack(*left)
                acked.update(each.stored.offset for each, refusal in zip(left, outcomes, strict=True) if not refusal)
                left = [
                    each for each, refusal in zip(left, outcomes, strict=True) if isinstance(refusal, TooManyRequests)
                ]

    async def operate(server: RunningBroker) -> None:
        nonlocal resets_left
        while resets_left:
            with suppress(TooManyRequests):  # the other server was just acking something
                await server.broker.progress().reset(GROUP, TOPIC, 0, Edge.BEGINNING, dry_run=False, force=True)
                resets_left -= 1
                acked.clear()

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as tasks:
        for each in (servers.a, servers.b):
            tasks.create_task(consume(each))
        tasks.create_task(operate(servers.a))
    assert set(acked) == set(range(100))
