"""`SimpleConsumer.give_back`: a message that was not used, delivered again at once."""

from __future__ import annotations

import pytest

from popclient import Message, Producer, SimpleConsumer, aio
from popclient.admin import Admin
from popserver import EmbeddedBroker


def test_the_attempt_does_not_count(pop_server: EmbeddedBroker) -> None:
    with Producer(pop_server.endpoint) as producer, Admin(pop_server.endpoint) as admin:
        admin.create_group("g", max_attempts=1)
        producer.send_many([Message("t", str(number)) for number in range(3)]).raise_for_failures()
        with SimpleConsumer(pop_server.endpoint, "g", "t", await_duration=5) as consumer:
            for _ in range(2):
                held = [message for _ in range(3) for message in consumer.receive(1)]
                assert [message.delivery_attempt for message in held] == [1, 1, 1]
                consumer.give_back(held[0])
                consumer.give_back(held[1:])
        assert admin.list_holds("g") == []


def test_a_message_that_is_acked_is_left_alone(pop_server: EmbeddedBroker) -> None:
    with (
        Producer(pop_server.endpoint) as producer,
        SimpleConsumer(pop_server.endpoint, "g", "t", await_duration=5) as consumer,
    ):
        producer.send("t", "x")
        [message] = consumer.receive()
        with message.keep_alive():
            consumer.ack(message)
        consumer.give_back(message)
        assert consumer.receive(await_duration=0) == []


async def test_asyncio(pop_server: EmbeddedBroker) -> None:
    async with (
        aio.Producer(pop_server.endpoint) as producer,
        aio.SimpleConsumer(pop_server.endpoint, "g", "t", await_duration=5) as consumer,
    ):
        await producer.send("t", "x")
        [message] = await consumer.receive()
        async with message.keep_alive():
            await consumer.give_back(message)
        [again] = await consumer.receive()
        assert again.delivery_attempt == 1
        with pytest.raises(TypeError, match="give_back takes messages as they were received"):
            await consumer.give_back("handle")  # type: ignore[arg-type]
