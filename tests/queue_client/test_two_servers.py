"""Queue push consumers of one group at two servers on one Postgres: one list of members, disjoint shares, no loss."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from popclient import ConsumeConcurrentlyContext, ConsumeConcurrentlyStatus, Message, aio
from tests.support.scripted_server import until
from tests.support.server_process import served

FIRST = "CONSUME_FROM_FIRST_OFFSET"
TOPIC, GROUP, QUEUES = "shared", "readers", 8


class Reader:
    """A member, and what it has seen."""

    def __init__(self, endpoint: str) -> None:
        self.seen: Counter[str] = Counter()
        self.consumer = aio.QueuePushConsumer(endpoint, GROUP, TOPIC, self._listener, consume_from=FIRST)

    @property
    def share(self) -> set[int]:
        return {mq.queue_id for mq in self.consumer.message_queues if mq.topic == TOPIC}

    async def _listener(self, messages: Any, _: ConsumeConcurrentlyContext) -> ConsumeConcurrentlyStatus:
        self.seen.update(message.text for message in messages)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@pytest.mark.row("J6")
@pytest.mark.row("G1")
async def test_members_at_two_servers_share_the_queues_and_follow_each_other(postgres_url: str) -> None:
    async with served(postgres_url) as a, served(postgres_url) as b, aio.Producer(a.endpoint) as producer:
        await send(producer, range(50))
        here, there = Reader(a.endpoint), Reader(b.endpoint)
        async with here.consumer:
            async with there.consumer:
                await until(lambda: len(here.share) == len(there.share) == QUEUES // 2)
                assert not here.share & there.share
                await send(producer, range(50, 250))
                await until(lambda: len(here.seen + there.seen) == 250)
            # Who leaves at the other server is missed here at once.
            await until(lambda: len(here.share) == QUEUES)
            await send(producer, range(250, 300))
            await until(lambda: len(here.seen + there.seen) == 300)
        assert there.seen
        assert set(here.seen + there.seen) == set(map(str, range(300)))


@pytest.mark.slow  # a killed server's members count as there for 35 s
@pytest.mark.row("J6")
async def test_a_killed_servers_members_lose_nothing(postgres_url: str) -> None:
    """The one that is left commits at the other server; what was consumed and not committed may come twice."""
    async with served(postgres_url) as a, aio.Producer(a.endpoint) as producer:
        here = Reader(a.endpoint)
        async with served(postgres_url) as b:
            there = Reader(b.endpoint)
            async with here.consumer:
                async with there.consumer:
                    await until(lambda: len(here.share) == len(there.share) == QUEUES // 2)
                    await send(producer, range(100))
                    await until(lambda: len(here.seen + there.seen) == 100)
                    await b.kill()
                    await send(producer, range(100, 200))
                await until(lambda: len(here.share) == QUEUES)
                await until(lambda: set(here.seen + there.seen) == set(map(str, range(200))))


async def send(producer: aio.Producer, numbers: range) -> None:
    for number in numbers:
        await producer.send(Message(TOPIC, str(number)))
