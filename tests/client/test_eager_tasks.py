"""Clients for asyncio in an event loop whose tasks begin at once: `asyncio.eager_task_factory`, from Python 3.12 on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

import popserver
from popclient import ConsumeConcurrentlyStatus, ConsumeResult, Message, MessageView, aio
from tests.support.pull_consumers import FIRST
from tests.support.scripted_server import until

# By name, because Python 3.11 has none.
EAGER: Any = getattr(asyncio, "eager_task_factory", None)
pytestmark = pytest.mark.skipif(EAGER is None, reason="Python 3.11 has no eager tasks")


@pytest.fixture(autouse=True)
async def eager() -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(EAGER)
    yield
    loop.set_task_factory(None)


PUSH = (aio.PushConsumer, ConsumeResult.SUCCESS)
QUEUE_PUSH = (partial(aio.QueuePushConsumer, consume_from=FIRST), ConsumeConcurrentlyStatus.CONSUME_SUCCESS)


@pytest.mark.parametrize(("consumer_of", "success"), [PUSH, QUEUE_PUSH], ids=["push", "queue_push"])
async def test_a_listener_may_close_its_consumer_before_it_waits(
    shared: popserver.EmbeddedBroker, topic: str, consumer_of: Callable[..., Any], success: object
) -> None:
    seen: list[str] = []

    async def listener(given: MessageView | tuple[MessageView, ...], *_: object) -> object:
        seen.extend(each.text for each in (given if isinstance(given, tuple) else [given]))
        await consumer.close()
        return success

    async with aio.Producer(shared.endpoint) as producer:
        await producer.send(topic, "last order")
    consumer = consumer_of(shared.endpoint, f"{topic}-g", topic, listener, drain_timeout=30)
    await consumer.start()
    async with asyncio.timeout(20):
        await until(lambda: seen == ["last order"])
        await consumer.close()


async def test_messages_go_their_way(shared: popserver.EmbeddedBroker, topic: str) -> None:
    async with aio.Producer(shared.endpoint) as producer:
        receipts = await asyncio.gather(*(producer.send(topic, str(number)) for number in range(50)))
        assert len({each.message_id for each in receipts}) == 50
        async with producer.transaction(Message(topic, "50")):
            pass
    seen: set[str] = set()
    async with aio.SimpleConsumer(shared.endpoint, f"{topic}-g", topic, invisible_duration=30) as consumer:
        while len(seen) < 51:
            received = await consumer.receive(32)
            async with received[0].keep_alive():
                await asyncio.gather(*(consumer.ack(each) for each in received))
                seen |= {each.text for each in received}
    assert seen == {str(number) for number in range(51)}
    polled: set[str] = set()
    async with aio.PullConsumer(shared.endpoint, f"{topic}-pull", consume_from=FIRST) as puller:
        await puller.assign(topic)
        while len(polled) < 51:
            polled |= {each.text for each in await puller.poll(5)}
    assert polled == seen
