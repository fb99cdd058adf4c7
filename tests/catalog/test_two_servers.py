"""A topic or group that changes on one server changes for all of them, and no message is lost on the way."""

from __future__ import annotations

import asyncio

import pytest

from popserver.catalog import groups
from popserver.model.errors import ConsumerGroupNotFound, TopicNotFound
from popserver.model.names import Resource
from tests.support.builders import GROUP, TOPIC, messages_of
from tests.support.running_broker import ids, until
from tests.support.several_brokers import SeveralBrokers


@pytest.fixture
async def both_know(servers: SeveralBrokers) -> SeveralBrokers:
    """Both servers have the topic, of one queue, and the group in their memories."""
    await servers.a.topic()
    for each in (servers.a, servers.b):
        await each.send()
        await each.ack(*await each.receive())
    return servers


async def test_new_queues_are_used_everywhere(both_know: SeveralBrokers) -> None:
    await both_know.a.broker.catalog.update_topic(TOPIC, queue_count=4)
    await until(lambda: TOPIC not in both_know.b.broker.catalog._topics)
    sent = [each for _ in range(8) for each in await both_know.b.send()]
    assert len({each.queue_number for each in sent}) == 4
    received = await both_know.a.receive()
    assert sorted(ids(received)) == sorted(each.message_id for each in sent)


async def test_a_group_that_meets_a_topic_while_it_grows_gets_every_queue(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    for number in range(10):
        group = Resource("", f"group-{number}")
        await servers.b.group(group)
        await asyncio.gather(
            servers.a.broker.catalog.update_topic(TOPIC, queue_count=number + 2),
            servers.b.receive(group=group),
        )
        met = await servers.a.query(
            "SELECT COUNT(*) AS n FROM progress p JOIN consumer_group g USING (group_id) WHERE g.name = :name",
            name=group.name,
        )
        assert met[0].n == number + 2


async def test_a_changed_group_is_looked_up_again(both_know: SeveralBrokers) -> None:
    await both_know.a.broker.catalog.update_group(groups.UpdateGroup(GROUP, max_attempts=2))
    await until(lambda: GROUP not in both_know.b.broker.catalog._groups)
    assert (await both_know.b.broker.catalog.group(GROUP)).retry.max_attempts == 2


async def test_a_deleted_topic_is_forgotten_everywhere(both_know: SeveralBrokers) -> None:
    both_know.b.broker.catalog._auto_create = False
    await both_know.a.broker.catalog.delete_topic(TOPIC)
    await until(lambda: TOPIC not in both_know.b.broker.catalog._topics)
    with pytest.raises(TopicNotFound, match="topic 'orders' does not exist"):
        await both_know.b.broker.send(messages_of(1))


async def test_a_deleted_group_is_forgotten_everywhere(both_know: SeveralBrokers) -> None:
    both_know.b.broker.catalog._auto_create = False
    await both_know.a.broker.catalog.delete_group(GROUP)
    await until(lambda: GROUP not in both_know.b.broker.catalog._groups)
    with pytest.raises(ConsumerGroupNotFound):
        await both_know.b.receive()


async def test_who_has_not_heard_stores_nothing_in_a_deleted_topic(both_know: SeveralBrokers) -> None:
    """The topic was deleted and made anew; a server that did not hear of it remembers the old one."""
    old = await both_know.b.broker.catalog.topic(TOPIC)
    await both_know.a.broker.catalog.delete_topic(TOPIC)
    await both_know.a.topic()
    await both_know.settle()
    both_know.b.broker.catalog._topics[TOPIC] = old
    with pytest.raises(TopicNotFound, match="was deleted"):
        await both_know.b.broker.send(messages_of(1))
    (sent,) = await both_know.b.send()
    assert ids(await both_know.a.receive()) == [sent.message_id]


async def test_two_servers_make_the_same_things_at_once(servers: SeveralBrokers) -> None:
    for number in range(10):
        topic, group = Resource("", f"topic-{number}"), Resource("", f"group-{number}")
        sent = await asyncio.gather(*(each.send(3, topic=topic) for each in (servers.a, servers.b)))
        received = await asyncio.gather(*(each.receive(topic=topic, group=group) for each in (servers.a, servers.b)))
        received.append(await servers.a.receive(topic=topic, group=group))
        assert sorted(id_ for some in received for id_ in ids(some)) == sorted(
            each.message_id for some in sent for each in some
        )
