"""Idempotency keys that come to two servers at once: one message each, and nobody waits in a circle."""

from __future__ import annotations

import asyncio
import random

from popserver.model.message import PROPERTY, Message, SendResult
from popserver.model.topic import MessageType, NewTopic
from tests.support.builders import TOPIC, a_message
from tests.support.running_broker import RunningBroker
from tests.support.several_brokers import SeveralBrokers

KEYS = 40
ROUNDS = 5


def keyed(key: int, running: RunningBroker) -> Message:
    if key % 2:
        return a_message(properties={PROPERTY: f"key-{key}"})
    due_ms = running.clock.now_ms() + 60_000
    return a_message(properties={PROPERTY: f"key-{key}"}, message_type=MessageType.DELAY, deliver_at_ms=due_ms)


async def send_all(running: RunningBroker) -> dict[int, set[str]]:
    """Every key several times, in an order of its own, in batches; the ids that were answered."""
    answered: dict[int, set[str]] = {key: set() for key in range(KEYS)}

    async def send(keys: list[int]) -> None:
        results = await running.broker.send([keyed(key, running) for key in keys])
        for key, result in zip(keys, results, strict=True):
            assert isinstance(result, SendResult), result
            answered[key].add(result.message_id)

    for _ in range(ROUNDS):
        keys = random.sample(range(KEYS), KEYS)
        await asyncio.gather(*(send(keys[start : start + 8]) for start in range(0, KEYS, 8)))
    return answered


async def test_both_servers_answer_with_the_same_message(servers: SeveralBrokers) -> None:
    kinds = (MessageType.NORMAL, MessageType.DELAY)
    await servers.a.broker.catalog.create_topic(NewTopic(TOPIC, 4, kinds))
    one, other = await asyncio.gather(send_all(servers.a), send_all(servers.b))
    assert one == other
    assert all(len(ids) == 1 for ids in one.values())
    (stored,) = await servers.a.query(
        "SELECT (SELECT count(*) FROM message) AS messages, (SELECT count(*) FROM pending) AS waiting,"
        " (SELECT count(*) FROM idempotency) AS keys"
    )
    assert (stored.messages, stored.waiting, stored.keys) == (KEYS // 2, KEYS // 2, KEYS)
    (deadlocks,) = await servers.a.query("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert deadlocks.deadlocks == 0
