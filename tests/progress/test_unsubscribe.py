"""A group leaves a topic while several servers share the database: each knows only the clients that it has itself."""

from __future__ import annotations

import pytest

from popserver.model.errors import BadRequest, InvalidReceiptHandle
from tests.support.builders import GROUP, TOPIC
from tests.support.running_broker import RunningBroker
from tests.support.several_brokers import SeveralBrokers


async def offsets_of(broker: RunningBroker) -> list[int]:
    return [row.next_offset for row in await broker.query("SELECT next_offset FROM progress")]


async def test_a_hold_at_another_server_keeps_the_subscription(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await servers.a.send(2)
    (held,) = await servers.b.receive(1, client_id="far")
    with pytest.raises(BadRequest) as refused:
        await servers.a.broker.progress().unsubscribe(GROUP, TOPIC)
    assert "client 'far' holds a message of topic 'orders' for consumer group 'billing'" in str(refused.value)
    assert await offsets_of(servers.a) == [1]
    assert await servers.b.ack(held) == [None]
    await servers.a.broker.progress().unsubscribe(GROUP, TOPIC)
    assert await offsets_of(servers.a) == []


async def test_a_hold_that_has_ended_keeps_nothing(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await servers.a.send()
    await servers.b.receive(client_id="far", invisible_ms=10_000)
    await servers.advance(11_000)
    await servers.a.broker.progress().unsubscribe(GROUP, TOPIC)
    assert await offsets_of(servers.a) == []


async def test_a_lone_server_knows_all_clients(lone_server: SeveralBrokers) -> None:
    broker = lone_server.a
    await broker.topic()
    await broker.send()
    (held,) = await broker.receive()
    await broker.broker.progress().unsubscribe(GROUP, TOPIC)
    (late,) = await broker.ack(held)
    assert isinstance(late, InvalidReceiptHandle)
    assert [each.stored for each in await broker.receive()] == [held.stored]
