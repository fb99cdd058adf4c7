"""What a server counts of the messages that pulls get."""

from __future__ import annotations

from popserver.filters import tags
from popserver.model.names import Resource
from popserver.pulling.flow import PullRequest
from tests.support.builders import GROUP, TOPIC, a_message
from tests.support.running_broker import RunningBroker


async def test_messages_count_when_they_are_sent_with_their_delays_and_bytes(broker: RunningBroker) -> None:
    other = Resource("", "others")
    await broker.topic()
    await broker.send([a_message(body=b"12345")])
    await broker.advance(40)
    await broker.send([a_message(body=b"123", tag="A")])
    await broker.advance(10)

    async def pull(group: Resource, offset: int = 0, wanted: str = "*") -> None:
        until_ms = broker.clock.now_ms()
        pulls = broker.broker.consuming.pulls
        await pulls.pull(PullRequest(group, TOPIC, 0, offset, 32, tags.parse(wanted), until_ms))

    await pull(GROUP)
    await pull(GROUP, 1)
    await pull(GROUP, 2)
    await pull(other, wanted="A")
    group, topic = await broker.broker.catalog.subscription(GROUP, TOPIC)
    group_of_others, _ = await broker.broker.catalog.subscription(other, TOPIC)
    delivered = broker.broker.engine.meters.delivered
    assert set(delivered) == {(group.group_id, topic.topic_id), (group_of_others.group_id, topic.topic_id)}
    counted = delivered[group.group_id, topic.topic_id]
    assert (counted.bytes, counted.delays.total, counted.delays.count) == (11, 70, 3)
    by_limit = dict(zip(counted.delays.limits, counted.delays.counts, strict=False))
    assert (by_limit[10], by_limit[50]) == (2, 1)
    assert (counted.holds, counted.held, counted.retries) == (0, 0, 0)
    counted = delivered[group_of_others.group_id, topic.topic_id]
    assert (counted.bytes, counted.delays.total, counted.delays.count) == (3, 10, 1)
